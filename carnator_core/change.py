"""The change map: where, and how much, a prompt changes a render that starts from the same noise.

E = mean over channels of (D^q - D^j)^2, averaged to visual tokens, in units of the clip's latent energy. It ranks
tokens well from the first evaluation on; the amount is exaggerated by guidance while sigma is high, so the level that
counts as changed carries a factor per sigma, which `fit_scale` learns from finished pairs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

LEVEL = 0.15  # share of the clip's latent energy beyond which a token of the finished latents counts as changed


def change_map(target: Tensor, history: Tensor, patch: tuple[int, int, int]) -> Tensor:
    """E per visual token over the mean square of both predictions, [T, H, W] float32 on the padded token grid.

    target, history: `denoised` (or finished latents) of the two renders at one sigma, [C, T, H, W], any float dtype.
    Tokens that reach over the edge average over what they hold. Two equal predictions give zeros, also when flat.
    Raises ValueError when the shapes differ.
    """
    if target.shape != history.shape or target.ndim != 4:
        raise ValueError(f"two [C, T, H, W] latents of one shape are needed, not {list(target.shape)} and "
                         f"{list(history.shape)}")
    ours, theirs = target.float(), history.to(target.device).float()
    squared = (ours - theirs).square().mean(dim=0)
    energy = (ours.square().mean() + theirs.square().mean()) / 2.0
    pooled = _pool(squared, patch) / _pool(torch.ones_like(squared), patch)
    return pooled / energy.clamp_min(torch.finfo(torch.float32).tiny)


def change_region(change: Tensor, scale: float = 1.0, level: float = LEVEL) -> Tensor:
    """Tokens that are predicted to change: E above `level` x `scale`; the shape of `change`, bool."""
    return change > level * scale


def predicted_share(change: Tensor, scale: float = 1.0, level: float = LEVEL) -> float:
    """Share of all tokens in the change region, 0..1; NaN when the map holds a NaN."""
    if bool(change.isnan().any()):
        return float("nan")
    return change_region(change, scale, level).float().mean().item()


@dataclass(frozen=True)
class ChangeScale:
    """The factor on the level at each measured sigma, for one family and guidance.

    sigmas: descending. Between them the factor is linear in sigma, beyond them constant.
    """

    sigmas: tuple[float, ...] = (1.0,)
    factors: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if len(self.sigmas) != len(self.factors) or not self.sigmas:
            raise ValueError("as many factors as sigmas, and at least one")
        if list(self.sigmas) != sorted(self.sigmas, reverse=True):
            raise ValueError("sigmas in descending order")

    def at(self, sigma: float) -> float:
        """The factor at `sigma`."""
        known = list(zip(self.sigmas, self.factors, strict=True))
        if sigma >= known[0][0]:
            return known[0][1]
        for (high, above), (low, below) in itertools.pairwise(known):
            if sigma >= low:
                return below + (above - below) * (sigma - low) / (high - low) if high > low else below
        return known[-1][1]

    def to_dict(self) -> dict[str, list[float]]:
        return {"sigmas": list(self.sigmas), "factors": list(self.factors)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ChangeScale:
        """Raises KeyError or ValueError for a table that is not one."""
        return cls(tuple(float(s) for s in data["sigmas"]), tuple(float(f) for f in data["factors"]))


def fit_scale(early: Sequence[Tensor], finished: Sequence[Tensor], level: float = LEVEL) -> float:
    """The factor at which the early maps predict, on average over pairs, the share that really changed.

    early: change maps at one sigma; finished: those of the final latents, in the same order. The predicted share only
    falls as the factor grows, so the answer is a quantile: the one that leaves the true share of early values above.
    Raises ValueError for lists of unequal length or none.
    """
    if len(early) != len(finished) or not early:
        raise ValueError("as many early maps as finished ones, and at least one")
    truth = sum(predicted_share(final, level=level) for final in finished) / len(finished)
    low, high = 1e-6, 1e6
    for _ in range(60):
        middle = (low * high) ** 0.5
        share = sum(predicted_share(change, middle, level) for change in early) / len(early)
        low, high = (middle, high) if share > truth else (low, middle)
    return high


def _pool(values: Tensor, patch: tuple[int, int, int]) -> Tensor:
    """Sum of [T, H, W] values over every patch, padded with zeros at the far ends: [T', H', W']."""
    padding: list[int] = []
    for size, step in zip(reversed(values.shape), reversed(patch), strict=True):
        padding += [0, -size % step]
    padded = F.pad(values[None, None], padding)
    return F.avg_pool3d(padded, patch, stride=patch)[0, 0] * float(patch[0] * patch[1] * patch[2])
