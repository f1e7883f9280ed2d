"""Noise that says where things will stand.

Flow matching may pair noise and data as it likes, as long as each keeps its own distribution. Independent pairing
leaves the place of an object open at high noise, and a small model then draws it twice. Here the pairing is read
off the noise: each inner cell has a score <template, noise of the first frame in that cell>, and the first object
stands at the best-scoring cell (the second at the best cell far enough away, by its own template). Since scores are
independent and equally distributed and cells are equally likely, noise stays white Gaussian and data stays uniform.
A cell is one visual token, so that a score is a linear function of what one token sees.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import world
from .latents import CHANNELS


class Coupling:
    """Pairing for one lattice: a cell covers side x side latent cells of the [B, C, T, h, w] noise.

    templates: [2, C * side * side] orthonormal (None: seeded ones for the Wan latents, whose cells are 8 pixels).
    """

    def __init__(self, lattice: world.Lattice, templates: Tensor | None = None, side: int | None = None) -> None:
        self.side = side or lattice.cell // 8
        cells = lattice.cells
        self.rows, self.columns = torch.tensor([c[0] for c in cells]), torch.tensor([c[1] for c in cells])
        self.far = torch.tensor([[c in set(lattice.far(o)) for c in cells] for o in cells])
        if templates is None:
            drawn = torch.randn(CHANNELS * self.side**2, 2, generator=torch.Generator().manual_seed(11))
            templates = torch.linalg.qr(drawn)[0].T.contiguous()
        self.templates = templates

    def _grid(self, noise: Tensor) -> Tensor:
        """The first frame by cells, [B, h/side, w/side, C * side * side]; a copy."""
        b, c, p = noise.shape[0], noise.shape[1], self.side
        n = noise.shape[-1] // p
        return noise[:, :, 0].reshape(b, c, n, p, n, p).permute(0, 2, 4, 1, 3, 5).reshape(b, n, n, c * p * p).clone()

    def read(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Where noise puts the first and the second object: indices into the lattice's cells, each [B]."""
        scores = self._grid(noise)[:, self.rows, self.columns] @ self.templates.T
        first = scores[..., 0].argmax(1)
        second = scores[..., 1].masked_fill(~self.far[first], -torch.inf).argmax(1)
        return first, second

    def couple(self, noise: Tensor, cells: Tensor) -> Tensor:
        """Exchange scores so that `read(noise)` gives `cells` [B, 2] (second -1: left as it falls). New noise."""
        rows, grid = torch.arange(len(noise)), self._grid(noise)
        patches = grid[:, self.rows, self.columns]
        for k in (0, 1):
            scores = patches @ self.templates[k]
            wanted = cells[:, k].clamp(min=0)
            allowed = self.far[cells[:, 0]] if k else torch.ones_like(scores, dtype=torch.bool)
            best = scores.masked_fill(~allowed, -torch.inf).argmax(1)
            gap = (scores[rows, best] - scores[rows, wanted]) * (cells[:, k] >= 0)
            patches[rows, wanted] += gap[:, None] * self.templates[k]
            patches[rows, best] -= gap[:, None] * self.templates[k]
        grid[:, self.rows, self.columns] = patches
        b, c, p = noise.shape[0], noise.shape[1], self.side
        n, out = noise.shape[-1] // p, noise.clone()
        out[:, :, 0] = grid.view(b, n, n, c, p, p).permute(0, 3, 1, 4, 2, 5).reshape(b, c, n * p, n * p)
        return out
