"""Reading a forward: attention maps for the Evidence Region, hidden states for the region-restricted layers.

Everything is attached to one model call through its own copy of `transformer_options`, and gone afterwards.
A block's first attention is self-attention and its second cross-attention, in every family served here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from . import evidence
from .backbones.base import Backbone, Grid, Tokens

log = logging.getLogger("carnator")
Replace = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]


def branches(options: dict[str, Any], batch: int) -> list[int]:
    """Guidance branch (0 conditional, 1 unconditional) of each item in a model call's batch."""
    kinds = options.get("cond_or_uncond") or [0]
    return [kind for kind in kinds for _ in range(batch // len(kinds))]


def split_heads(x: Tensor, heads: int, skip_reshape: bool) -> Tensor:
    """Attention input of one item, [N, heads * d] or (skip_reshape) [heads, N, d] -> [heads, N, d]."""
    return x if skip_reshape else x.view(x.shape[0], heads, -1).transpose(0, 1)


def slot_bias(mask: Tensor | None, item: int, slots: int) -> Tensor | None:
    """What an attention mask adds to the logits of each text slot, [L] float32; None where there is none for them.

    mask: [.., N or 1, L], of all items or one, bool (heard or not) or added to the logits, as the host hands it on. It is
    taken to be the same for all tokens, as masks of the text's padding are.
    """
    if mask is None or mask.shape[-1] != slots:
        return None
    row = (mask[item if mask.shape[0] > item else 0] if mask.ndim > 2 else mask).reshape(-1, slots)[0]
    if row.dtype == torch.bool:
        return torch.zeros(slots, device=row.device).masked_fill(~row, -torch.inf)
    return row.float()


@dataclass
class AttentionReader:
    """Collects the conditional branch's maps in some layers of one forward, and turns them into Evidence Regions.

    columns: entity -> text slots. layers: where to read. Nothing of size N x N is ever made, but two layers' queries and keys
    are kept until `regions`; where there is no memory for that there are no regions, and the render goes on.
    """

    columns: dict[str, tuple[int, ...]]
    layers: Sequence[int]
    cross: dict[str, list[Tensor]] = field(default_factory=dict)
    queries: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attention(self, layer: int, order: int, q: Tensor, k: Tensor, heads: int, options: dict[str, Any],
                  skip_reshape: bool, mask: Tensor | None = None) -> None:
        """The order-th attention call (from 1) of a block, before it runs."""
        try:
            self._attention(layer, order, q, k, heads, options, skip_reshape, mask)
        except torch.cuda.OutOfMemoryError:
            self._give_up()

    def _give_up(self) -> None:
        log.warning("Carnator: no memory to read the attention; this render has no Evidence Regions.")
        self.layers = ()
        self.cross.clear()
        self.queries.clear()

    def _attention(self, layer: int, order: int, q: Tensor, k: Tensor, heads: int, options: dict[str, Any],
                   skip_reshape: bool, mask: Tensor | None) -> None:
        if layer not in self.layers or order > 2:
            return
        kinds = branches(options, q.shape[0])
        if 0 not in kinds:
            return
        item = kinds.index(0)
        qi, ki = split_heads(q[item], heads, skip_reshape), split_heads(k[item], heads, skip_reshape)
        if order == 1:
            if len(self.queries) < 2:  # of a batch a copy: a view would keep all of it
                self.queries.append((qi.clone(), ki.clone()) if q.shape[0] > 1 else (qi, ki))
            return
        bias = slot_bias(mask, item, ki.shape[1])
        for entity, slots in self.columns.items():
            inside = [s for s in slots if s < ki.shape[1]]
            if inside:
                self.cross.setdefault(entity, []).append(evidence.cross_response(qi, ki, inside, bias=bias))

    def regions(self, grid: Grid) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Entity -> Evidence Region [T, H, W] bool, and entity -> support F [T, H, W] in 0..1."""
        regions: dict[str, Tensor] = {}
        supports: dict[str, Tensor] = {}
        for entity, maps in list(self.cross.items()):
            response = torch.stack(maps).mean(0)
            if response.numel() != grid[0] * grid[1] * grid[2] or not self.queries:
                continue
            try:
                found = evidence.locate(response, self.queries, grid)
            except torch.cuda.OutOfMemoryError:
                self._give_up()
                return {}, {}
            regions[entity], supports[entity] = found.region.cpu(), found.soft.cpu()
        return regions, supports


@dataclass
class Window:
    """The region-restricted layers first..last-1 of one run, with what the last full step left for the others.

    At a full step the hidden states of the context tokens, and of all tokens at the end, are kept as differences to
    the window's start; at a restricted step only active tokens are computed and the others get these differences
    added (section 3.3, "preserve their cached computation").
    """

    backbone: Backbone
    blocks: Sequence[Any]
    first: int
    last: int
    tokens: Tokens
    attention: Callable[..., Tensor]
    kept: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    ended: dict[int, Tensor] = field(default_factory=dict)
    _start: Tensor | None = None
    _hidden: Tensor | None = None

    def nbytes(self, width: int, tokens: int, element: int = 2) -> int:
        """Bytes that both branches' caches take, of a model of this width on so many tokens, with `element` bytes a value."""
        return 2 * element * width * ((self.last - self.first - 1) * len(self.tokens.keys) + 2 * tokens)

    def ready(self, kinds: Sequence[int]) -> bool:
        """Whether a full step has filled the caches of these branches."""
        return all(kind in self.ended for kind in kinds)

    def full(self, layer: int, call: dict[str, Any], original: Callable[..., dict[str, Any]]) -> dict[str, Any]:
        """A block of the window in a full step: computed as ever, its hidden states noted."""
        kinds = branches(call["transformer_options"], call["img"].shape[0])
        tokens = self.tokens = self.tokens.moved(call["img"].device)
        if layer == self.first:
            self._start = call["img"].clone()
        elif self._start is not None:
            change = (call["img"] - self._start).index_select(1, tokens.keys)
            for item, kind in enumerate(kinds):
                self.kept[(layer, kind)] = change[item]
        out = original(call)
        if layer == self.last - 1 and self._start is not None:
            change = out["img"] - self._start
            for item, kind in enumerate(kinds):
                self.ended[kind] = change[item]
            self._start = None
        return out

    def restricted(self, layer: int, call: dict[str, Any]) -> dict[str, Any]:
        """A block of the window in a restricted step: the active tokens only."""
        kinds, x = branches(call["transformer_options"], call["img"].shape[0]), call["img"]
        tokens = self.tokens = self.tokens.moved(x.device)
        if layer == self.first or self._start is None:
            self._start = x.clone()
            self._hidden = x.index_select(1, tokens.keys)
        assert self._hidden is not None
        active = self.backbone.restricted(self.blocks[layer], self._hidden, call, tokens, self.attention)
        if layer < self.last - 1:
            base = self._start.index_select(1, tokens.keys)
            change = torch.stack([self.kept[(layer + 1, kind)] for kind in kinds]).to(base)
            self._hidden = (base + change).index_copy(1, tokens.place, active)
            return {"img": x}
        whole = self._start + torch.stack([self.ended[kind] for kind in kinds]).to(self._start)
        self._start = self._hidden = None
        return {"img": whole.index_copy(1, tokens.active, active)}
