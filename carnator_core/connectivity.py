"""Historical sparse connectivity: where each query block's attention goes, recorded once and followed later (C.3).

Tokens are taken along a Morton curve of the T x H x W grid, so that a block of consecutive tokens is compact in space
and time (cut every 64 tokens it needs 0.30 of the work for 0.95 of the mass where raster order needs 0.47, on synthetic
heads of the Wan 480p shape). Masks are kept per (sigma, guidance branch, layer, head) on few steps and shared between
neighbouring ones.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from .. import kernels
from ..kernels import BLOCK_K, BLOCK_Q, BlockMask
from ..kernels.masks import count_blocks, pack_bits, unpack_bits

log = logging.getLogger("carnator")
Grid = tuple[int, int, int]
Key = tuple[int, int, int]  # index into sigmas, branch, layer

# A head whose blocks are kept to this share or more is dense: above it no sparse path is faster than the dense one.
DIFFUSE = 0.6
# Smallest token count at which sparse attention pays, and the density up to which it does. CPU: measured on one core in
# float32, head_dim 128: 0.82x dense at density 0.59 of 640 tokens; of 320 tokens 0.75x at 0.30 and 1.1x at 0.60. CUDA:
# an estimate from the kernel's compiled code, for no GPU was at hand.
WORTH = {"cpu": (512, 0.5), "cuda": (8192, 0.6)}
# Decoded masks held at a time, in bytes; past that a mask is decoded at every use.
HELD_BYTES = 1 << 29
EVERY = 4  # steps that share one recording
MOST = 1 << 28  # bytes of masks of one render
_FORMAT = 1


@lru_cache(maxsize=8)
def morton_order(grid: Grid) -> Tensor:
    """Raster indices of the grid's tokens in the order of a Morton curve, [T*H*W] int64 on the CPU. Do not modify."""
    t, h, w = torch.meshgrid(*(torch.arange(n) for n in grid), indexing="ij")
    key = torch.zeros(grid, dtype=torch.int64)
    for bit in range(max(grid).bit_length()):
        for axis, coordinate in enumerate((w, h, t)):
            key |= ((coordinate >> bit) & 1) << (3 * bit + axis)
    return key.flatten().argsort()


