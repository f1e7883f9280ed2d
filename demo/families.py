"""The demo world on two backbones: Wan2.1 and Wan2.2 5B, as the host takes them.

Both see the same clips. What Wan2.2 has for latents are Wan2.1's, token by token: the four cells under a token become one
cell, whose channels are those of the four, all but the finest diagonal detail and the least channel of change: 48. So the
formula of the latents, and the decoder that was trained on them, serve both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import coupling, dit, latents, world

WAN_VAE = "carnator_demo_wan_vae.safetensors"


@dataclass(frozen=True)
class Family:
    """A backbone. latent: [C, T, h, w] of a clip; kept: Wan channels that its latents hold, of all four cells of a token
    (none: it is Wan2.1 itself); format: the host's latent format.
    """

    name: str
    title: str
    weights: str
    latent: tuple[int, int, int, int]
    format: str
    kept: tuple[int, ...] = ()

    def from_wan(self, z: Tensor) -> Tensor:
        """Normalised Wan latents [B, 16, T, 16, 16] -> this family's, [B, C, T, h, w]."""
        if not self.kept:
            return z
        b, _, t, h, w = z.shape
        cells = z[:, list(self.kept)].view(b, -1, t, h // 2, 2, w // 2, 2).permute(0, 1, 4, 6, 2, 3, 5)
        return cells.reshape(b, self.latent[0], t, h // 2, w // 2)

    def to_wan(self, z: Tensor) -> Tensor:
        """This family's latents [B, C, T, h, w] -> normalised Wan latents; what they do not hold is zero (its mean)."""
        if not self.kept:
            return z
        b, _, t, h, w = z.shape
        cells = z.view(b, len(self.kept), 2, 2, t, h, w).permute(0, 1, 4, 5, 2, 6, 3)
        out = z.new_zeros(b, latents.CHANNELS, t, 2 * h, 2 * w)
        out[:, list(self.kept)] = cells.reshape(b, len(self.kept), t, 2 * h, 2 * w)
        return out

    @property
    def shape(self) -> dit.Shape:
        """Sizes of the transformer."""
        return dit.Shape(channels=self.latent[0], patch=1 if self.kept else 2)

    @property
    def config(self) -> dict[str, Any] | None:
        """What the host cannot read off the weights, for their file's metadata."""
        return {"patch_size": [1, 1, 1], "out_dim": self.latent[0]} if self.kept else None

    def coupling(self) -> coupling.Coupling:
        """The pairing of noise and clips: Wan's templates, as far as a token of this family holds their values."""
        wan = coupling.Coupling(world.COARSE)
        if not self.kept:
            return wan
        held = wan.templates.view(2, latents.CHANNELS, 4)[:, list(self.kept)].reshape(2, self.latent[0])
        first = held[0] / held[0].norm()
        second = held[1] - (held[1] @ first) * first
        return coupling.Coupling(world.COARSE, torch.stack([first, second / second.norm()]), side=1)

    def noise(self, seed: int) -> Tensor:
        """Plain Gaussian starting noise, [C, T, h, w]."""
        return torch.randn(*self.latent, generator=torch.Generator().manual_seed(seed))


WAN = Family("wan", "Wan2.1", "carnator_demo_wan_dit.safetensors", (16, 3, 16, 16), "Wan21")
WAN22 = Family("wan22", "Wan2.2 5B", "carnator_demo_wan22_dit.safetensors", (48, 3, 8, 8), "Wan22",
               (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14))
FAMILIES: Mapping[str, Family] = {f.name: f for f in (WAN, WAN22)}


def of(z: Tensor) -> Family:
    """The family of latents [B, C, T, h, w], by their channels."""
    return next(family for family in FAMILIES.values() if family.latent[0] == z.shape[1])
