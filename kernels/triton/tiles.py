"""Tile shapes per chip: the fastest-looking ones among those that compile without a register spill.

Chosen from compiled code alone (registers, spills, shared memory, instructions in the loop); no GPU was at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Tile:
    """keys: tokens of a step, to which masks are cut. stages: of the pipeline. split: the output as two halves."""

    keys: int
    warps: int
    stages: int
    split: bool = False


@lru_cache(maxsize=8)
def chip(device: torch.device) -> str:
    """"sm_90", "gfx942", ..; "sm_80" for the interpreter, whose result depends on no chip."""
    if device.type != "cuda":
        return "sm_80"
    properties = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return str(properties.gcnArchName.split(":")[0])
    return f"sm_{properties.major}{properties.minor}"


def forward_tile(device: torch.device, head_dim: int, block_q: int) -> Tile:
    """The tile of the attention kernel for this device and query block."""
    return tile_of(chip(device), head_dim, block_q)


def tile_of(name: str, head_dim: int, block_q: int) -> Tile:
    """The tile of the attention kernel for a chip by name."""
    warps = 8 if block_q == 128 and head_dim == 128 else 4
    if name.startswith("gfx"):
        # RDNA4 holds its accumulators in ordinary registers
        return Tile(32 if name.startswith("gfx12") else 64, warps, 1)
    wide = name in ("sm_90", "sm_100", "sm_103")  # wgmma and tcgen05 lay products out by rows in any case
    return Tile(64, warps, 2, split=block_q < head_dim and not wide)
