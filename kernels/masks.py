"""Which key blocks each query block attends to: the mask that every backend takes.

The block convention is FlexAttention's: query block i holds the tokens i*block_q .. (i+1)*block_q - 1, the last block
of either side may be ragged, and the sparse form is a count and an ascending list of key blocks per query block.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

BLOCK_Q = 128
BLOCK_K = 64
_MAGIC = b"CBM1"
_HEADER = struct.Struct("<4s8q")


def count_blocks(length: int, block: int) -> int:
    """Blocks of `block` tokens that cover `length` tokens, the last one ragged."""
    return -(-length // block)


def block_lengths(length: int, block: int, device: torch.device | None = None) -> Tensor:
    """Live tokens of every block, [ceil(length / block)] int64."""
    sizes = torch.full((count_blocks(length, block),), block, device=device)
    sizes[-1] = length - (len(sizes) - 1) * block
    return sizes


@dataclass(frozen=True, eq=False)
class BlockMask:
    """Kept key blocks per (batch, head, query block).

    kept is bool [B, H, nq, nk] ([H, nq, nk] and [nq, nk] get leading ones); B or H of 1 serve every batch item or
    head. seq_q and seq_k are token counts, so nq = ceil(seq_q / block_q) and nk = ceil(seq_k / block_k).
    Raises TypeError for a tensor that is not bool and ValueError when the shape does not fit the lengths.
    """

    kept: Tensor
    seq_q: int
    seq_k: int
    block_q: int = BLOCK_Q
    block_k: int = BLOCK_K

    def __post_init__(self) -> None:
        kept = self.kept
        if not isinstance(kept, Tensor) or kept.dtype != torch.bool:
            given = f"{kept.dtype} tensor" if isinstance(kept, Tensor) else type(kept).__name__
            raise TypeError(f"BlockMask: kept must be a bool tensor, got a {given}")
        if min(self.seq_q, self.seq_k, self.block_q, self.block_k) < 1:
            raise ValueError(f"BlockMask: lengths and block sizes must be positive, got {self._sizes()}")
        if not 2 <= kept.ndim <= 4:
            raise ValueError(f"BlockMask: kept must be [B, H, nq, nk], [H, nq, nk] or [nq, nk], got {list(kept.shape)}")
        want = (count_blocks(self.seq_q, self.block_q), count_blocks(self.seq_k, self.block_k))
        if tuple(kept.shape[-2:]) != want:
            raise ValueError(f"BlockMask: kept {list(kept.shape)} has {kept.shape[-2]} x {kept.shape[-1]} blocks, "
                             f"but {self._sizes()} needs {want[0]} x {want[1]}")
        object.__setattr__(self, "kept", kept[(None,) * (4 - kept.ndim)])

    def _sizes(self) -> str:
        return f"{self.seq_q} queries in blocks of {self.block_q} and {self.seq_k} keys in blocks of {self.block_k}"

    @classmethod
    def full(cls, seq_q: int, seq_k: int, block_q: int = BLOCK_Q, block_k: int = BLOCK_K, heads: int = 1,
             device: torch.device | str | None = None) -> BlockMask:
        """Every block kept: dense attention."""
        shape = (1, heads, count_blocks(max(seq_q, 1), block_q), count_blocks(max(seq_k, 1), block_k))
        return cls(torch.ones(shape, dtype=torch.bool, device=device), seq_q, seq_k, block_q, block_k)

    @classmethod
    def from_lists(cls, kv_num_blocks: Tensor, kv_indices: Tensor, seq_q: int, seq_k: int, block_q: int = BLOCK_Q,
                   block_k: int = BLOCK_K) -> BlockMask:
        """From FlexAttention's lists: kv_num_blocks int [.., nq], kv_indices int [.., nq, <= nk], any order.

        Raises ValueError when a count exceeds the list's width or a listed block does not exist.
        """
        nk, width = count_blocks(seq_k, block_k), kv_indices.shape[-1]
        counts, indices = kv_num_blocks.long(), kv_indices.long()
        if counts.shape != indices.shape[:-1]:
            raise ValueError(f"BlockMask: kv_num_blocks {list(counts.shape)} and kv_indices {list(indices.shape)} "
                             "must agree in all but the last dimension")
        if counts.numel() and (int(counts.min()) < 0 or int(counts.max()) > width):
            raise ValueError(f"BlockMask: kv_num_blocks holds {int(counts.min())} .. {int(counts.max())}, "
                             f"the lists are {width} wide")
        listed = torch.arange(width, device=counts.device) < counts[..., None]
        used = indices[listed]
        if used.numel() and (int(used.min()) < 0 or int(used.max()) >= nk):
            raise ValueError(f"BlockMask: kv_indices holds {int(used.min())} .. {int(used.max())}, there are {nk} key "
                             "blocks")
        kept = torch.zeros(*counts.shape, nk + 1, dtype=torch.bool, device=counts.device)
        kept.scatter_(-1, torch.where(listed, indices, nk), True)
        return cls(kept[..., :nk].contiguous(), seq_q, seq_k, block_q, block_k)

    @cached_property
    def lists(self) -> tuple[Tensor, Tensor]:
        """(kv_num_blocks int32 [B, H, nq], kv_indices int16 or int32 [B, H, nq, nk]), ascending, zero past the count.

        int16 where nk allows. Needs no device synchronisation: the width is nk.
        """
        nk = self.kept.shape[-1]
        dtype = torch.int16 if nk <= torch.iinfo(torch.int16).max else torch.int32
        slot = torch.where(self.kept, self.kept.cumsum(-1) - 1, nk)
        indices = torch.zeros(*self.kept.shape[:-1], nk + 1, dtype=dtype, device=self.kept.device)
        indices.scatter_(-1, slot, torch.arange(nk, dtype=dtype, device=self.kept.device).expand(self.kept.shape))
        return self.kept.sum(-1, dtype=torch.int32), indices[..., :nk].contiguous()

    @cached_property
    def is_full(self) -> bool:
        """True when no block is dropped, so that dense attention is the same thing."""
        return bool(self.kept.all())

    @cached_property
    def density(self) -> float:
        """Share of all query-key pairs that are computed, 0 .. 1; ragged blocks count by their live tokens."""
        rows = block_lengths(self.seq_q, self.block_q, self.kept.device).double()
        columns = block_lengths(self.seq_k, self.block_k, self.kept.device).double()
        pairs = torch.einsum("bhij,i,j->bh", self.kept.double(), rows, columns)
        return float(pairs.mean()) / (self.seq_q * self.seq_k)

    @cached_property
    def filled(self) -> BlockMask:
        """The same mask with every empty row given its own blocks (the first block where there is no own one).

        A query block that attends to nothing has no defined output; its own tokens are the safest thing to see.
        """
        empty = ~self.kept.any(-1, keepdim=True)
        if not bool(empty.any()):
            return self
        nq, nk = self.kept.shape[-2:]
        own = torch.zeros(nq, nk, dtype=torch.bool, device=self.kept.device)
        if self.seq_q == self.seq_k:
            start = torch.arange(nq, device=own.device)[:, None] * self.block_q
            key = torch.arange(nk, device=own.device)[None] * self.block_k
            own = (key < start + self.block_q) & (key + self.block_k > start)
        else:
            own[:, 0] = True
        return BlockMask(self.kept | (empty & own), self.seq_q, self.seq_k, self.block_q, self.block_k)

    @cached_property
    def _recut(self) -> dict[int, BlockMask]:
        return {}

    def with_key_blocks(self, size: int) -> BlockMask:
        """The same mask in smaller key blocks. Raises ValueError unless size divides block_k."""
        if size == self.block_k:
            return self
        if size < 1 or self.block_k % size:
            raise ValueError(f"BlockMask: key blocks of {self.block_k} cannot be cut into blocks of {size}")
        if size not in self._recut:
            kept = self.kept.repeat_interleave(self.block_k // size, -1)[..., : count_blocks(self.seq_k, size)]
            self._recut[size] = BlockMask(kept.contiguous(), self.seq_q, self.seq_k, self.block_q, size)
        return self._recut[size]

    def to(self, device: torch.device | str) -> BlockMask:
        """The mask on another device; itself when it is there already."""
        moved = self.kept.to(device)
        return self if moved is self.kept else BlockMask(moved, self.seq_q, self.seq_k, self.block_q, self.block_k)

    def heads(self, index: Tensor | Sequence[int]) -> BlockMask:
        """The mask of some heads, in the order given."""
        chosen = self.kept[:, torch.as_tensor(index, device=self.kept.device)]
        return BlockMask(chosen, self.seq_q, self.seq_k, self.block_q, self.block_k)

    def tokens(self) -> Tensor:
        """The mask per token pair, bool [B, H, seq_q, seq_k]. For tests and small inputs: it is N x N."""
        rows = self.kept.repeat_interleave(self.block_q, -2)[..., : self.seq_q, :]
        return rows.repeat_interleave(self.block_k, -1)[..., : self.seq_k]

    def pack(self) -> Tensor:
        """One self-describing uint8 vector: a 68-byte header, then the kept bits in row-major order, low bit first."""
        header = _HEADER.pack(_MAGIC, *self.kept.shape, self.seq_q, self.seq_k, self.block_q, self.block_k)
        return torch.cat([torch.tensor(list(header), dtype=torch.uint8), pack_bits(self.kept.cpu())])

    @classmethod
    def unpack(cls, packed: Tensor) -> BlockMask:
        """The inverse of `pack`. Raises ValueError for anything that `pack` cannot have written."""
        if packed.dtype != torch.uint8 or packed.ndim != 1 or len(packed) < _HEADER.size:
            raise ValueError(f"BlockMask: not a packed mask ({packed.dtype} {list(packed.shape)})")
        magic, b, h, nq, nk, seq_q, seq_k, block_q, block_k = _HEADER.unpack(bytes(packed[: _HEADER.size].tolist()))
        if magic != _MAGIC or min(b, h, nq, nk, seq_q, seq_k, block_q, block_k) < 1:
            raise ValueError("BlockMask: not a packed mask (bad header)")
        kept = unpack_bits(packed[_HEADER.size:], (b, h, nq, nk))
        return cls(kept, seq_q, seq_k, block_q, block_k)


def pack_bits(flags: Tensor) -> Tensor:
    """Bool tensor of any shape -> uint8 [ceil(numel / 8)], row-major, low bit first, zero padded."""
    flat = flags.reshape(-1).to(torch.uint8)
    padded = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
    weights = 1 << torch.arange(8, dtype=torch.uint8, device=flags.device)
    return (padded * weights).sum(-1, dtype=torch.uint8)


def unpack_bits(bits: Tensor, shape: Sequence[int]) -> Tensor:
    """The inverse of `pack_bits`: bool tensor of `shape`. Raises ValueError when the bits do not fit it."""
    total = 1
    for size in shape:
        total *= size
    size = -(-total // 8)
    if bits.dtype != torch.uint8 or bits.ndim != 1 or len(bits) != size:
        raise ValueError(f"unpack_bits: {list(shape)} needs {size} bytes, got {bits.dtype} {list(bits.shape)}")
    shifts = torch.arange(8, dtype=torch.uint8, device=bits.device)
    flat = ((bits[:, None] >> shifts) & 1).bool().view(-1)
    if bool(flat[total:].any()):
        raise ValueError("unpack_bits: set bits past the end, the bits belong to another shape")
    return flat[:total].view(*shape)
