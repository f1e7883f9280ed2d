"""Block-sparse flash attention, forward: one program per (query block, batch x head), online softmax over its list.

After Dao's FlashAttention-2 (arXiv 2307.08691), with the loop over key blocks replaced by a loop over the mask's list.
Compiled ahead of time for each chip (`bench/kernel.py` shows registers, spills and shared memory), which decided:

- The ragged tail block comes first, not after the loop: peeled after it, it costs 240 to 320 bytes of spills on
  sm_80/89/120. Lists ascend, so only the last entry can be the tail.
- SPLIT: on sm_80/86/89/120 Triton lays out a chained product as [1, warps] when block_q < head_dim, and the softmax
  goes across warps through shared memory; two accumulators of head_dim / 2 restore [warps, 1].
- Offsets inside a key tile are computed once, as int32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..masks import BlockMask
from .tiles import forward_tile

LOG2_E = 1.4426950408889634


@triton.jit
def _step(acc, acc2, peak, total, q, keys, values, first, key_offset, value_offset, stride_k, stride_v, seq_k, scale,  # type: ignore[no-untyped-def]
          HEAD_DIM: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr, SPLIT: tl.constexpr):
    """Online softmax over the keys first .. first + BLOCK_K - 1. scale includes log2(e); peak and total are base-2."""
    kp = keys + tl.cast(first, tl.int64) * stride_k + key_offset
    vp = values + tl.cast(first, tl.int64) * stride_v + value_offset
    if MASKED:
        live = first + tl.arange(0, BLOCK_K) < seq_k
        k = tl.load(kp, mask=live[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        s = tl.where(live[None, :], s, float("-inf"))
        peak_new = tl.maximum(peak, tl.max(s, 1) * scale)
        # a tile of padding alone must keep the exponent finite
        peak_use = tl.where(peak_new == float("-inf"), 0.0, peak_new)
    else:
        k = tl.load(kp)
        s = tl.dot(q, tl.trans(k), input_precision="ieee")
        peak_new = tl.maximum(peak, tl.max(s, 1) * scale)
        peak_use = peak_new
    p = tl.math.exp2(s * scale - peak_use[:, None])
    decay = tl.math.exp2(peak - peak_use)
    total = total * decay + tl.sum(p, 1)
    acc = acc * decay[:, None]
    if MASKED:
        v = tl.load(vp, mask=live[:, None], other=0.0)
    else:
        v = tl.load(vp)
    p = p.to(v.dtype)
    acc = tl.dot(p, v, acc, input_precision="ieee")
    if SPLIT:
        acc2 = acc2 * decay[:, None]
        if MASKED:
            v = tl.load(vp + HEAD_DIM // 2, mask=live[:, None], other=0.0)
        else:
            v = tl.load(vp + HEAD_DIM // 2)
        acc2 = tl.dot(p, v, acc2, input_precision="ieee")
    return acc, acc2, peak_new, total


@triton.jit
def forward_kernel(Q, K, V, OUT, LSE, COUNTS, INDICES,  # type: ignore[no-untyped-def]
                   q_batch, q_head, q_token, k_batch, k_head, k_token, v_batch, v_head, v_token,
                   o_batch, o_head, o_token, mask_batch, mask_head,
                   heads, seq_q, seq_k, row_blocks, width, scale,
                   HEAD_DIM: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
                   NEED_LSE: tl.constexpr, SPLIT: tl.constexpr, STAGES: tl.constexpr):
    """OUT [B, H, seq_q, HEAD_DIM] and LSE [B, H, seq_q]; grid (row_blocks, B * H).

    COUNTS int32 [.., row_blocks], INDICES int16/int32 [.., row_blocks, width], ascending; mask_batch and mask_head are
    strides in rows, 0 where one mask serves all. Other strides are in elements, the last dimension is contiguous.
    """
    block = tl.program_id(0)
    item = tl.program_id(1)
    b = (item // heads).to(tl.int64)
    h = (item % heads).to(tl.int64)
    listed = b * mask_batch + h * mask_head + block
    VALUE_DIM: tl.constexpr = HEAD_DIM // 2 if SPLIT else HEAD_DIM

    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    live = rows < seq_q
    rows = rows.to(tl.int64)
    q = tl.load(Q + b * q_batch + h * q_head + rows[:, None] * q_token + tl.arange(0, HEAD_DIM)[None, :],
                mask=live[:, None], other=0.0)
    keys = K + b * k_batch + h * k_head
    values = V + b * v_batch + h * v_head
    key_offset = tl.arange(0, BLOCK_K)[:, None] * k_token + tl.arange(0, HEAD_DIM)[None, :]
    value_offset = tl.arange(0, BLOCK_K)[:, None] * v_token + tl.arange(0, VALUE_DIM)[None, :]

    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    acc = tl.zeros([BLOCK_Q, VALUE_DIM], tl.float32)
    acc2 = tl.zeros([BLOCK_Q, VALUE_DIM], tl.float32) if SPLIT else 0.0

    count = tl.load(COUNTS + listed)
    entries = INDICES + listed * width
    last = tl.load(entries + tl.maximum(count - 1, 0)).to(tl.int32)
    ragged = (count > 0) & ((last + 1) * BLOCK_K > seq_k)
    if ragged:
        first = last * BLOCK_K
        acc, acc2, peak, total = _step(acc, acc2, peak, total, q, keys, values, first, key_offset, value_offset,
                                       k_token, v_token, seq_k, scale, HEAD_DIM, BLOCK_K, True, SPLIT)
    whole = tl.where(ragged, count - 1, count)
    for i in tl.range(0, whole, num_stages=STAGES):
        first = tl.load(entries + i).to(tl.int32) * BLOCK_K
        acc, acc2, peak, total = _step(acc, acc2, peak, total, q, keys, values, first, key_offset, value_offset,
                                       k_token, v_token, seq_k, scale, HEAD_DIM, BLOCK_K, False, SPLIT)

    norm = tl.where(total > 0, total, 1.0)[:, None]
    out = OUT + b * o_batch + h * o_head + rows[:, None] * o_token + tl.arange(0, VALUE_DIM)[None, :]
    tl.store(out, (acc / norm).to(OUT.dtype.element_ty), mask=live[:, None])
    if SPLIT:
        tl.store(out + VALUE_DIM, (acc2 / norm).to(OUT.dtype.element_ty), mask=live[:, None])
    if NEED_LSE:
        tl.store(LSE + item.to(tl.int64) * seq_q + rows, (peak + tl.math.log2(total)) * 0.6931471805599453, mask=live)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float,
              need_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """(out [B, H, Nq, D] in q's dtype, natural-log LSE [B, H, Nq] float32 or None) over the mask's kept blocks.

    D 64 or 128, query blocks of 64 or 128, key blocks a multiple of 64, float16 or bfloat16 (float32 in the
    interpreter), accumulated in float32. A query block without a kept block gives zeros and an LSE of -inf.
    """
    batch, heads, seq_q, head_dim = q.shape
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    tile = forward_tile(q.device, head_dim, mask.block_q)
    counts, indices = mask.with_key_blocks(tile.keys).lists
    row_blocks, width = indices.shape[-2:]
    # the layout of q (tokens or heads outermost) is what the caller goes on with
    out = torch.empty_like(q)
    if out.stride(-1) != 1:
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, heads, seq_q, dtype=torch.float32, device=q.device) if need_lse else None
    with torch.cuda.device(q.device) if q.is_cuda else torch.no_grad():
        forward_kernel[(row_blocks, batch * heads)](
            q, k, v, out, counts if lse is None else lse, counts, indices,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
            0 if counts.shape[0] == 1 else counts.stride(0), 0 if counts.shape[1] == 1 else counts.stride(1),
            heads, seq_q, k.shape[2], row_blocks, width, scale * LOG2_E,
            HEAD_DIM=head_dim, BLOCK_Q=mask.block_q, BLOCK_K=tile.keys, NEED_LSE=need_lse,
            SPLIT=tile.split, STAGES=tile.stages, num_warps=tile.warps, num_stages=tile.stages)
    return out, lse
