"""What Triton makes of our kernels for a chip that is not here: registers, spills, shared memory, instructions.

Triton carries ptxas and LLVM, so that a kernel compiles ahead of time for any chip. TRITON_INTERPRET must be unset.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

# Shared memory a block may use, in bytes (CUDA C++ programming guide, table of technical specifications; CDNA3: LDS).
SHARED = {"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10, "sm_120": 99 << 10,
          "gfx942": 64 << 10}
CHIPS = tuple(SHARED)
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Compiled:
    """One kernel on one chip. registers (AMD: vector ones) and bytes spilled per thread, shared bytes per block.

    products and copies: matrix and wide (or asynchronous) load instructions in the code.
    """

    kernel: str
    chip: str
    head_dim: int
    tile: str
    registers: int
    spills: int
    shared: int
    fits: bool
    products: int
    copies: int

    @property
    def sound(self) -> bool:
        """No register spill, within the chip's shared memory, and on its matrix units."""
        return self.spills == 0 and self.fits and self.products > 0

    def plain(self) -> dict[str, Any]:
        """As a dict that JSON can hold."""
        return asdict(self) | {"sound": self.sound}


def forward(chip: str, head_dim: int, block_q: int, dtype: torch.dtype = torch.bfloat16,
            need_lse: bool = False) -> Compiled:
    """The attention kernel with the tile that the pack picks for the chip. Raises what Triton raises."""
    from carnator.kernels.triton.forward import forward_kernel
    from carnator.kernels.triton.tiles import tile_of

    tile = tile_of(chip, head_dim, block_q)
    kind = TYPES[dtype]
    pointers = {"Q": kind, "K": kind, "V": kind, "OUT": kind, "LSE": "fp32", "COUNTS": "i32", "INDICES": "i16"}
    constants = {"HEAD_DIM": head_dim, "BLOCK_Q": block_q, "BLOCK_K": tile.keys, "NEED_LSE": need_lse,
                 "SPLIT": tile.split, "STAGES": tile.stages}
    strides = [f"{x}_{axis}" for x in "qkvo" for axis in ("batch", "head", "token")]
    name = f"forward {kind}" + (" + LSE" if need_lse else "")
    return _compile(name, forward_kernel, chip, pointers, constants, strides, tile.warps, tile.stages, head_dim,
                    f"{block_q}x{tile.keys} w{tile.warps} s{tile.stages}"
                    + (" split" if tile.split else ""))


def scores(chip: str, head_dim: int, dtype: torch.dtype = torch.bfloat16) -> Compiled:
    """The mass-recording kernel."""
    from carnator.kernels.triton.recording import KEYS, ROWS, STAGES, WARPS, scores_kernel

    kind = TYPES[dtype]
    pointers = {"Q": kind, "K": kind, "SUMS": "fp32", "LSE": "fp32"}
    constants = {"HEAD_DIM": head_dim, "ROWS": ROWS, "BLOCK_K": KEYS, "STAGES": STAGES}
    aligned = [f"{x}_{axis}" for x in "qk" for axis in ("batch", "head", "token")] + ["padded"]
    return _compile(f"mass {kind}", scores_kernel, chip, pointers, constants, aligned, WARPS, STAGES, head_dim,
                    f"{ROWS}x{KEYS} w{WARPS} s{STAGES}")


def _compile(name: str, kernel: Any, chip: str, pointers: dict[str, str], constants: dict[str, Any],
             aligned: list[str], warps: int, stages: int, head_dim: int, tile: str) -> Compiled:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    amd = chip.startswith("gfx")
    target = GPUTarget("hip", chip, 64 if chip.startswith("gfx9") else 32) if amd else GPUTarget(
        "cuda", int(chip.removeprefix("sm_")), 32)
    signature = {a: "constexpr" if a in constants else f"*{pointers[a]}" if a in pointers else "i32"
                 for a in kernel.arg_names}
    signature["scale"] = "fp32"
    # as at a launch: addresses and strides are multiples of 16 elements; without it loads are not vectorised
    attributes = {(kernel.arg_names.index(a),): [["tt.divisibility", 16]] for a in [*pointers, *aligned]}
    done = triton.compile(ASTSource(kernel, signature, constexprs=constants, attrs=attributes), target=target,
                          options={"num_warps": warps, "num_stages": stages})
    shared = int(done.metadata.shared)
    code = done.asm["amdgcn" if amd else "ptx"]
    if amd:
        registers, spilled = _number(r"\.vgpr_count:\s*(\d+)", code), _number(r"\.vgpr_spill_count:\s*(\d+)", code)
        spills = 4 * spilled
        products = len(re.findall(r"v_(?:mfma|wmma)", code))
        copies = len(re.findall(r"(?:global|buffer)_load_dwordx4", code))
    else:
        registers, spills = _ptxas(code, int(chip.removeprefix("sm_")))
        products = len(re.findall(r"wgmma\.mma_async|mma\.sync", code))
        copies = len(re.findall(r"cp\.async\.c[ga]", code))
    fits = shared <= SHARED[chip]
    return Compiled(name, chip, head_dim, tile, registers, spills, shared, fits, products, copies)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the compiler's report has no {pattern!r}")
    return int(found.group(1))


def _ptxas(ptx: str, capability: int) -> tuple[int, int]:
    """Registers a thread and bytes of spill stores a thread, as ptxas reports them."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    tool = tools / ("ptxas-blackwell" if capability >= 100 else "ptxas")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx, encoding="ascii")
        done = subprocess.run(
            [tool, "-v", f"--gpu-name=sm_{capability}{'a' if capability >= 90 else ''}", source, "-o", os.devnull],
            capture_output=True, text=True, check=True)
    report = done.stdout + done.stderr
    return _number(r"Used (\d+) registers", report), _number(r"(\d+) bytes spill stores", report)
