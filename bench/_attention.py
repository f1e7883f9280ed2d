"""One attention alone, at several densities: our kernel, dense attention, and other sparse ones where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from carnator.kernels import BlockMask, available_backends, block_sparse_attention
from torch import Tensor

from ._shapes import clock, random_mask

Row = dict[str, Any]
Attend = Callable[[], Tensor]
DENSITIES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def alone(tokens: int, heads: int, head_dim: int, device: str, dtype: torch.dtype, densities: Sequence[float] = DENSITIES,
          times: int = 5) -> tuple[list[Row], dict[str, str]]:
    """Milliseconds of one self-attention [1, heads, tokens, head_dim] per density, in turns; and why a method is missing.

    A row: density, dense (torch's best attention), ours (by the backend the pack picks), error (relative, ours against
    dense attention under the same mask, where that fits into memory), and "flex", "sparge" where they run.
    """
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, heads, tokens, head_dim, device=device, dtype=dtype) for _ in range(3))
    rows: list[Row] = []
    missing: dict[str, str] = dict(_kitchen())
    for density in densities:
        mask = random_mask(tokens, density, heads, device)
        runs: dict[str, Attend] = {"dense": lambda: F.scaled_dot_product_attention(q, k, v),
                                   "ours": lambda: block_sparse_attention(q, k, v, mask)}  # type: ignore[return-value] # noqa: B023
        for name, make in (("flex", flex), ("sparge", sparge)):
            if name in missing:
                continue
            try:
                runs[name] = make(q, k, v, mask)
                runs[name]()
            except Exception as error:  # an optional backend that does not run is a reason in the table, whatever it raises
                runs.pop(name, None)
                missing[name] = f"{type(error).__name__}: {error}".splitlines()[0][:160]
        row: Row = {"density": round(mask.density, 3), "error": _error(q, k, v, mask)}
        rows.append(row | {name: round(1e3 * s, 3) for name, s in in_turns(runs, device, times).items()})
    return rows, missing


def in_turns(runs: dict[str, Attend], device: str, times: int) -> dict[str, float]:
    """Median seconds of each, one after the other in every turn, after one warm-up."""
    now, found = clock(device), {name: [] for name in runs}  # type: dict[str, list[float]]
    for turn in range(times + 1):
        for name, run in runs.items():
            began = now()
            run()
            if turn:
                found[name].append(now() - began)
    return {name: sorted(values)[len(values) // 2] for name, values in found.items()}


def flex(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Attend:
    """FlexAttention on the same lists of blocks, compiled (uncompiled it ignores them and computes everything)."""
    from torch.nn.attention.flex_attention import BlockMask as FlexMask
    from torch.nn.attention.flex_attention import flex_attention

    counts, indices = mask.lists
    none = torch.zeros_like(counts)
    lists = FlexMask.from_kv_blocks(none, torch.zeros_like(indices, dtype=torch.int32), counts, indices.int(),
                                    BLOCK_SIZE=(mask.block_q, mask.block_k), seq_lengths=(q.shape[2], k.shape[2]))
    compiled = torch.compile(flex_attention)
    return lambda: compiled(q, k, v, block_mask=lists)  # type: ignore[no-any-return]


def sparge(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Attend:
    """SpargeAttn's block-sparse SageAttention2 (8-bit) under the same mask of 128 x 64 blocks. Raises ImportError."""
    from spas_sage_attn import block_sparse_sage2_attn_cuda  # type: ignore[import-not-found]

    kept = mask.kept.expand(q.shape[0], q.shape[1], -1, -1).to(torch.int8)
    return lambda: block_sparse_sage2_attn_cuda(q, k, v, mask_id=kept)  # type: ignore[no-any-return]


def _kitchen() -> dict[str, str]:
    """Comfy Kitchen's sparse attention chooses its own blocks, so that it cannot be timed on ours."""
    if importlib.util.find_spec("comfy_kitchen") is None:
        return {"kitchen": "comfy_kitchen is not installed"}
    import comfy_kitchen

    if not hasattr(comfy_kitchen, "sol_attn"):
        return {"kitchen": "this comfy_kitchen has no sparse attention"}
    return {"kitchen": "its sparse attention takes no list of blocks: it routes by itself"}


def backends(device: str) -> dict[str, str]:
    """Our own backends on this device: name -> "" or why not."""
    return available_backends(device)


def _error(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> float | None:
    """Relative error of one head against dense attention under the mask; None past 8,192 tokens (the mask is N x N)."""
    if q.shape[2] > 8192:
        return None
    one = BlockMask(mask.kept[:, :1], mask.seq_q, mask.seq_k, mask.block_q, mask.block_k)
    head = [x[:, :1].float() for x in (q, k, v)]
    right = block_sparse_attention(*head, one, backend="dense")
    ours = block_sparse_attention(*(x[:, :1] for x in (q, k, v)), one)
    assert isinstance(right, Tensor) and isinstance(ours, Tensor)
    return round(float((ours.float() - right).norm() / right.norm()), 6)
