"""The oracle: block-sparse attention and attention mass in plain torch, float32, with the N x N matrix in memory."""

from __future__ import annotations

import torch
from torch import Tensor

from .masks import BlockMask


def attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float) -> tuple[Tensor, Tensor]:
    """(out [B, H, Nq, D] in q's dtype, natural-log LSE [B, H, Nq] float32): softmax(scale q k^T) v over kept blocks.

    Computed in float32 (float64 for float64 input). A query block without a kept block gives zeros and an LSE of -inf.
    """
    work = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = (q.to(work) @ k.to(work).transpose(-1, -2)) * scale
    scores = scores.masked_fill(~mask.tokens(), float("-inf"))
    lse = scores.logsumexp(-1)
    weights = torch.where(lse.isfinite()[..., None], (scores - lse[..., None]).exp(), 0.0)
    return (weights @ v.to(work)).to(q.dtype), lse.float()


def mass(q: Tensor, k: Tensor, block_q: int, block_k: int, scale: float, rows: Tensor | None = None) -> Tensor:
    """Attention mass [B, H, nq, nk] float32: per query block the mean over its rows of the softmax mass of a key block.

    rows: token indices of the query rows that count, ascending; all rows by default. A query block with no such row
    gives zeros.
    """
    weights = ((q.float() @ k.float().transpose(-1, -2)) * scale).softmax(-1)
    length = q.shape[2]
    per_key_block = torch.stack([part.sum(-1) for part in weights.split(block_k, -1)], -1)
    counted = torch.zeros(length, device=q.device)
    counted[torch.arange(length, device=q.device) if rows is None else rows] = 1.0
    sums = torch.stack([part.sum(-2) for part in (per_key_block * counted[:, None]).split(block_q, -2)], -2)
    lives = torch.stack([part.sum() for part in counted.split(block_q)])
    return sums / lives.clamp_min(1.0)[:, None]
