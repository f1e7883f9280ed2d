"""Masks, the oracle, the CPU path and the api. The Triton kernel has its own file."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from carnator.kernels import (
    BlockMask,
    available_backends,
    block_sparse_attention,
    cpu,
    mass,
    recording,
    reference,
    select,
    why_not,
)
from carnator.kernels.masks import pack_bits, unpack_bits
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Many tiny parallel regions starve on a shared machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


attend = block_sparse_attention
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def inputs(heads=2, seq_q=150, seq_k=230, width=32, dtype=torch.float32, batch=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, heads, n, width, generator=g).to(dtype) for n in (seq_q, seq_k, seq_k))


def random_mask(seq_q, seq_k, block_q, block_k, density=0.4, heads=2, batch=1, seed=0):
    g = torch.Generator().manual_seed(seed)
    kept = torch.rand(batch, heads, -(-seq_q // block_q), -(-seq_k // block_k), generator=g) < density
    kept[..., 0, -1] = True  # the ragged tail is in some lists
    return BlockMask(kept, seq_q, seq_k, block_q, block_k)


def error(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


# masks

@given(st.integers(1, 3), st.integers(1, 300), st.integers(1, 300), st.sampled_from([16, 64, 128]), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_mask_survives_lists_and_bits(heads, seq_q, seq_k, block, seed):
    mask = random_mask(seq_q, seq_k, block, 64, heads=heads, seed=seed)
    counts, indices = mask.lists
    assert counts.dtype == torch.int32 and indices.dtype == torch.int16
    assert torch.equal(BlockMask.from_lists(counts, indices, seq_q, seq_k, block, 64).kept, mask.kept)
    back = BlockMask.unpack(mask.pack())
    assert torch.equal(back.kept, mask.kept)
    assert (back.seq_q, back.seq_k, back.block_q, back.block_k) == (seq_q, seq_k, block, 64)


def test_lists_ascend_and_wide_masks_need_int32():
    mask = BlockMask(torch.tensor([[True, False, True, True], [False] * 4]), 100, 200, 64, 64)
    counts, indices = mask.lists
    assert counts.tolist() == [[[3, 0]]] and indices.tolist() == [[[[0, 2, 3, 0], [0, 0, 0, 0]]]]
    assert BlockMask(torch.ones(1, 40000, dtype=torch.bool), 1, 40000, 1, 1).lists[1].dtype == torch.int32


def test_density_counts_live_tokens():
    mask = BlockMask(torch.tensor([[True, False], [False, True]]), 100, 70, 64, 64)
    assert mask.density == pytest.approx((64 * 64 + 36 * 6) / (100 * 70))
    assert BlockMask.full(100, 70).density == 1.0 and BlockMask.full(100, 70).is_full and not mask.is_full


@pytest.mark.parametrize(("change", "message"), [
    (lambda: BlockMask(torch.ones(2, 2), 100, 100, 64, 64), "bool tensor, got a torch.float32 tensor"),
    (lambda: BlockMask(torch.ones(2, 3, dtype=torch.bool), 100, 100, 64, 64), "has 2 x 3 blocks"),
    (lambda: BlockMask(torch.ones(2, 2, dtype=torch.bool), 0, 100, 64, 64), "must be positive, got 0 queries"),
    (lambda: BlockMask(torch.ones(2, dtype=torch.bool), 100, 100, 64, 64), "got [2]"),
    (lambda: BlockMask.from_lists(torch.tensor([3]), torch.tensor([[0, 1]]), 9, 99, 64, 64), "the lists are 2 wide"),
    (lambda: BlockMask.from_lists(torch.tensor([2]), torch.tensor([[0, 2]]), 9, 99, 64, 64), "there are 2 key blocks"),
    (lambda: BlockMask.unpack(torch.zeros(80, dtype=torch.uint8)), "bad header"),
    (lambda: BlockMask.unpack(torch.zeros(5, dtype=torch.uint8)), "not a packed mask"),
    (lambda: BlockMask.unpack(BlockMask.full(500, 500).pack()[:-1]), "needs 4 bytes"),
    (lambda: BlockMask.full(100, 100, 64, 64).with_key_blocks(48), "key blocks of 64 cannot be cut into blocks of 48"),
    (lambda: unpack_bits(torch.tensor([255], dtype=torch.uint8), (7,)), "set bits past the end"),
])
def test_masks_say_what_is_wrong(change, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        change()


def test_bits_are_low_bit_first():
    assert pack_bits(torch.tensor([True, False, False, False, False, False, False, False, True])).tolist() == [1, 1]


def test_smaller_key_blocks_keep_the_same_tokens():
    mask = random_mask(100, 290, 64, 128)
    finer = mask.with_key_blocks(64)
    assert finer.kept.shape[-1] == 5 and torch.equal(finer.tokens(), mask.tokens())
    assert mask.with_key_blocks(64) is finer and mask.with_key_blocks(128) is mask


def test_empty_rows_get_their_own_blocks():
    mask = BlockMask(torch.zeros(1, 2, 4, dtype=torch.bool), 200, 200, 128, 64)
    assert mask.filled.kept[0, 0].tolist() == [[True, True, False, False], [False, False, True, True]]
    other = BlockMask(torch.zeros(1, 2, 4, dtype=torch.bool), 200, 201, 128, 64)
    assert other.filled.kept[0, 0].tolist() == [[True, False, False, False]] * 2
    full = BlockMask.full(200, 200)
    assert full.filled is full


# attention

@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(("seq_q", "seq_k", "block_q", "block_k"), [
    (150, 230, 64, 64), (256, 256, 128, 64), (40, 300, 128, 32), (129, 64, 16, 64), (30, 20, 64, 64),
])
def test_gather_equals_the_oracle(dtype, seq_q, seq_k, block_q, block_k):
    q, k, v = inputs(seq_q=seq_q, seq_k=seq_k, dtype=dtype, batch=2)
    mask = random_mask(seq_q, seq_k, block_q, block_k, batch=2)
    want, want_lse = attend(q.double(), k.double(), v.double(), mask, backend="reference",
                                            return_lse=True)
    out, lse = attend(q, k, v, mask, backend="gather", return_lse=True)
    assert out.dtype == dtype and lse.dtype == torch.float32
    assert error(out, want) < TOLERANCE[dtype]
    assert float((lse - want_lse).abs().max()) < 20 * TOLERANCE[dtype]


def test_auto_gathers_on_a_cpu():
    q, k, v = inputs()
    mask = random_mask(150, 230, 64, 64)
    assert torch.equal(attend(q, k, v, mask), attend(q, k, v, mask, backend="gather"))


def test_buffers_serve_every_mode_and_size():
    mask = random_mask(150, 230, 64, 64)
    q, k, v = inputs()
    want = attend(q, k, v, mask, backend="reference")
    with torch.inference_mode():
        assert error(attend(q, k, v, mask), want) < 1e-6
    big = random_mask(300, 900, 64, 64)
    many = inputs(seq_q=300, seq_k=900, seed=1)
    assert error(attend(*many, big), attend(*many, big, backend="reference")) < 1e-6
    halves = [x.bfloat16() for x in (q, k, v)]
    assert error(attend(*halves, mask), want) < 1e-2
    assert error(attend(q.requires_grad_(), k, v, mask), want) < 1e-6


def test_oracle_is_dense_attention_under_a_mask():
    q, k, v = inputs(width=24)
    mask = random_mask(150, 230, 64, 32).filled
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.tokens())
    assert error(attend(q, k, v, mask, backend="reference"), want) < 1e-6
    assert error(attend(q, k, v, mask, backend="dense"), want) < 1e-6


def test_all_blocks_kept_is_dense_attention_exactly():
    q, k, v = inputs(seq_q=230)
    dense = F.scaled_dot_product_attention(q, k, v)
    assert torch.equal(attend(q, k, v, BlockMask.full(230, 230)), dense)


def test_heads_kept_whole_take_the_dense_kernel(monkeypatch):
    q, k, v = inputs(heads=3, batch=2)
    kept = random_mask(150, 230, 64, 64, heads=3, batch=2).kept
    kept[0, 1] = kept[1, 2] = True
    mask = BlockMask(kept, 150, 230, 64, 64)
    want = attend(q, k, v, mask, backend="reference")
    seen = []
    gather = cpu._gather
    monkeypatch.setattr(cpu, "_gather", lambda *a: seen.append(len(a[0])) or gather(*a))
    assert error(attend(q, k, v, mask, backend="gather"), want) < 1e-6
    assert seen == [2, 2]


@pytest.mark.parametrize("backend", ["gather", "reference", "dense", "auto"])
def test_empty_rows_are_not_nan(backend):
    q, k, v = inputs(seq_q=230)
    mask = BlockMask(torch.zeros(1, 4, 4, dtype=torch.bool), 230, 230, 64, 64)
    blocks = [[x[:, :, s:s + 64] for x in (q, k, v)] for s in range(0, 230, 64)]
    own = torch.cat([F.scaled_dot_product_attention(*block) for block in blocks], 2)
    assert error(attend(q, k, v, mask, backend=backend), own) < 1e-6


def test_one_mask_serves_all_heads_and_items_and_strides_do_not_matter():
    q, k, v = inputs(heads=3, batch=2)
    mask = random_mask(150, 230, 64, 64, heads=1)
    want = attend(q, k, v, mask, backend="reference", scale=0.3)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert error(attend(*strided, mask, scale=0.3), want) < 1e-6


@pytest.mark.parametrize(("call", "message"), [
    (lambda q, k, v, m: attend(q[0], k, v, m),
     "q must be [batch, heads, tokens, head_dim], got float32 [2, 150, 32] on cpu"),
    (lambda q, k, v, m: attend(q[:, :1], k, v, m),
     "q and k differ in heads: got q float32 [1, 1, 150, 32] on cpu and k float32 [1, 2, 230, 32]"),
    (lambda q, k, v, m: attend(q[..., :8], k, v, m), "q and k differ in head_dim"),
    (lambda q, k, v, m: attend(q.half(), k, v, m), "must share dtype and device"),
    (lambda q, k, v, m: attend(q, k, v[:, :, 1:], m), "k and v must be alike"),
    (lambda q, k, v, m: attend(q[:, :, 1:], k, v, m),
     "the mask is for 150 queries and 230 keys, got q float32 [1, 2, 149, 32]"),
    (lambda q, k, v, m: attend(q, k, v, m.kept), "mask must be a BlockMask, got Tensor"),
    (lambda q, k, v, m: attend(q, k, v, m.heads([0, 1, 0])), "the mask has 3 in heads, which is neither 1 nor 2"),
    (lambda q, k, v, m: attend(q, k, v, m, backend="flash"), "no backend 'flash'; there are: auto, triton, gather"),
    (lambda q, k, v, m: attend(q.int(), k, v, m), "q must be floating point, got int32"),
    (lambda q, k, v, m: attend(q[:, :, :0], k, v, m), "q is empty: float32 [1, 2, 0, 32]"),
    (lambda q, k, v, m: attend(q, k, v, m, backend="dense", return_lse=True),
     "torch's dense attention returns no log-sum-exp"),
    (lambda q, k, v, m: attend(q, k, v, m, scale=-1.0), "scale must be positive and finite, got -1.0"),
    (lambda q, k, v, m: mass(q, k, rows=0), "rows must be positive or None, got 0"),
    (lambda q, k, v, m: mass(q, k, 0, 4), "blocks must be positive, got 0 x 4"),
    (lambda q, k, v, m: mass(q, k[:, :1]), "q and k differ in heads"),
    (lambda q, k, v, m: select(torch.ones(2, 2), 0.0), "fraction must be in (0, 1], got 0.0"),
])
def test_the_api_shows_what_it_was_given(call, message):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=re.escape(message)):
        call(*inputs(), random_mask(150, 230, 64, 64))


def test_backends_give_reasons():
    reasons = available_backends("cpu")
    assert reasons == {"triton": "Triton needs an NVIDIA or AMD GPU, the tensors are on cpu", "gather": "", "dense": "",
                       "reference": ""}
    q, k, v = inputs()
    mask = random_mask(150, 230, 64, 64)
    assert why_not("gather", q, mask) == "" and "needs an NVIDIA or AMD GPU" in why_not("triton", q, mask)
    with pytest.raises(RuntimeError, match="backend 'triton' cannot run this: Triton needs"):
        attend(q, k, v, mask, backend="triton")
    with pytest.raises(RuntimeError, match="mass: backend 'triton' cannot run this"):
        mass(q, k, backend="triton")


# recording

@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize("rows", [None, 16, 5, 1])
def test_mass_equals_the_oracle_on_the_sampled_rows(dtype, rows, monkeypatch):
    monkeypatch.setattr(recording, "CHUNK_CPU", 5000)  # several chunks, none of which divides the length
    q, k, _ = inputs(dtype=dtype, batch=2)
    index = recording.sample_rows(150, 64, rows)
    got = mass(q, k, 64, 48, rows=rows)
    want = reference.mass(q, k, 64, 48, 32 ** -0.5, index)
    assert got.shape == (2, 2, 3, 5) and got.dtype == torch.float32
    assert error(got, want) < TOLERANCE[dtype]
    assert torch.allclose(got.sum(-1), torch.ones(2, 2, 3), atol=1e-5)


def test_sampled_rows_are_spread_over_every_block():
    assert recording.sample_rows(150, 64, 4).tolist() == [8, 24, 40, 56, 72, 88, 104, 120, 130, 136, 141, 147]
    assert recording.sample_rows(66, 64, 4).tolist() == [8, 24, 40, 56, 64, 65]
    assert recording.sample_rows(5, 64, None).tolist() == [0, 1, 2, 3, 4]


def test_a_quarter_of_the_rows_covers_what_all_rows_cover():
    g = torch.Generator().manual_seed(1)
    position = torch.linspace(0, 6, 512)
    waves = position[:, None] * torch.randn(3, 1, 16, generator=g) * 1.5
    base = torch.cat([waves.cos(), waves.sin()], -1)[None] * 2
    q, k = (base + 0.7 * torch.randn(1, 3, 512, 32, generator=g) for _ in range(2))
    exact = mass(q, k, 64, 64, rows=None)
    covered = (exact * select(mass(q, k, 64, 64, rows=16), 0.9)).sum(-1)
    assert float(covered.mean()) > 0.89 and float(select(exact, 0.9).float().mean()) < 0.8


@given(st.integers(1, 40), st.floats(0.05, 1.0), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_select_covers_and_is_minimal(blocks, fraction, seed):
    g = torch.Generator().manual_seed(seed)
    values = torch.rand(3, blocks, generator=g) ** 4
    values = values / values.sum(-1, keepdim=True)
    kept = select(values, fraction)
    covered = (values * kept).sum(-1)
    assert bool((covered >= fraction - 1e-5).all()) and bool(kept.any(-1).all())
    smallest = torch.where(kept, values, 9.0).amin(-1)
    assert bool((covered - smallest < fraction + 1e-5).all())


def test_select_by_hand():
    assert select(torch.tensor([0.1, 0.6, 0.05, 0.25]), 0.8).tolist() == [False, True, False, True]
    assert select(torch.zeros(3), 0.9).sum() == 1
