"""Historical sparse connectivity in a model call: recorded during a dense render, followed during reuse (section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from ..kernels import BlockMask
from . import connectivity
from .backbones.base import Tokens
from .connectivity import Connectivity, Recorder, subset_order
from .observe import split_heads


class Connect(Protocol):
    """What may happen at a self-attention: q, k, v [B, N, heads * d] of the branches `kinds`; None leaves it to the host."""

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, heads: int, kinds: Sequence[int]) -> Tensor | None: ...


@dataclass
class Recording:
    """Notes each block's connectivity at one step; computes nothing itself."""

    recorder: Recorder
    sigma: float

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, heads: int, kinds: Sequence[int]) -> Tensor | None:
        t, h, w = self.recorder.grid
        if q.shape != k.shape or q.shape[1] != t * h * w:  # other tokens than the clip's are in the sequence
            return None
        for item, kind in enumerate(kinds):
            self.recorder.add(self.sigma, kind, layer, split_heads(q[item], heads, False)[None],
                              split_heads(k[item], heads, False)[None])
        return None


@dataclass
class Following:
    """Computes self-attention over the history's blocks only; Q, K and V are the target's own.

    tokens: the restricted layers' active and key tokens, where there are any. densities collects what was computed.
    """

    source: Connectivity
    sigma: float
    tokens: Tokens | None = None
    densities: list[float] = field(default_factory=list)

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, heads: int, kinds: Sequence[int]) -> Tensor | None:
        orders = self._orders(q.shape[1], k.shape[1], q.device)
        if orders is None:
            return None
        out = torch.empty_like(q)
        for item, kind in enumerate(kinds):
            mask = self.source.mask(self.sigma, kind, layer, q.device)
            if mask is None:
                return None
            if q.shape[1] != self.source.tokens:
                mask = self._restricted(mask, q.device)
            if not connectivity.worthwhile(k.shape[1], mask.density, q.device):
                return None
            self.densities.append(mask.density)
            qi, ki, vi = (split_heads(x[item], heads, False)[None] for x in (q, k, v))
            seen = connectivity.attention(qi, ki, vi, mask, *orders)
            out[item] = seen[0].transpose(0, 1).flatten(1)
        return out

    def _orders(self, queries: int, keys: int, device: torch.device) -> tuple[Tensor, Tensor] | None:
        """Positions of the masks' token order in q and in k; None for a call that is neither whole nor restricted."""
        order = self.source.order
        if queries == keys == self.source.tokens:
            return order.to(device), order.to(device)
        tokens = self.tokens
        if tokens is None or queries != len(tokens.active) or keys != len(tokens.keys):
            return None
        return (subset_order(order, tokens.active.cpu()).to(device), subset_order(order, tokens.keys.cpu()).to(device))

    def _restricted(self, mask: BlockMask, device: torch.device) -> BlockMask:
        """The mask for Active queries and Context keys (joint reuse in the middle layers)."""
        assert self.tokens is not None
        order = self.source.order.to(device)
        active = torch.zeros(self.source.tokens, dtype=torch.bool, device=device)
        context = active.clone()
        active[self.tokens.active.to(device)] = True
        context[self.tokens.keys.to(device)] = True
        return connectivity.restrict(mask, active[order], context[order])
