"""Noise that says where things will stand.

Flow matching may pair noise and data as it likes, as long as each keeps its own distribution. Independent pairing
leaves the place of an object open at high noise, and a small model then draws it twice. Here the pairing is read
off the noise: each inner cell has a score <TEMPLATE, noise patch of the first frame>, and the first object stands
at the best-scoring cell (the second at the best cell far enough away, by its own template). Since scores are
independent and equally distributed and cells are equally likely, noise stays white Gaussian and data stays uniform.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import world
from .latents import CHANNELS

_ROWS = torch.tensor([c[0] for c in world.CELLS])
_COLUMNS = torch.tensor([c[1] for c in world.CELLS])
FAR = torch.tensor([[c in world.far_cells(o) for c in world.CELLS] for o in world.CELLS])  # [36, 36]
_PATCH = 4 * CHANNELS
TEMPLATES = torch.linalg.qr(torch.randn(_PATCH, 2, generator=torch.Generator().manual_seed(11)))[0].T.contiguous()


def _patches(noise: Tensor) -> Tensor:
    """[B, C, T, 16, 16] -> the first frame's inner cells, [B, 36, 4C]."""
    b, c = noise.shape[:2]
    grid = noise[:, :, 0].view(b, c, 8, 2, 8, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, 8, 8, 4 * c)
    return grid[:, _ROWS, _COLUMNS]


def read(noise: Tensor) -> tuple[Tensor, Tensor]:
    """Where noise [B, C, T, 16, 16] puts the first and the second object: indices into world.CELLS, each [B]."""
    scores = _patches(noise) @ TEMPLATES.T
    first = scores[..., 0].argmax(1)
    second = scores[..., 1].masked_fill(~FAR[first], -torch.inf).argmax(1)
    return first, second


def couple(noise: Tensor, cells: Tensor) -> Tensor:
    """Exchange scores so that `read(noise)` gives `cells` [B, 2] (second -1: left as it falls). Returns new noise."""
    rows = torch.arange(len(noise))
    patches = _patches(noise)
    for k in (0, 1):
        scores = patches @ TEMPLATES[k]
        wanted = cells[:, k].clamp(min=0)
        allowed = FAR[cells[:, 0]] if k else torch.ones_like(scores, dtype=torch.bool)
        best = scores.masked_fill(~allowed, -torch.inf).argmax(1)
        gap = (scores[rows, best] - scores[rows, wanted]) * (cells[:, k] >= 0)
        patches[rows, wanted] += gap[:, None] * TEMPLATES[k]
        patches[rows, best] -= gap[:, None] * TEMPLATES[k]
    b, c = noise.shape[:2]
    out = noise.clone()
    grid = out[:, :, 0].view(b, c, 8, 2, 8, 2).permute(0, 2, 4, 1, 3, 5).reshape(b, 8, 8, 4 * c)
    grid[:, _ROWS, _COLUMNS] = patches
    out[:, :, 0] = grid.view(b, 8, 8, c, 2, 2).permute(0, 3, 1, 4, 2, 5).reshape(b, c, 16, 16)
    return out
