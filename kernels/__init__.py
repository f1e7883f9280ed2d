"""Block-sparse attention: one public api, an eager oracle, and backends that never import each other.

Needs torch only; Triton is looked for when a call could use it, and `available_backends` says why it is not used.
"""

from __future__ import annotations

from .api import available_backends, block_sparse_attention, mass, select, why_not
from .masks import BLOCK_K, BLOCK_Q, BlockMask

__all__ = ["BLOCK_K", "BLOCK_Q", "BlockMask", "available_backends", "block_sparse_attention", "mass", "select",
           "why_not"]
