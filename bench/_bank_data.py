"""What the bank's benchmark stores: trajectories and block masks of the real shapes, made up, and demo-world renders.

The made-up ones say so: latents are an ideal model's predictions of Gaussian data with a 1/f^2.5 spectrum, masks are
those of eight kinds of heads (local, temporal, semantic, ...) that drift from step to step and carry fresh noise, so
that recorded neighbours, four steps apart, overlap (IoU) by about 0.85. Real renders differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from carnator.carnator_core.connectivity import morton_order
from carnator.demo import data, dit, evaluate, world
from carnator.kernels import BLOCK_K, BLOCK_Q, select
from carnator.kernels.masks import count_blocks, pack_bits
from safetensors.torch import load_file
from torch import Tensor

WEIGHTS = Path(__file__).resolve().parent.parent / "demo" / "weights" / "carnator_demo_wan_dit.safetensors"
EVERY = 4  # one step of so many records its masks
BRANCHES = 2


@dataclass(frozen=True)
class Shape:
    """A model and clip size: latent (C, T, H, W), token grid, steps, layers, heads."""

    name: str
    latent: tuple[int, int, int, int]
    grid: tuple[int, int, int]
    steps: int
    layers: int
    heads: int

    def mask_bytes(self) -> int:
        """Packed bits of one layer's mask, all heads."""
        tokens = self.grid[0] * self.grid[1] * self.grid[2]
        return -(-self.heads * count_blocks(tokens, BLOCK_Q) * count_blocks(tokens, BLOCK_K) // 8)

    def naive_bytes(self) -> int:
        """bfloat16 latents of all steps and packed masks of every step, branch and layer."""
        c, t, h, w = self.latent
        return self.steps * (2 * c * t * h * w + BRANCHES * self.layers * self.mask_bytes())


SHAPES = (
    Shape("Wan2.2-5B 1280x704x121", (48, 31, 44, 80), (31, 22, 40), 50, 30, 24),
    Shape("Wan2.1-1.3B 832x480x81", (16, 21, 60, 104), (21, 30, 52), 50, 30, 12),
    Shape("LTX-13B 1280x704x121", (128, 16, 22, 40), (16, 22, 40), 40, 48, 32),
)


def schedule(steps: int, shift: float = 5.0) -> Tensor:
    """[steps + 1] noise levels of a flow model, the first a little below 1, the last 0."""
    t = torch.linspace(1, 0, steps + 1)
    return (shift * t / (1 + (shift - 1) * t)).clamp(max=0.9995)


def trajectory(latent: tuple[int, int, int, int], steps: int, seed: int = 0) -> Tensor:
    """Predictions [steps, C, T, H, W] on the probability-flow path: D(s) = (1-s) P / sqrt((1-s)^2 P + s^2) z per
    frequency, plus the rounding noise of a bfloat16 model's velocity (relative 2^-9 uniform, times s)."""
    made = torch.Generator().manual_seed(seed)
    frames, height, width = latent[1:]
    f = torch.fft.fftfreq(frames)[:, None, None], torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)
    power = (4 * f[0] ** 2 + f[1] ** 2 + f[2] ** 2).clamp(min=(0.5 / max(height, width)) ** 2) ** -1.25
    power = power / power.mean() + 0.03
    power = power / power.mean()
    z = torch.fft.rfftn(torch.randn(latent, generator=made), dim=(1, 2, 3))
    out = torch.empty(steps, *latent)
    for i, s in enumerate(schedule(steps)[:-1].tolist()):
        gain = (1 - s) * power / ((1 - s) ** 2 * power + s**2).sqrt()
        out[i] = torch.fft.irfftn(z * gain, s=(frames, height, width), dim=(1, 2, 3))
        out[i] += torch.randn(latent, generator=made) * (1.4 * s / 512 / 3**0.5)
    return out


def masks(shape: Shape, layers: int, seed: int = 0) -> dict[str, Tensor]:
    """Packed masks as Connectivity.to_tensors names them, for the recorded steps, both branches and some layers."""
    return {
        f"mask/{step:03d}/{branch}/{layer:03d}": packed
        for step, branch, layer, packed in _masks(shape, layers, torch.Generator().manual_seed(seed))
    }


