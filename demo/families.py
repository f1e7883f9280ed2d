"""The demo world on three backbones: Wan2.1, Wan2.2 5B and LTX-Video, as the host takes them.

All see the same clips. What the other two have for latents are Wan2.1's, token by token: the four cells under a token become
one cell, whose channels are those of the four. Wan2.2's are 48: the finest diagonal detail and the least channel of change
are left out. LTX-Video's are 128, into which the 64 are turned without a change of length (`lift`); its cells are twice as
large again, for a clip of twice the side and the frames. So one formula of the latents and one decoder serve all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate

from . import coupling, data, dit, latents, ltx, world

WAN_VAE = "carnator_demo_wan_vae.safetensors"


@lru_cache(maxsize=1)
def lift() -> Tensor:
    """[128, 64] with orthonormal columns: a token's 64 values as LTX-Video's channels. The other 64 directions are empty."""
    drawn = torch.randn(128, 64, generator=torch.Generator().manual_seed(23), dtype=torch.float64)
    return torch.linalg.qr(drawn)[0].float().contiguous()


@dataclass(frozen=True)
class Family:
    """A backbone. latent: [C, T, h, w] of a clip; kept: Wan channels that its latents hold, of all four cells of a token
    (none: it is Wan2.1 itself); format: the host's latent format; coarse: pixels and frames for one of Wan2.1's clip.
    """

    name: str
    title: str
    weights: str
    latent: tuple[int, int, int, int]
    format: str
    kept: tuple[int, ...] = ()
    coarse: int = 1

    @property
    def lifted(self) -> bool:
        """Whether the values that are kept are turned into more channels."""
        return bool(self.kept) and self.latent[0] > 4 * len(self.kept)

    def from_wan(self, z: Tensor) -> Tensor:
        """Normalised Wan latents [B, 16, T, 16, 16] -> this family's, [B, C, T, h, w]."""
        if not self.kept:
            return z
        b, _, t, h, w = z.shape
        cells = z[:, list(self.kept)].view(b, -1, t, h // 2, 2, w // 2, 2).permute(0, 1, 4, 6, 2, 3, 5)
        held = cells.reshape(b, 4 * len(self.kept), t, h // 2, w // 2)
        return torch.einsum("ck,bkthw->bcthw", lift().to(held), held) if self.lifted else held

    def to_wan(self, z: Tensor) -> Tensor:
        """This family's latents [B, C, T, h, w] -> normalised Wan latents; what they do not hold is zero (its mean)."""
        if not self.kept:
            return z
        if self.lifted:
            z = torch.einsum("ck,bcthw->bkthw", lift().to(z), z)
        b, _, t, h, w = z.shape
        cells = z.reshape(b, len(self.kept), 2, 2, t, h, w).permute(0, 1, 4, 5, 2, 6, 3)
        out = z.new_zeros(b, latents.CHANNELS, t, 2 * h, 2 * w)
        out[:, list(self.kept)] = cells.reshape(b, len(self.kept), t, 2 * h, 2 * w)
        return out

    def enlarged(self, frames: Tensor) -> Tensor:
        """A clip of Wan2.1's size [B, 3, F, H, W] in this family's: [B, 3, 1 + coarse * (F - 1), coarse * H, coarse * W]."""
        if self.coarse == 1:
            return frames
        count = 1 + self.coarse * (frames.shape[2] - 1)
        size = (count, self.coarse * frames.shape[3], self.coarse * frames.shape[4])
        # Frames that were there stay themselves, so that `reduced` gives them back.
        slow = interpolate(frames.float(), size=(count, *frames.shape[3:]), mode="trilinear", align_corners=True)
        return interpolate(slow, size=size, mode="nearest").to(frames.dtype)

    def reduced(self, frames: Tensor) -> Tensor:
        """A clip of this family's size in Wan2.1's: [B, 3, F, H, W]."""
        if self.coarse == 1:
            return frames
        some = frames[:, :, :: self.coarse]
        small = avg_pool2d(some.transpose(1, 2).flatten(0, 1), self.coarse)
        return small.view(some.shape[0], some.shape[2], *small.shape[1:]).transpose(1, 2)

    @property
    def shape(self) -> dit.Shape | ltx.Shape:
        """Sizes of the transformer."""
        if self.lifted:
            return ltx.Shape(channels=self.latent[0])
        return dit.Shape(channels=self.latent[0], patch=1 if self.kept else 2)

    def forward(self, compiled: bool = False) -> dit.Forward | ltx.Forward:
        """The transformer for training and evaluation."""
        shape = self.shape
        if isinstance(shape, ltx.Shape):
            return ltx.Forward(shape, data.vectors(), compiled)
        return dit.Forward(shape, data.vectors(), compiled)

    def to_stock(self, weights: dit.Weights) -> dit.Weights:
        """Weights of the training layout in the host's."""
        shape = self.shape
        return ltx.to_stock(weights, shape) if isinstance(shape, ltx.Shape) else dit.to_stock(weights, shape)

    def from_stock(self, weights: dit.Weights) -> dit.Weights:
        """Weights of the host's layout in the one for training, in float32."""
        shape = self.shape
        return ltx.from_stock(weights, shape) if isinstance(shape, ltx.Shape) else dit.from_stock(weights, shape)

    @property
    def config(self) -> dict[str, Any] | None:
        """What the host cannot read off the weights, for their file's metadata."""
        shape = self.shape
        if isinstance(shape, ltx.Shape):
            return ltx.config(shape)
        return {"patch_size": [1, 1, 1], "out_dim": self.latent[0]} if self.kept else None

    def coupling(self) -> coupling.Coupling:
        """The pairing of noise and clips: Wan's templates, as far as a token of this family holds their values."""
        wan = coupling.Coupling(world.COARSE)
        if not self.kept:
            return wan
        held = wan.templates.view(2, latents.CHANNELS, 4)[:, list(self.kept)].reshape(2, 4 * len(self.kept))
        if self.lifted:
            held = held @ lift().T
        first = held[0] / held[0].norm()
        second = held[1] - (held[1] @ first) * first
        return coupling.Coupling(world.COARSE, torch.stack([first, second / second.norm()]), side=1)

    def noise(self, seed: int) -> Tensor:
        """Plain Gaussian starting noise, [C, T, h, w]."""
        return torch.randn(*self.latent, generator=torch.Generator().manual_seed(seed))


WAN = Family("wan", "Wan2.1", "carnator_demo_wan_dit.safetensors", (16, 3, 16, 16), "Wan21")
WAN22 = Family("wan22", "Wan2.2 5B", "carnator_demo_wan22_dit.safetensors", (48, 3, 8, 8), "Wan22",
               (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 14))
LTX = Family("ltx", "LTX-Video", "carnator_demo_ltx_dit.safetensors", (128, 3, 8, 8), "LTXV", tuple(range(16)), coarse=2)
FAMILIES: Mapping[str, Family] = {f.name: f for f in (WAN, WAN22, LTX)}


def of(z: Tensor) -> Family:
    """The family of latents [B, C, T, h, w], by their channels."""
    return next(family for family in FAMILIES.values() if family.latent[0] == z.shape[1])
