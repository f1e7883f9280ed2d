"""Recording and replaying `denoised`: a render is its starting noise and what the model predicted at each call.

A *prediction* is a tensor [S, C, T, H, W]: S = 1 holds the guided prediction D of x0; S = 2 holds D and the
unconditional prediction, which the `_cfg_pp` samplers read as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

EXACT_BYTES = 64 << 20  # a whole trajectory below this size is kept in float32, so that its replay is bit-identical
SAME_SIGMA = 1e-4  # relative; schedules of one model agree far better, neighbouring steps differ far more


def same_sigma(a: float, b: float) -> bool:
    """Whether two noise levels are the same step."""
    return abs(a - b) <= SAME_SIGMA * max(abs(a), abs(b), 1e-3)


class Past:
    """Predictions in the order of the model calls, keyed by sigma, to read only: in memory, or fetched when asked for."""

    def __init__(self, sigmas: Sequence[float], predictions: Sequence[Tensor]) -> None:
        if len(sigmas) != len(predictions):
            raise ValueError(f"{len(sigmas)} sigmas for {len(predictions)} predictions; each call needs one of both")
        self.sigmas: list[float] = [float(s) for s in sigmas]
        self.predictions: Sequence[Tensor] = predictions

    def __len__(self) -> int:
        return len(self.sigmas)

    def call(self, index: int, sigma: float) -> Tensor | None:
        """The prediction of call `index`, if that call was made at this sigma: exact replay. Otherwise None."""
        if index < len(self.sigmas) and same_sigma(self.sigmas[index], sigma):
            return self.predictions[index]
        return None

    def at(self, sigma: float) -> Tensor:
        """The prediction at any sigma: the recorded one, or linear in sigma between the two around it.

        D(sigma) is smooth, so that a 30-step request can be served from a 50-step history. Beyond the ends the end is
        held. Of several calls at one sigma (heun, dpm_2) the last, made at the better estimate, counts.
        Raises ValueError when nothing was recorded.
        """
        if not self.sigmas:
            raise ValueError("an empty trajectory has no prediction to serve")
        calls = around(self.sigmas, sigma)
        if len(calls) == 1:
            return self.predictions[calls[0]]
        above, below = calls
        share = (self.sigmas[above] - sigma) / (self.sigmas[above] - self.sigmas[below])
        return torch.lerp(self.predictions[above], self.predictions[below], share)


class Trajectory(Past):
    """Predictions that one sampling run collects."""

    def __init__(self, sigmas: Sequence[float] = (), predictions: Sequence[Tensor] = ()) -> None:
        super().__init__(sigmas, predictions)
        self.predictions: list[Tensor] = list(predictions)

    def add(self, sigma: float, prediction: Tensor) -> None:
        """Append one call's prediction [S, C, T, H, W]. The tensor is kept as it is: hand over a copy."""
        self.sigmas.append(float(sigma))
        self.predictions.append(prediction)


def around(sigmas: Sequence[float], sigma: float) -> tuple[int, ...]:
    """The calls from which the prediction at `sigma` is made: one, or the one above and the one below it, in this order.

    Of several calls at one sigma the last. Empty when there are no calls.
    """
    exact = [i for i, s in enumerate(sigmas) if same_sigma(s, sigma)]
    if exact:
        return (exact[-1],)
    above = min((i for i, s in enumerate(sigmas) if s > sigma), key=lambda i: (sigmas[i], -i), default=None)
    below = max((i for i, s in enumerate(sigmas) if s < sigma), key=lambda i: (sigmas[i], i), default=None)
    return tuple(i for i in (above, below) if i is not None)


def storage_dtype(prediction: Tensor, calls: int) -> torch.dtype:
    """float32 while the whole trajectory stays under EXACT_BYTES, float16 beyond."""
    return torch.float32 if prediction.numel() * 4 * calls <= EXACT_BYTES else torch.float16