# Reach of a head along (T, H, W) in tokens, and how much it looks for similar content.
_KINDS = ((4, 6, 6, 1.0), (0.5, 8, 8, 0.5), (9, 1.5, 1.5, 1.0), (3, 3, 3, 3.0),
          (20, 30, 50, 6.0), (6, 9, 9, 0.5), (2, 4, 4, 4.0), (9, 9, 9, 1.0))  # fmt: skip


def _masks(shape: Shape, layers: int, made: torch.Generator) -> Iterator[tuple[int, int, int, Tensor]]:
    order = morton_order(shape.grid)
    position = torch.stack(torch.unravel_index(order, shape.grid), 1).float()
    tokens = len(position)
    queries = (torch.arange(count_blocks(tokens, BLOCK_Q)) * BLOCK_Q + BLOCK_Q // 2).clamp(max=tokens - 1)
    keys = (torch.arange(count_blocks(tokens, BLOCK_K)) * BLOCK_K + BLOCK_K // 2).clamp(max=tokens - 1)

    def content() -> Tensor:
        coarse = torch.randn(1, 8, *(max(2, n // 6) for n in shape.grid), generator=made)
        return F.interpolate(coarse, size=shape.grid, mode="trilinear")[0].flatten(1)[:, order].T

    def similarity(field: Tensor) -> Tensor:
        unit = F.normalize(field, dim=1)
        return unit[queries] @ unit[keys].T

    apart = position[queries][:, None] - position[keys][None]
    near = [-0.5 * (apart / (1.5 * torch.tensor(kind[:3]))).square().sum(-1) for kind in _KINDS]
    fields = [[[content() for _ in range(3)] for _ in range(shape.heads)] for _ in range(layers)]
    recorded = range(EVERY // 2, shape.steps, EVERY)
    for number, step in enumerate(recorded):
        for branch in range(BRANCHES):
            for layer in range(layers):
                kept = []
                for head, (base, drift, other) in enumerate(fields[layer]):
                    kind = head % len(_KINDS)
                    field = base + 0.6 * step / shape.steps * drift + 0.2 * branch * other
                    score = near[kind] + 2 * _KINDS[kind][3] * similarity(field)
                    score = score + 0.2 * torch.randn(score.shape, generator=made)
                    kept.append(select(score.softmax(-1), 0.95))
                yield number, branch, layer, pack_bits(torch.stack(kept))


def overlap(first: Tensor, second: Tensor) -> float:
    """Intersection over union of two packed masks."""
    bits = torch.tensor([bin(n).count("1") for n in range(256)])
    return float(bits[(first & second).long()].sum() / bits[(first | second).long()].sum())


def demo_renders(prompts: int, steps: int) -> tuple[list[str], list[Tensor], Tensor]:
    """(captions, predictions [steps, 16, 3, 16, 16] of each, sigmas) of the demo transformer, cfg 5, Euler."""
    stock = load_file(WEIGHTS)
    shape = evaluate.shape_of(stock)
    inner = dit.Forward(shape, data.vectors())
    captions = [
        world.caption(world.Scene(world.PLACES[i % 5], "right", (world.Thing(world.NOUNS[i % 6], colour),)))
        for i, colour in zip(range(prompts), world.COLOURS, strict=False)
    ]
    seen: list[Tensor] = []

    def recording(weights: dit.Weights, x: Tensor, sigma: Tensor, mixing: Tensor, want: tuple[int, ...] = ()):  # type: ignore[no-untyped-def]
        velocity, maps = inner(weights, x, sigma, mixing, want=want)
        conditional, plain = velocity.chunk(2)
        guided = plain + 5.0 * (conditional - plain)
        seen.append(x[:prompts] - sigma[0] * guided)
        return velocity, maps

    evaluate.sample(recording, dit.from_stock(stock, shape), captions, range(prompts), steps=steps)  # type: ignore[arg-type]
    return captions, list(torch.stack(seen, 1)), torch.tensor(evaluate.sigmas(steps, 3.0))