def subset_order(order: Tensor, index: Tensor) -> Tensor:
    """For tokens given as raster indices [n], the permutation of 0 .. n-1 that puts them into `order`'s sequence."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order), device=order.device)
    return rank[index].argsort()


def attention(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask, query_order: Tensor, key_order: Tensor | None = None,
              scale: float | None = None) -> Tensor:
    """Attention over the kept blocks for tokens that do not lie in the mask's order: [B, H, Nq, D] as q came.

    q [B, H, Nq, D], k and v [B, H, Nk, D]; query_order [Nq] and key_order [Nk] (the same by default) are the positions
    of the mask's consecutive tokens in q and k: `morton_order` for whole raster grids, `subset_order` for parts.
    """
    queries = query_order.to(q.device)
    keys = queries if key_order is None else key_order.to(q.device)
    ordered = kernels.block_sparse_attention(q.index_select(2, queries), k.index_select(2, keys),
                                             v.index_select(2, keys), mask, scale=scale)
    assert isinstance(ordered, Tensor)
    return torch.empty_like(ordered).index_copy_(2, queries, ordered)


def restrict(mask: BlockMask, active: Tensor, context: Tensor) -> BlockMask:
    """The mask for Active queries and Context keys alone (joint reuse in the middle layers).

    active, context: bool [seq_q] and [seq_k] in the mask's token order. The remaining tokens close up into new blocks;
    a new query block keeps a new key block when the history kept any pair of blocks that they took tokens from. A
    query block whose every kept key lies outside Context sees its own tokens. Raises ValueError for empty or ill-sized
    sets.
    """
    if active.shape != (mask.seq_q,) or context.shape != (mask.seq_k,):
        raise ValueError(f"restrict: the mask has {mask.seq_q} queries and {mask.seq_k} keys, got {list(active.shape)} "
                         f"active and {list(context.shape)} context flags")
    queries = active.nonzero()[:, 0].to(mask.kept.device)
    keys = context.nonzero()[:, 0].to(mask.kept.device)
    if not len(queries) or not len(keys):
        raise ValueError("restrict: no active query or no context key is left")
    rows = _incidence(queries, mask.block_q, mask.kept.shape[-2])
    columns = _incidence(keys, mask.block_k, mask.kept.shape[-1])
    kept = (rows @ mask.kept.float() @ columns.T) > 0
    own = torch.zeros(kept.shape[-2:], dtype=torch.bool, device=kept.device)
    if mask.seq_q == mask.seq_k:
        place = torch.searchsorted(keys, queries).clamp_max(len(keys) - 1)
        shared = (keys[place] == queries).nonzero()[:, 0]
        own[shared // mask.block_q, place[shared] // mask.block_k] = True
    kept = torch.where(kept.any(-1, keepdim=True), kept, own)
    return BlockMask(kept, len(queries), len(keys), mask.block_q, mask.block_k)


def _incidence(tokens: Tensor, block: int, blocks: int) -> Tensor:
    """Which old blocks the new blocks of these tokens draw from: float [ceil(n / block), blocks], 0 or 1."""
    out = torch.zeros(count_blocks(len(tokens), block), blocks, device=tokens.device)
    out[torch.arange(len(tokens), device=tokens.device) // block, tokens // block] = 1.0
    return out


def why_dense(tokens: int, density: float, device: torch.device | str) -> str:
    """Why attention over `tokens` tokens at this density is better computed whole, in words; "" when sparse pays."""
    kind = torch.device(device).type
    if kind not in WORTH:
        return f"sparse attention is not measured on {kind}"
    if kind == "cuda" and (reason := kernels.available_backends(device)["triton"]):
        return reason
    least, most = WORTH[kind]
    if tokens < least:
        return f"the clip is small: {tokens} tokens, sparse attention pays from {least}"
    if density > most:
        return f"the history's attention is dense: {density:.0%} of the blocks, sparse attention pays up to {most:.0%}"
    return ""


def worthwhile(tokens: int, density: float, device: torch.device | str) -> bool:
    """Whether block-sparse attention is faster than dense for this size; `why_dense` gives the reason."""
    return not why_dense(tokens, density, device)


class Connectivity:
    """The block masks of one render (or of one model), by (sigma, branch, layer), in Morton order.

    sigmas: the recorded ones. bits: packed kept flags [heads, nq, nk] per (index into sigmas, branch, layer), uint8.
    Raises ValueError where sizes do not fit.
    """

    def __init__(self, grid: Grid, heads: int, sigmas: Sequence[float], bits: dict[Key, Tensor],
                 block_q: int = BLOCK_Q, block_k: int = BLOCK_K) -> None:
        self.grid, self.heads, self.block_q, self.block_k = grid, heads, block_q, block_k
        self.sigmas, self.bits = list(sigmas), bits
        self.tokens = grid[0] * grid[1] * grid[2]
        if min(*grid, heads, block_q, block_k) < 1:
            raise ValueError(f"connectivity: sizes must be positive, got grid {grid}, {heads} heads, blocks of "
                             f"{block_q} x {block_k}")
        self.shape = (heads, count_blocks(self.tokens, block_q), count_blocks(self.tokens, block_k))
        size = -(-self.shape[0] * self.shape[1] * self.shape[2] // 8)
        for key, packed in bits.items():
            if packed.dtype != torch.uint8 or packed.shape != (size,) or not 0 <= key[0] < len(self.sigmas):
                raise ValueError(f"connectivity: mask {key} is {packed.dtype} {list(packed.shape)}, needed are {size} "
                                 f"bytes and one of {len(self.sigmas)} sigmas")
        self._held: dict[Key, BlockMask] = {}

    @property
    def order(self) -> Tensor:
        """Raster index of every position in the masks' token order, [tokens] int64."""
        return morton_order(self.grid)

    def nearest(self, sigma: float) -> int:
        """Index of the recorded sigma closest to this one. Raises ValueError when nothing is recorded."""
        if not self.sigmas:
            raise ValueError("connectivity: nothing is recorded")
        return min(range(len(self.sigmas)), key=lambda i: abs(self.sigmas[i] - sigma))

    def mask(self, sigma: float, branch: int, layer: int, device: torch.device | str = "cpu") -> BlockMask | None:
        """The mask [1, heads, nq, nk] to follow at this sigma; None where none was recorded for branch and layer.

        The masks of the sigma in use are held, so that neighbouring steps decode and move them once.
        """
        if not self.sigmas:
            return None
        key = (self.nearest(sigma), branch, layer)
        if key not in self.bits:
            return None
        found = self._held.get(key)
        if found is None or found.kept.device != torch.device(device):
            self._held = {k: m for k, m in self._held.items() if k[0] == key[0]}
            kept = unpack_bits(self.bits[key].to(device), self.shape)
            found = BlockMask(kept, self.tokens, self.tokens, self.block_q, self.block_k)
            # a held mask is its flags and its lists of two bytes an entry
            if 3 * kept.numel() * (len(self._held) + 1) <= HELD_BYTES:
                self._held[key] = found
        return found

    def density(self, sigma: float | None = None) -> float:
        """Mean share of computed query-key pairs over all masks, or over those of one sigma; 1.0 for no masks."""
        keys = [k for k in self.bits if sigma is None or k[0] == self.nearest(sigma)]
        masks = (BlockMask(unpack_bits(self.bits[k], self.shape), self.tokens, self.tokens, self.block_q, self.block_k)
                 for k in keys)
        return sum(m.density for m in masks) / len(keys) if keys else 1.0

    def to_tensors(self) -> dict[str, Tensor]:
        """For `History.connectivity`: integer tensors alone, raw bits (the bank compresses them against each other)."""
        layout = [_FORMAT, *self.grid, self.heads, self.block_q, self.block_k]
        sigmas = torch.tensor(self.sigmas, dtype=torch.float32).view(torch.int32)
        out = {"layout": torch.tensor(layout), "sigmas": sigmas}
        return out | {f"mask/{i:03d}/{branch}/{layer:03d}": t for (i, branch, layer), t in sorted(self.bits.items())}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Connectivity:
        """The inverse of `to_tensors`. Raises ValueError for anything that it cannot have written."""
        layout, sigmas = tensors.get("layout"), tensors.get("sigmas")
        if layout is None or sigmas is None or layout.shape != (7,) or sigmas.dtype != torch.int32:
            raise ValueError("connectivity: no layout or no sigmas")
        version, t, h, w, heads, block_q, block_k = layout.tolist()
        if version != _FORMAT:
            raise ValueError(f"connectivity: format {version}, this pack reads {_FORMAT}")
        bits: dict[Key, Tensor] = {}
        for name, packed in tensors.items():
            if name in ("layout", "sigmas"):
                continue
            parts = name.split("/")
            if len(parts) != 4 or parts[0] != "mask" or not all(p.isdigit() for p in parts[1:]):
                raise ValueError(f"connectivity: unknown part {name!r}")
            bits[int(parts[1]), int(parts[2]), int(parts[3])] = packed
        return cls((t, h, w), heads, sigmas.view(torch.float32).tolist(), bits, block_q, block_k)


