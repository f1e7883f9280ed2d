"""Where attention goes: mass per (query block, key block), and the smallest block sets that cover a share of it."""

from __future__ import annotations

import torch
from torch import Tensor

from .masks import block_lengths, count_blocks

# Score elements in memory at a time: cache-sized on a CPU, launch-bound below that elsewhere.
CHUNK_CPU = 1 << 20
CHUNK_GPU = 1 << 25


def sample_rows(length: int, block: int, rows: int | None, device: torch.device | str | None = None) -> Tensor:
    """Indices of `rows` evenly spaced tokens of every block of `block` tokens, ascending, int64.

    A block with fewer tokens gives all of them; only the last block can, so in the sampled sequence block i is
    rows i*rows .. (i+1)*rows - 1. None takes every token.
    """
    if rows is None or rows >= block:
        return torch.arange(length, device=device)
    starts = torch.arange(count_blocks(length, block), device=device)[:, None] * block
    within = (torch.arange(rows, device=device) * block + block // 2) // rows
    tail = int(block_lengths(length, block)[-1])
    taken = min(rows, tail)
    last = (torch.arange(taken, device=device) * tail + tail // 2) // taken
    return torch.cat([(starts[:-1] + within).reshape(-1), starts[-1] + last])


def mass(q: Tensor, k: Tensor, block_q: int, block_k: int, rows: int | None, scale: float) -> Tensor:
    """Attention mass [B, H, nq, nk] float32 from q [B, H, Nq, D] and k [B, H, Nk, D]; every row sums to one.

    The mean over the sampled rows of a query block of softmax(scale q k^T) summed over each key block. Works through
    the rows in chunks, so that nothing of N x N is ever in memory.
    """
    batch, heads, length, width = q.shape
    per_block = block_q if rows is None else min(rows, block_q)
    # half-precision products are slow on a CPU; bfloat16 ones are not, and their error is far below a block's share
    work = torch.float32 if q.dtype == torch.float16 and q.device.type == "cpu" else q.dtype
    sampled = (q[:, :, sample_rows(length, block_q, rows, q.device)] * scale).to(work).flatten(0, 1)
    keys = k.to(work).flatten(0, 1).transpose(1, 2)
    limit = CHUNK_CPU if q.device.type == "cpu" else CHUNK_GPU
    step = max(1, limit // (per_block * keys.shape[-1])) * per_block
    parts = []
    for head in range(batch * heads):
        for part in sampled[head].split(step):
            per_key_block = _block_mass((part @ keys[head]).float(), block_k)
            parts.append(_mean_rows(per_key_block, per_block))
    return torch.cat(parts).view(batch, heads, count_blocks(length, block_q), -1)


def _block_mass(scores: Tensor, block_k: int) -> Tensor:
    """Softmax mass of every key block, [rows, nk], from scores [rows, Nk], which are overwritten."""
    weights = scores.sub_(scores.amax(-1, keepdim=True)).exp_()
    whole = weights.shape[-1] // block_k * block_k
    sums = weights[:, :whole].unflatten(-1, (-1, block_k)).sum(-1)
    if whole < weights.shape[-1]:
        sums = torch.cat([sums, weights[:, whole:].sum(-1, keepdim=True)], -1)
    return sums / sums.sum(-1, keepdim=True)


def _mean_rows(values: Tensor, per_block: int) -> Tensor:
    """Mean over consecutive groups of `per_block` rows; the last group may be short."""
    whole = values.shape[0] // per_block * per_block
    means = values[:whole].unflatten(0, (-1, per_block)).mean(1)
    return means if whole == values.shape[0] else torch.cat([means, values[whole:].mean(0, keepdim=True)])


def select(mass: Tensor, fraction: float = 0.9) -> Tensor:
    """The smallest set of key blocks per row that covers `fraction` of the row's mass: bool, the shape of mass.

    Blocks are taken in descending order of mass (C.3), at least one a row. Raises ValueError unless 0 < fraction <= 1.
    """
    if not 0.0 < fraction <= 1.0:
        raise ValueError(f"select: fraction must be in (0, 1], got {fraction}")
    value, order = mass.float().sort(dim=-1, descending=True)
    before = value.cumsum(-1) - value
    needed = before < fraction * value.sum(-1, keepdim=True)
    needed[..., 0] = True
    return torch.zeros_like(mass, dtype=torch.bool).scatter_(-1, order, needed)
