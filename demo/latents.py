"""The demo VAE's latent space, as a closed formula.

A latent cell covers 8 x 8 pixels and one frame (the first) or four. Its 16 channels are linear:
the Haar transform (mean, horizontal, vertical, diagonal) of the 4-pixel averages, per colour (12), the change
of the mean colour between the group's halves (3), and the same of the horizontal brightness step (1).
`demo/vae.py` writes exactly this into the stock Wan encoder's weights; only the decoder is trained.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

CHANNELS = 16
# Normalised latents are (raw - MEAN) / SCALE: colour to unit variance, the fine bands below it, so that
# denoising settles what is where before it draws edges.
MEAN = torch.tensor([-0.02, 0.12, 0.13] + [0.0] * 13).view(1, CHANNELS, 1, 1, 1)
SCALE = torch.tensor([0.6] * 3 + [0.12] * 6 + [0.08] * 3 + [0.11] * 3 + [0.09]).view(1, CHANNELS, 1, 1, 1)


def haar(pixels: Tensor) -> Tensor:
    """[..., 3, H, W] -> [..., 12, H/8, W/8]: mean RGB, then horizontal, vertical and diagonal steps."""
    lead = pixels.shape[:-3]
    small = avg_pool2d(pixels.reshape(-1, *pixels.shape[-3:]), 4)
    a, b = small[..., 0::2, 0::2], small[..., 0::2, 1::2]
    c, d = small[..., 1::2, 0::2], small[..., 1::2, 1::2]
    bands = torch.cat([a + b + c + d, b + d - a - c, c + d - a - b, a + d - b - c], 1) / 4
    return bands.reshape(*lead, *bands.shape[1:])


def raw_latents(video: Tensor) -> Tensor:
    """Video [B, 3, F, H, W] in -1..1 with F = 1 + 4n -> raw latents [B, 16, 1 + n, H/8, W/8]."""
    bands = haar(video.transpose(1, 2))  # [B, F, 12, h, w]
    first, rest = bands[:, :1], bands[:, 1:]
    groups = rest.unflatten(1, (-1, 4)) if rest.shape[1] else rest.unflatten(1, (0, 4))
    early, late = groups[:, :, :2].mean(2), groups[:, :, 2:].mean(2)
    step = late - early
    change = torch.cat([step[:, :, :3], step[:, :, 3:6].mean(2, keepdim=True)], 2)
    first = torch.cat([first, torch.zeros_like(first[:, :, :4])], 2)
    return torch.cat([first, torch.cat([(early + late) / 2, change], 2)], 1).transpose(1, 2)


def normalised(video: Tensor) -> Tensor:
    """Video [B, 3, F, H, W] in -1..1 -> the latents the transformer is trained on."""
    return (raw_latents(video) - MEAN) / SCALE


def token_masks(masks: Tensor, cell: int = 8) -> Tensor:
    """Object masks [B, K, F, H, W] -> share of each visual token covered, [B, K, 1 + (F-1)/4, H/cell, W/cell]."""
    groups = masks[:, :, 1:].unflatten(2, (-1, 4)).mean(3)
    frames = torch.cat([masks[:, :, :1], groups], 2)
    return avg_pool2d(frames.flatten(0, 2).unsqueeze(1), cell).view(*frames.shape[:3], *(s // cell for s in masks.shape[-2:]))
