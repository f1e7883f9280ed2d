"""What differs between transformer families, behind one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Grid = tuple[int, int, int]
Attention = Callable[..., Tensor]


@dataclass
class Tokens:
    """Which visual tokens a region-restricted layer computes: `active` queries, `keys` (a superset) as context.

    Both are sorted token indices into the flattened T x H x W grid; `place` are the active ones' positions in keys.
    """

    active: Tensor
    keys: Tensor
    place: Tensor

    @classmethod
    def of(cls, active: Tensor, context: Tensor) -> Tokens:
        """From two boolean grids [T, H, W] with active inside context."""
        a, c = active.flatten(), (context | active).flatten()
        keys = c.nonzero().squeeze(1)
        return cls(active=a.nonzero().squeeze(1), keys=keys, place=a[keys].nonzero().squeeze(1))

    def moved(self, device: torch.device) -> Tokens:
        """The same indices on another device."""
        return Tokens(self.active.to(device), self.keys.to(device), self.place.to(device))


class Backbone(Protocol):
    """One transformer family. A *call* is the dict of arguments that the host hands to a replaced block."""

    name: str
    patch: Grid

    def blocks(self, model: Any) -> Sequence[Any]:
        """The transformer blocks, in order."""

    def restricted(self, block: Any, hidden: Tensor, call: dict[str, Any], tokens: Tokens, attention: Attention) -> Tensor:
        """One block on a subset: hidden [B, K, D] of the key tokens -> new hidden [B, A, D] of the active ones."""


def token_grid(latent_shape: Sequence[int], patch: Grid) -> Grid:
    """Token grid of a latent [.., T, H, W], counted on the padded size (hosts pad to whole patches)."""
    t, h, w = latent_shape[-3:]
    return -(-t // patch[0]), -(-h // patch[1]), -(-w // patch[2])


def gather(per_token: Tensor, index: Tensor, dim: int = 1) -> Tensor:
    """Rows of a per-token tensor; a tensor that is one for all tokens is handed through."""
    return per_token if per_token.shape[dim] == 1 else per_token.index_select(dim, index)
