"""Block-sparse flash attention in Triton: when it can run, and on what. Triton itself is imported at the first call."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor

from ..masks import BlockMask

HEAD_DIMS = (64, 128)
# Triton's code for this chip spills in every tile tried (91 to 804 vector registers); torch's own attention is better.
SPILLING_AMD = ("gfx1100", "gfx1101", "gfx1102", "gfx1103")


def interpreted() -> bool:
    """True when Triton runs its kernels in Python on the CPU (TRITON_INTERPRET=1), as the tests do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def unavailable(device: torch.device) -> str:
    """"" when the kernels can run on the device, else the reason in words."""
    if device.type != "cuda" and not interpreted():
        return f"Triton needs an NVIDIA or AMD GPU, the tensors are on {device.type}"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type == "cuda" and not torch.cuda.is_available():
        return "torch sees no GPU"
    if device.type != "cuda":
        return ""
    chip = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        name = chip.gcnArchName.split(":")[0]
        return f"the kernel spills registers on {name}" if name in SPILLING_AMD else ""
    if chip.major < 8:
        return f"the kernel needs compute capability 8.0, {chip.name} has {chip.major}.{chip.minor}"
    return ""


def unsupported(dtype: torch.dtype, head_dim: int, block_q: int, block_k: int, device: torch.device) -> str:
    """"" when the kernel is built for such a call, else the reason in words."""
    if reason := unsupported_mass(dtype, head_dim, block_k, device):
        return reason
    return "" if block_q in (64, 128) else f"the kernel has query blocks of 64 or 128 tokens, not {block_q}"


def unsupported_mass(dtype: torch.dtype, head_dim: int, block_k: int, device: torch.device) -> str:
    """"" when the mass-recording kernel is built for such a call, else the reason in words."""
    if head_dim not in HEAD_DIMS:
        return f"the kernel has head_dim 64 or 128, not {head_dim}"
    if dtype not in (torch.float16, torch.bfloat16) and not (dtype == torch.float32 and device.type != "cuda"):
        return f"the kernel takes float16 and bfloat16, not {dtype}".replace("torch.", "")
    return "" if block_k % 64 == 0 else f"the kernel has key blocks of a multiple of 64 tokens, not {block_k}"


def attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, scale: float,
              need_lse: bool = False) -> tuple[Tensor, Tensor | None]:
    """`forward.attention`, imported when first called."""
    from .forward import attention as run

    return run(q, k, v, mask, scale, need_lse)


def mass(q: Tensor, k: Tensor, per_block: int, block_k: int, scale: float) -> Tensor:
    """`recording.mass`, imported when first called."""
    from .recording import mass as run

    return run(q, k, per_block, block_k, scale)
