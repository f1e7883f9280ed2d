"""The public surface: shapes, validation, and the choice of a backend. Backends are imported when first used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from . import recording
from .masks import BLOCK_K, BLOCK_Q, BlockMask
from .recording import select

__all__ = ["available_backends", "block_sparse_attention", "mass", "select", "why_not"]

BACKENDS = ("triton", "gather", "dense", "reference")


def block_sparse_attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, *, scale: float | None = None,
                           return_lse: bool = False, backend: str = "auto") -> Tensor | tuple[Tensor, Tensor]:
    """softmax(scale q k^T) v over the key blocks that mask keeps; [B, H, Nq, D] in q's dtype.

    q [B, H, Nq, D], k and v [B, H, Nk, D], one floating dtype and device, any strides with the last one 1 or not.
    scale defaults to D ** -0.5. With return_lse also the natural-log normaliser [B, H, Nq], float32. A query block
    with no kept block attends to its own blocks (`BlockMask.filled`), so that nothing is ever NaN.
    backend: "auto", or one of `available_backends()`. A mask that keeps everything is plain dense attention.
    Raises TypeError or ValueError, naming what was given, for inputs that do not fit together, and RuntimeError when
    the backend asked for cannot run them.
    """
    _check(q, k, v, mask)
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(f"block_sparse_attention: no backend {backend!r}; there are: auto, {', '.join(BACKENDS)}")
    scale = _scale("block_sparse_attention", scale, q)
    mask = mask.to(q.device).filled
    if backend == "auto":
        if mask.is_full and not return_lse:
            return F.scaled_dot_product_attention(q, k, v, scale=scale)
        backend = "triton" if not why_not("triton", q, mask) else "gather"
    elif reason := why_not(backend, q, mask, return_lse):
        raise RuntimeError(f"block_sparse_attention: backend {backend!r} cannot run this: {reason}")
    out, lse = _RUN[backend](q, k, v, mask, scale, return_lse)
    if not return_lse:
        return out
    assert lse is not None
    return out, lse


def available_backends(device: torch.device | str | None = None) -> dict[str, str]:
    """Backend -> "" when it can run on the device, else the reason why not. Default: the GPU when there is one."""
    where = torch.device(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")
    reasons = dict.fromkeys(BACKENDS, "")
    reasons["triton"] = _triton_reason(where)
    return reasons


def why_not(backend: str, q: Tensor, mask: BlockMask, return_lse: bool = False) -> str:
    """"" when the backend can run this call, else the reason in words."""
    if backend == "dense" and return_lse:
        return "torch's dense attention returns no log-sum-exp"
    if backend != "triton":
        return ""
    if reason := _triton_reason(q.device):
        return reason
    return str(_triton().unsupported(q.dtype, q.shape[-1], mask.block_q, mask.block_k, q.device))


def mass(q: Tensor, k: Tensor, block_q: int = BLOCK_Q, block_k: int = BLOCK_K, *, rows: int | None = 16,
         scale: float | None = None, backend: str = "auto") -> Tensor:
    """Attention mass per (query block, key block), [B, H, nq, nk] float32; every row sums to one.

    q [B, H, Nq, D], k [B, H, Nk, D]. rows: query rows sampled evenly from every query block, all of them for None;
    a quarter of a block loses nothing measurable (it covers 0.9495 of the mass where all rows cover 0.95). Needs
    neither the values nor the attention backend's normaliser, and no N x N memory. Raises as block_sparse_attention.
    """
    _check_pair("mass", q, k)
    if rows is not None and rows < 1:
        raise ValueError(f"mass: rows must be positive or None, got {rows}")
    if min(block_q, block_k) < 1:
        raise ValueError(f"mass: blocks must be positive, got {block_q} x {block_k}")
    if backend not in ("auto", "triton", "torch"):
        raise ValueError(f"mass: no backend {backend!r}; there are: auto, triton, torch")
    scale = _scale("mass", scale, q)
    reason = _triton_reason(q.device) or _triton().unsupported_mass(q.dtype, q.shape[-1], block_k, q.device)
    if backend == "triton" and reason:
        raise RuntimeError(f"mass: backend 'triton' cannot run this: {reason}")
    if backend == "torch" or reason:
        return recording.mass(q, k, block_q, block_k, rows, scale)
    sampled = q[:, :, recording.sample_rows(q.shape[2], block_q, rows, q.device)]
    per_block = block_q if rows is None else min(rows, block_q)
    return _triton().mass(sampled, k, per_block, block_k, scale)


def _check(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> None:
    name = "block_sparse_attention"
    _check_pair(name, q, k)
    if not isinstance(mask, BlockMask):
        raise TypeError(f"{name}: mask must be a BlockMask, got {type(mask).__name__}")
    if not isinstance(v, Tensor) or v.shape != k.shape or v.dtype != k.dtype or v.device != k.device:
        raise ValueError(f"{name}: k and v must be alike, got k {_show(k)} and v {_show(v)}")
    given = f"q {_show(q)}, k {_show(k)}"
    if (mask.seq_q, mask.seq_k) != (q.shape[2], k.shape[2]):
        raise ValueError(f"{name}: the mask is for {mask.seq_q} queries and {mask.seq_k} keys, got {given}")
    for axis, label in ((0, "batch"), (1, "heads")):
        if mask.kept.shape[axis] not in (1, q.shape[axis]):
            raise ValueError(f"{name}: the mask has {mask.kept.shape[axis]} in {label}, which is neither 1 nor "
                             f"{q.shape[axis]}; got {given}")


def _check_pair(name: str, q: Tensor, k: Tensor) -> None:
    for label, x in (("q", q), ("k", k)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name}: {label} must be a tensor, got {type(x).__name__}")
        if x.ndim != 4:
            raise ValueError(f"{name}: {label} must be [batch, heads, tokens, head_dim], got {_show(x)}")
        if not x.is_floating_point():
            raise TypeError(f"{name}: {label} must be floating point, got {_show(x)}")
        if x.numel() == 0:
            raise ValueError(f"{name}: {label} is empty: {_show(x)}")
    given = f"got q {_show(q)} and k {_show(k)}"
    for axis, label in ((0, "batch"), (1, "heads"), (3, "head_dim")):
        if q.shape[axis] != k.shape[axis]:
            raise ValueError(f"{name}: q and k differ in {label}: {given}")
    if q.dtype != k.dtype or q.device != k.device:
        raise ValueError(f"{name}: q and k must share dtype and device: {given}")


def _scale(name: str, scale: float | None, q: Tensor) -> float:
    if scale is None:
        return float(q.shape[-1] ** -0.5)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"{name}: scale must be positive and finite, got {scale}")
    return float(scale)


def _show(x: object) -> str:
    return f"{x.dtype} {list(x.shape)} on {x.device}".removeprefix("torch.") if isinstance(x, Tensor) else repr(x)


def _triton() -> ModuleType:
    return importlib.import_module(".triton", __package__)


def _triton_reason(device: torch.device) -> str:
    return str(_triton().unavailable(device))


_Result = tuple[Tensor, Tensor | None]


def _run_triton(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float, need_lse: bool) -> _Result:
    result: _Result = _triton().attention(q, k, v, mask, scale, need_lse)
    return result


def _run_gather(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float, need_lse: bool) -> _Result:
    from . import cpu

    return cpu.attention(q, k, v, mask, scale, need_lse)


def _run_dense(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float, need_lse: bool) -> _Result:
    allowed = None if mask.is_full else mask.tokens()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, scale=scale), None


def _run_reference(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float, need_lse: bool) -> _Result:
    from . import reference

    return reference.attention(q, k, v, mask, scale)


_RUN: dict[str, Callable[[Tensor, Tensor, Tensor, BlockMask, float, bool], _Result]] = {
    "triton": _run_triton, "gather": _run_gather, "dense": _run_dense, "reference": _run_reference,
}
