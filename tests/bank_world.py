"""Histories for the bank's tests: small, smooth in sigma as real ones are, and made from a seed."""

from __future__ import annotations

import torch
from carnator.carnator_core.history import History, Identity
from carnator.carnator_core.signature import signature
from torch import Tensor


def history(
    seed: int = 0, shape: tuple[int, int, int, int] = (4, 2, 6, 5), calls: int = 6, **changes: object
) -> History:
    """A render of random values that converges: D(sigma) = sharp * (1 - sigma) + blurred * sigma."""
    made = torch.Generator().manual_seed(seed)
    sharp, noise = (torch.randn(shape, generator=made) for _ in range(2))
    sigmas = torch.linspace(1, 0, calls + 1)
    blurred = sharp.mean((2, 3), keepdim=True)
    denoised = torch.stack([sharp * (1 - s) + blurred * s for s in sigmas[:-1]])
    region = torch.zeros(2, 3, 3, dtype=torch.bool)
    region[:, 1:, :2] = True
    vector = torch.randn(16, generator=made)
    values: dict[str, object] = {
        "identity": Identity({"model": "tiny", "latent_shape": str(shape)}),
        "prompt": f"a red fox, number {seed}",
        "text_vector": vector / vector.norm(),
        "noise": noise,
        "sigmas": sigmas,
        "call_sigmas": sigmas[:-1],
        "denoised": denoised,
        "uncond": None,
        "signature": signature({"fox": region}, torch.rand(12, 12, 3, generator=made)),
        "connectivity": {"3/0/cond": torch.randint(0, 255, (7, 3), dtype=torch.uint8, generator=made)},
        "facts": {"seed": seed, "seconds": 10.0, "grid": [2, 3, 3]},
        "thumbnail": torch.randint(0, 255, (8, 6, 3), dtype=torch.uint8, generator=made),
    }
    return History(**{**values, **changes})  # type: ignore[arg-type]


def smooth(shape: tuple[int, int, int, int], calls: int, seed: int = 0) -> Tensor:
    """Predictions [calls, C, T, H, W] of an ideal model of Gaussian data with a 1/f^2.5 spectrum.

    On the probability-flow path of x = (1 - s) x0 + s n, every frequency of power P follows
    D(s) = (1 - s) P / sqrt((1 - s)^2 P + s^2) z: details appear late, as in real renders. Shift 5.
    """
    frequency = [torch.fft.fftfreq(n)[(slice(None),) + (None,) * (2 - i)] for i, n in enumerate(shape[1:])]
    power = (frequency[0] ** 2 + frequency[1] ** 2 + frequency[2] ** 2).clamp(min=1e-3) ** -1.25
    power = power / power.mean() + 0.03
    z = torch.fft.fftn(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dim=(1, 2, 3))
    steps = []
    for k in range(calls):
        t = 1 - k / calls
        s = min(5 * t / (1 + 4 * t), 0.9995)
        gain = (1 - s) * power / ((1 - s) ** 2 * power + s**2).sqrt()
        steps.append(torch.fft.ifftn(z * gain, dim=(1, 2, 3)).real)
    return torch.stack(steps)


def same(a: Tensor | None, b: Tensor | None) -> bool:
    """Bit-identical, dtype included; None equals None."""
    if a is None or b is None:
        return a is b
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and bool((a.reshape(-1).view(torch.uint8) == b.reshape(-1).view(torch.uint8)).all())
    )