class Recorder:
    """Collects connectivity during a dense render.

    sigmas: the run's schedule. coverage: share of each query block's attention mass that the kept key blocks hold
    (C.3). every: one step of so many is recorded, the middle one. rows: query rows sampled per query block. most: bytes of
    masks that are held; a render that would need more (14B at 720p: 3 GB) records none.
    """

    def __init__(self, grid: Grid, sigmas: Iterable[float], *, coverage: float = 0.9, every: int = EVERY, rows: int = 16,
                 diffuse: float = DIFFUSE, block_q: int = BLOCK_Q, block_k: int = BLOCK_K, most: int = MOST) -> None:
        steps = [float(s) for s in sigmas][:-1]
        middle = min(every // 2, max(len(steps) - 1, 0))
        self.grid, self.sigmas = grid, steps[middle::every]
        self.coverage, self.rows, self.diffuse = coverage, rows, diffuse
        self.block_q, self.block_k = block_q, block_k
        self._bits: dict[Key, Tensor] = {}
        self._heads = 0
        self._left = most

    def wants(self, sigma: float) -> bool:
        """Whether a model call at this sigma is one to record."""
        return self._left >= 0 and self._index(sigma) is not None

    def _index(self, sigma: float) -> int | None:
        close = (i for i, s in enumerate(self.sigmas) if abs(s - sigma) <= 1e-4 * max(abs(s), 1e-6))
        return next(close, None)

    def add(self, sigma: float, branch: int, layer: int, q: Tensor, k: Tensor, scale: float | None = None) -> None:
        """Record one self-attention: q and k [B, H, N, D] of one branch in raster order, after rotation.

        Nothing happens at other sigmas, or for what is recorded already (samplers may evaluate a sigma twice). A batch
        shares one mask, from its mean mass. Raises ValueError when N is not the grid's, or the heads changed.
        """
        index = self._index(sigma)
        if self._left < 0 or index is None or (key := (index, branch, layer)) in self._bits:
            return
        tokens = self.grid[0] * self.grid[1] * self.grid[2]
        if q.shape != k.shape or q.shape[2] != tokens or self._heads not in (0, q.shape[1]):
            raise ValueError(f"connectivity: the grid {self.grid} has {tokens} tokens, got q {list(q.shape)} and k "
                             f"{list(k.shape)}" + (f", {self._heads} heads before" if self._heads else ""))
        order = morton_order(self.grid).to(q.device)
        mass = kernels.mass(q.index_select(2, order), k.index_select(2, order), self.block_q, self.block_k,
                            rows=self.rows, scale=scale).mean(0)
        kept = kernels.select(mass, self.coverage)
        kept |= kept.float().mean((-2, -1), keepdim=True) >= self.diffuse
        self._heads = q.shape[1]
        self._bits[key] = pack_bits(kept).cpu()
        self._left -= self._bits[key].numel()
        if self._left < 0:
            log.info("Carnator: this render's connectivity would take too much memory; it is not recorded.")
            self._bits.clear()

    def finish(self) -> Connectivity | None:
        """What was recorded; None when that is nothing. Sigmas that never came are left out."""
        if not self._bits:
            return None
        seen = sorted({i for i, _, _ in self._bits})
        bits = {(seen.index(i), branch, layer): t for (i, branch, layer), t in self._bits.items()}
        return Connectivity(self.grid, self._heads, [self.sigmas[i] for i in seen], bits, self.block_q, self.block_k)


def average(sources: Sequence[Connectivity]) -> Connectivity:
    """A model's own connectivity from several renders: per row the blocks that most of them kept, as many as they keep.

    The first source's sigmas count, each other source answers with its nearest. Heads that most sources hold dense
    are dense. Raises ValueError for no sources or for sources of different layout.
    """
    if not sources:
        raise ValueError("connectivity: nothing to average")
    first = sources[0]
    for other in sources[1:]:
        if (other.grid, other.heads, other.block_q, other.block_k) != (
                first.grid, first.heads, first.block_q, first.block_k):
            raise ValueError(f"connectivity: layouts differ: {first.grid}, {first.heads} heads and {other.grid}, "
                             f"{other.heads} heads")
    bits: dict[Key, Tensor] = {}
    for key in first.bits:
        found = [s.mask(first.sigmas[key[0]], key[1], key[2]) for s in sources]
        kept = torch.stack([m.kept[0] for m in found if m is not None]).float()
        dense = kept.flatten(2).all(-1).float().mean(0) > 0.5
        votes, width = kept.mean(0), kept.sum(-1).mean(0).round().long()
        rank = votes.argsort(stable=True, dim=-1, descending=True).argsort(-1)
        bits[key] = pack_bits((rank < width[..., None]) | dense[:, None, None])
    return Connectivity(first.grid, first.heads, first.sigmas, bits, first.block_q, first.block_k)
