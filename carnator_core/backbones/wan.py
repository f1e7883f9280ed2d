"""Wan 2.1 and 2.2 text-to-video transformers (16 and 48 channels, per-token timesteps)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .base import Attention, Grid, Tokens, gather


def _modulation(block: Any, e: Tensor, tokens: int, dtype: torch.dtype) -> list[Tensor]:
    """The six modulation vectors, each [B, 1 or tokens, D]. e is [B, 6, D] or, per time step, [B, R, 6, D]."""
    table = block.modulation.to(device=e.device, dtype=dtype)
    if e.ndim < 4:
        return list((table + e).chunk(6, dim=1))
    parts = (table.unsqueeze(0) + e).unbind(2)
    rows = parts[0].shape[1]
    if rows == 1 or rows == tokens:
        return list(parts)
    repeat = -(-tokens // rows)
    return [p.repeat_interleave(repeat, dim=1)[:, :tokens] for p in parts]


def _rotate(x: Tensor, freqs: Tensor) -> Tensor:
    """Rotary embedding as the host has it: x [B, N, heads, d], freqs [1, N, 1, d/2, 2, 2]."""
    pairs = x.to(dtype=freqs.dtype).reshape(*x.shape[:-1], -1, 1, 2)
    out = freqs[..., 0] * pairs[..., 0] + freqs[..., 1] * pairs[..., 1]
    return out.reshape(x.shape).type_as(x)


class Wan:
    """Adapter for `comfy.ldm.wan.model.WanModel` and what derives from it without changing the block."""

    name = "Wan"

    def __init__(self, patch: Sequence[int] = (1, 2, 2)) -> None:
        t, h, w = patch
        self.patch: Grid = (t, h, w)

    def blocks(self, model: Any) -> Sequence[Any]:
        return list(model.blocks)

    def restricted(self, block: Any, hidden: Tensor, call: dict[str, Any], tokens: Tokens, attention: Attention) -> Tensor:
        whole = call["img"].shape[1]
        keys, active, place = tokens.keys, tokens.active, tokens.place
        m = _modulation(block, call["vec"], whole, hidden.dtype)
        m_keys, m_active = [gather(p, keys) for p in m[:2]], [gather(p, active) for p in m[2:]]
        sa, b = block.self_attn, hidden.shape[0]
        heads, dim = sa.num_heads, sa.head_dim
        freqs = call["pe"]

        y = torch.addcmul(m_keys[0], block.norm1(hidden), 1 + m_keys[1])
        q = _rotate(sa.norm_q(sa.q(y.index_select(1, place))).view(b, -1, heads, dim), gather(freqs, active))
        k = _rotate(sa.norm_k(sa.k(y)).view(b, -1, heads, dim), gather(freqs, keys))
        y = attention(q.flatten(2), k.flatten(2), sa.v(y), heads=heads, transformer_options=call["transformer_options"])
        x = torch.addcmul(hidden.index_select(1, place), sa.o(y), m_active[0])
        x = x + block.cross_attn(block.norm3(x), call["txt"], transformer_options=call["transformer_options"])
        y = block.ffn(torch.addcmul(m_active[1], block.norm2(x), 1 + m_active[2]))
        return torch.addcmul(x, y, m_active[3])
