"""Attention mass per (row block, key block) in one pass over the scores: no values, no normaliser from elsewhere."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..masks import count_blocks
from .forward import LOG2_E

ROWS, KEYS, WARPS, STAGES = 128, 64, 8, 2
# Bytes of block sums at a time; heads go through in as many launches as that takes.
SCRATCH = 1 << 27


@triton.jit
def scores_kernel(Q, K, SUMS, LSE, q_batch, q_head, q_token, k_batch, k_head, k_token,  # type: ignore[no-untyped-def]
                  heads, seq_q, seq_k, padded, key_blocks, scale,
                  HEAD_DIM: tl.constexpr, ROWS: tl.constexpr, BLOCK_K: tl.constexpr, STAGES: tl.constexpr):
    """SUMS[item, key block, row] = log2 of the block's sum of 2^(scale q k), LSE[item, row] of all of them.

    grid (ceil(seq_q / ROWS), B * H); scale includes log2(e); both outputs float32, rows padded to `padded`.
    """
    item = tl.program_id(1)
    b = (item // heads).to(tl.int64)
    h = (item % heads).to(tl.int64)
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    q = tl.load(Q + b * q_batch + h * q_head + rows.to(tl.int64)[:, None] * q_token + tl.arange(0, HEAD_DIM)[None, :],
                mask=(rows < seq_q)[:, None], other=0.0)
    keys = K + b * k_batch + h * k_head
    key_offset = tl.arange(0, BLOCK_K)[:, None] * k_token + tl.arange(0, HEAD_DIM)[None, :]
    sums = SUMS + item.to(tl.int64) * key_blocks * padded + rows
    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    whole = seq_k // BLOCK_K
    if whole * BLOCK_K < seq_k:  # the ragged tail first, as in the forward kernel
        live = whole * BLOCK_K + tl.arange(0, BLOCK_K) < seq_k
        k = tl.load(keys + tl.cast(whole * BLOCK_K, tl.int64) * k_token + key_offset, mask=live[:, None], other=0.0)
        s = tl.where(live[None, :], tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        peak = tl.max(s, 1)
        total = tl.sum(tl.math.exp2(s - peak[:, None]), 1)
        tl.store(sums + whole * padded, peak + tl.math.log2(total))
    for block in tl.range(0, whole, num_stages=STAGES):
        k = tl.load(keys + tl.cast(block * BLOCK_K, tl.int64) * k_token + key_offset)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        peak_new = tl.maximum(peak, tl.max(s, 1))
        part = tl.sum(tl.math.exp2(s - peak_new[:, None]), 1)
        tl.store(sums + block * padded, peak_new + tl.math.log2(part))
        total = total * tl.math.exp2(peak - peak_new) + part
        peak = peak_new
    tl.store(LSE + item.to(tl.int64) * padded + rows, peak + tl.math.log2(total))


@triton.jit
def reduce_kernel(SUMS, LSE, MASS, seq_q, padded, row_blocks, key_blocks, per_block,  # type: ignore[no-untyped-def]
                  ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """MASS[item, row block, key block] = mean over the block's `per_block` rows of 2^(SUMS - LSE).

    grid (row_blocks, ceil(key_blocks / COLUMNS), items); ROWS is the power of two that holds per_block.
    """
    block = tl.program_id(0)
    item = tl.program_id(2).to(tl.int64)
    within = tl.arange(0, ROWS)
    rows = block * per_block + within
    live = (within < per_block) & (rows < seq_q)
    keys = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    ok = (keys < key_blocks)[:, None] & live[None, :]
    sums = tl.load(SUMS + (item * key_blocks + keys.to(tl.int64))[:, None] * padded + rows[None, :], mask=ok,
                   other=float("-inf"))
    lse = tl.load(LSE + item * padded + rows, mask=live, other=0.0)
    p = tl.where(ok, tl.math.exp2(sums - lse[None, :]), 0.0)
    count = tl.sum(live.to(tl.float32), 0)
    tl.store(MASS + (item * row_blocks + block) * key_blocks + keys, tl.sum(p, 1) / count, mask=keys < key_blocks)


def mass(q: Tensor, k: Tensor, per_block: int, block_k: int, scale: float) -> Tensor:
    """Mass [B, H, ceil(Nq / per_block), ceil(Nk / block_k)] float32 of the (sampled) query rows q [B, H, Nq, D].

    k is [B, H, Nk, D]; D 64 or 128, block_k a multiple of 64, float16 or bfloat16 (float32 in the interpreter).
    """
    batch, heads, seq_q, head_dim = q.shape
    seq_k = k.shape[2]
    q, k = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k))
    row_blocks, key_blocks = count_blocks(seq_q, per_block), count_blocks(seq_k, KEYS)
    padded = count_blocks(seq_q, ROWS) * ROWS
    out = torch.empty(batch, heads, row_blocks, key_blocks, device=q.device)
    step = max(1, SCRATCH // (4 * batch * key_blocks * padded))
    with torch.cuda.device(q.device) if q.is_cuda else torch.no_grad():
        for first in range(0, heads, step):
            queries, keys = q[:, first : first + step], k[:, first : first + step]
            count = queries.shape[1]
            sums = torch.empty(batch * count, key_blocks, padded, device=q.device)
            lse = torch.empty(batch * count, padded, device=q.device)
            part = torch.empty(batch, count, row_blocks, key_blocks, device=q.device)
            scores_kernel[(padded // ROWS, batch * count)](
                queries, keys, sums, lse, *queries.stride()[:3], *keys.stride()[:3], count, seq_q, seq_k, padded,
                key_blocks, scale * LOG2_E, HEAD_DIM=head_dim, ROWS=ROWS, BLOCK_K=KEYS, STAGES=STAGES,
                num_warps=WARPS, num_stages=STAGES)
            reduce_kernel[(row_blocks, count_blocks(key_blocks, 32), batch * count)](
                sums, lse, part, seq_q, padded, row_blocks, key_blocks, per_block,
                ROWS=triton.next_power_of_2(per_block), COLUMNS=32, num_warps=4)
            out[:, first : first + step] = part
    group = block_k // KEYS
    if group == 1:
        return out
    return torch.nn.functional.pad(out, (0, -key_blocks % group)).unflatten(-1, (-1, group)).sum(-1)
