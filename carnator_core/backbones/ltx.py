"""LTX-Video transformers: fractional positions, attention masks, blocks that write into their input."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from .base import Attention, Grid, Tokens, gather


def _rms(x: Tensor) -> Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), eps=1e-6)


def _cut(pe: Any, index: Tensor, tokens: int) -> Any:
    """Rotary tables of some tokens. Hosts differ in the layout; the token axis is the one of that length."""
    if isinstance(pe, tuple | list):
        return type(pe)(_cut(p, index, tokens) for p in pe)
    if isinstance(pe, Tensor) and pe.ndim >= 3:
        axis = 1 if pe.shape[1] == tokens else 2
        return pe.index_select(axis, index)
    return pe


def _has_key_positions(attention: torch.nn.Module) -> bool:
    """Whether the host's attention takes positions for the keys apart from those for the queries."""
    return "k_pe" in signature(attention.forward).parameters


class Ltx:
    """Adapter for `comfy.ldm.lightricks.model.LTXVModel` (video only)."""

    name = "LTX"
    patch: Grid = (1, 1, 1)

    def blocks(self, model: Any) -> Sequence[Any]:
        return list(model.transformer_blocks)

    def restricted(self, block: Any, hidden: Tensor, call: dict[str, Any], tokens: Tokens, attention: Attention) -> Tensor:
        keys, active, place = tokens.keys, tokens.active, tokens.place
        table, vec = block.scale_shift_table, call["vec"]
        b, whole = hidden.shape[0], call["img"].shape[1]
        ada = table[None, None, :6].to(device=hidden.device, dtype=hidden.dtype) + vec.reshape(
            b, vec.shape[1], table.shape[0], -1)[:, :, :6, :]
        shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = ada.unbind(dim=2)
        sa, options = block.attn1, call["transformer_options"]

        y = _rms(hidden) * (1 + gather(scale, keys)) + gather(shift, keys)
        key_pe = _cut(call["pe"], keys, whole)
        if _has_key_positions(sa):
            y = sa(y.index_select(1, place), context=y, pe=_cut(call["pe"], active, whole), k_pe=key_pe,
                   transformer_options=options)
        else:  # ComfyUI 0.3.64: queries and keys have the same positions, so all keys ask, and the active ones are heard
            y = sa(y, pe=key_pe, transformer_options=options).index_select(1, place)
        x = hidden.index_select(1, place) + y * gather(gate, active)
        x = x + block.attn2(x, context=call["txt"], mask=call.get("attention_mask"), transformer_options=options)
        y = _rms(x) * (1 + gather(scale_mlp, active)) + gather(shift_mlp, active)
        return x + block.ff(y) * gather(gate_mlp, active)
