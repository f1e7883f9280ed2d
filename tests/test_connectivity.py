"""Connectivity: token order, recording, packing, restriction to regions, a model's average, and the size rule."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from carnator.carnator_core import connectivity
from carnator.carnator_core.connectivity import (
    Connectivity,
    Recorder,
    attention,
    average,
    morton_order,
    restrict,
    subset_order,
    why_dense,
    worthwhile,
)
from carnator.kernels import BlockMask, mass, select

GRID = (5, 9, 14)  # 630 tokens: ragged in every block size, odd in two axes
TOKENS = 630


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def local_heads(grid=GRID, heads=3, width=32, seed=0, sharpness=3.0):
    """q, k [1, H, N, d] whose attention falls off with the distance on the grid; the last head attends everywhere."""
    g = torch.Generator().manual_seed(seed)
    at = torch.stack(torch.meshgrid(*(torch.arange(n).float() for n in grid), indexing="ij"), -1).view(-1, 3)
    frequency = torch.randn(heads, 3, width // 2, generator=g) * 0.35
    waves = at @ frequency
    base = torch.cat([waves.cos(), waves.sin()], -1)[None] * sharpness
    q, k = (base + 0.3 * torch.randn(base.shape, generator=g) for _ in range(2))
    q[:, -1] *= 0.01
    return q, k, torch.randn(base.shape, generator=g)


def recorded(seed=0, coverage=0.9, **options):
    q, k, v = local_heads(seed=seed)
    recorder = Recorder(GRID, [1.0, 0.5, 0.0], coverage=coverage, every=1, block_q=64, block_k=64, **options)
    recorder.add(1.0, 0, 0, q, k)
    return recorder.finish(), q, k, v


def error(a, b):
    return float((a - b).norm() / b.norm())


# order

def test_morton_order_by_hand():
    assert morton_order((1, 2, 4)).tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert morton_order((2, 2, 2)).tolist() == list(range(8))
    assert morton_order((1, 1, 1)).tolist() == [0]


@pytest.mark.parametrize("grid", [GRID, (1, 7, 3), (21, 30, 52)])
def test_morton_order_is_a_permutation_with_compact_blocks(grid):
    order = morton_order(grid)
    n = grid[0] * grid[1] * grid[2]
    assert torch.equal(order.sort().values, torch.arange(n))
    at = torch.stack([order // (grid[1] * grid[2]), order // grid[2] % grid[1], order % grid[2]], -1).float()
    raster = torch.arange(n)
    at_raster = torch.stack([raster // (grid[1] * grid[2]), raster // grid[2] % grid[1], raster % grid[2]], -1).float()

    def spread(x):
        return sum(float((block.amax(0) - block.amin(0)).norm()) for block in x.split(64))

    if n > 64:
        assert spread(at) < 0.6 * spread(at_raster)


def test_subset_order_puts_a_part_into_the_whole_order():
    order = morton_order(GRID)
    index = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))[:100].sort().values
    chosen = index[subset_order(order, index)]
    keep = torch.isin(order, index)
    assert torch.equal(chosen, order[keep])


def test_morton_needs_fewer_blocks_than_raster():
    grid = (8, 16, 16)
    at = torch.stack(torch.meshgrid(*(torch.arange(n).float() for n in grid), indexing="ij"), -1).view(-1, 3)
    # scores -|x - y|^2 / 4 up to a term per row: attention falls off alike in space and time
    q = torch.cat([at / 2, torch.ones(len(at), 1)], -1)[None, None]
    k = torch.cat([at, -(at * at).sum(-1, keepdim=True) / 4], -1)[None, None]
    order = morton_order(grid)
    raster = select(mass(q, k, 64, 64, scale=1.0), 0.95).float().mean()
    curve = select(mass(q[:, :, order], k[:, :, order], 64, 64, scale=1.0), 0.95).float().mean()
    assert curve < 0.75 * raster


# recording

def test_what_is_recorded_covers_the_mass_and_diffuse_heads_stay_dense():
    found, q, k, _ = recorded()
    mask = found.mask(1.0, 0, 0)
    order = found.order
    exact = mass(q[:, :, order], k[:, :, order], 64, 64, rows=None)
    covered = (exact * mask.kept).sum(-1)
    assert float(covered.mean()) > 0.89 and float(covered.min()) > 0.7
    density = mask.kept.float().mean((-2, -1))[0]
    assert density[2] == 1.0 and float(density[:2].max()) < 0.6
    assert found.density() == pytest.approx(mask.density) and found.density(0.7) == pytest.approx(mask.density)


def test_following_the_recorded_connectivity_is_close_to_dense_attention():
    found, q, k, v = recorded(coverage=0.95)
    dense = F.scaled_dot_product_attention(q, k, v)
    sparse = attention(q, k, v, found.mask(1.0, 0, 0), found.order)
    full = attention(q, k, v, BlockMask.full(TOKENS, TOKENS, 64, 64), found.order)
    assert error(full, dense) < 1e-6
    assert 1e-6 < error(sparse, dense) < 0.2
    assert error(sparse[:, 2], dense[:, 2]) < 1e-6


def test_few_steps_are_recorded_and_shared_with_their_neighbours():
    sigmas = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0]
    recorder = Recorder(GRID, torch.tensor(sigmas), every=4)
    assert [s for s in sigmas if recorder.wants(s)] == [0.8, 0.4]
    assert not recorder.wants(0.75)
    q, k, _ = local_heads()
    for sigma in sigmas:  # the second evaluation of a sigma changes nothing
        recorder.add(sigma, 1, 7, q * sigma, k)
        recorder.add(sigma, 1, 7, q * 0, k)
    found = recorder.finish()
    assert found.sigmas == pytest.approx([0.8, 0.4]) and set(found.bits) == {(0, 1, 7), (1, 1, 7)}
    for sigma in (1.0, 0.9, 0.7, 0.61):
        assert found.mask(sigma, 1, 7) is found.mask(0.8, 1, 7)
    assert torch.equal(found.mask(0.2, 1, 7).kept, found.mask(0.4, 1, 7).kept)
    assert found.mask(0.8, 0, 7) is None and found.mask(0.8, 1, 6) is None


def test_short_and_empty_runs():
    assert Recorder(GRID, [0.0]).finish() is None
    assert not Recorder(GRID, []).wants(0.0)
    assert Recorder(GRID, [1.0, 0.0], every=8).wants(1.0)
    assert [s for s in (1.0, 0.5) if Recorder(GRID, [1.0, 0.5, 0.0], every=8).wants(s)] == [0.5]


def test_only_sigmas_that_came_are_kept():
    q, k, _ = local_heads()
    recorder = Recorder(GRID, [1.0, 0.5, 0.0], every=1)
    recorder.add(0.5, 0, 0, q, k)
    assert recorder.finish().sigmas == [0.5]


def test_recording_refuses_other_shapes():
    q, k, _ = local_heads()
    recorder = Recorder(GRID, [1.0, 0.5, 0.0], every=1)
    with pytest.raises(ValueError, match=re.escape("the grid (5, 9, 14) has 630 tokens, got q [1, 3, 629, 32]")):
        recorder.add(1.0, 0, 0, q[:, :, 1:], k[:, :, 1:])
    recorder.add(1.0, 0, 0, q, k)
    with pytest.raises(ValueError, match="3 heads before"):
        recorder.add(1.0, 0, 1, q[:, :2], k[:, :2])


# packing

def test_connectivity_survives_its_tensors():
    found, *_ = recorded()
    tensors = found.to_tensors()
    assert all(not t.is_floating_point() for t in tensors.values())
    assert tensors["mask/000/0/000"].dtype == torch.uint8 and tensors["mask/000/0/000"].numel() == -(-3 * 10 * 10 // 8)
    back = Connectivity.from_tensors({name: t.clone() for name, t in tensors.items()})
    assert back.sigmas == found.sigmas and back.grid == GRID and back.heads == 3
    assert torch.equal(back.mask(0.9, 0, 0).kept, found.mask(0.9, 0, 0).kept)


@pytest.mark.parametrize(("change", "message"), [
    (lambda t: t.pop("layout"), "no layout or no sigmas"),
    (lambda t: t.update(layout=torch.tensor([2, 5, 9, 14, 3, 64, 64])), "format 2, this pack reads 1"),
    (lambda t: t.update(layout=torch.tensor([1, 5, 9, 14, 4, 64, 64])), "needed are 50 bytes and one of 1 sigmas"),
    (lambda t: t.update(layout=torch.tensor([1, 5, 9, 0, 3, 64, 64])), "sizes must be positive"),
    (lambda t: t.update({"mask/1": torch.zeros(1)}), "unknown part 'mask/1'"),
    (lambda t: t.update({"mask/001/0/000": t["mask/000/0/000"]}), "one of 1 sigmas"),
    (lambda t: t.update({"mask/000/0/000": t["mask/000/0/000"].int()}), "torch.int32 [38]"),
])
def test_damaged_tensors_are_refused_in_words(change, message):
    tensors = recorded()[0].to_tensors()
    change(tensors)
    with pytest.raises(ValueError, match=re.escape(message)):
        Connectivity.from_tensors(tensors)


def test_masks_are_held_for_one_sigma_and_within_a_budget(monkeypatch):
    q, k, _ = local_heads()
    recorder = Recorder(GRID, [1.0, 0.5, 0.0], every=1)
    for sigma in (1.0, 0.5):
        for layer in range(3):
            recorder.add(sigma, 0, layer, q, k)
    found = recorder.finish()
    for layer in range(3):
        found.mask(1.0, 0, layer)
    assert len(found._held) == 3
    found.mask(0.5, 0, 0)
    assert set(found._held) == {(1, 0, 0)}
    monkeypatch.setattr(connectivity, "HELD_BYTES", 0)
    found.mask(1.0, 0, 1)
    assert not found._held


# regions

def flags(seed, share, n=TOKENS):
    return torch.rand(n, generator=torch.Generator().manual_seed(seed)) < share


def test_restricting_to_everything_changes_nothing():
    mask = recorded()[0].mask(1.0, 0, 0)
    everything = torch.ones(TOKENS, dtype=torch.bool)
    assert torch.equal(restrict(mask, everything, everything).kept, mask.kept)


def test_a_restricted_mask_keeps_every_pair_that_the_history_kept():
    mask = recorded()[0].mask(1.0, 0, 0)
    context = torch.zeros(TOKENS, dtype=torch.bool)
    context[150:520] = True
    active = context & flags(0, 0.5)
    small = restrict(mask, active, context)
    assert (small.seq_q, small.seq_k) == (int(active.sum()), 370)
    wanted = mask.tokens()[:, :, active][..., context]
    assert bool((small.tokens() | ~wanted).all())
    assert small.density < 1.0
    pairs = small.tokens().float().mean() - wanted.float().mean()
    assert 0 <= float(pairs) < 0.35  # what the closing up of blocks adds


def test_a_row_without_context_keys_sees_its_own_tokens():
    kept = torch.zeros(1, 4, 4, dtype=torch.bool)
    kept[0, :, 3] = True
    mask = BlockMask(kept, 256, 256, 64, 64)
    active = torch.zeros(256, dtype=torch.bool)
    active[:128] = True
    assert restrict(mask, active, active).kept[0, 0].tolist() == [[True, False], [False, True]]


def test_restricted_attention_equals_the_oracle_in_raster_order():
    found, q, k, v = recorded()
    order = found.order
    grid = torch.zeros(GRID, dtype=torch.bool)
    grid[:, 2:6, 3:9] = True
    wide = F.max_pool2d(grid.float()[None], 5, 1, 2)[0].bool()
    queries, keys = grid.flatten().nonzero()[:, 0], wide.flatten().nonzero()[:, 0]
    mask = restrict(found.mask(1.0, 0, 0), grid.flatten()[order], wide.flatten()[order])
    out = attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], mask, subset_order(order, queries),
                    subset_order(order, keys))
    allowed = torch.zeros(1, 3, len(queries), len(keys), dtype=torch.bool)
    rows, columns = subset_order(order, queries), subset_order(order, keys)
    allowed[:, :, rows[:, None], columns[None]] = mask.tokens()
    want = F.scaled_dot_product_attention(q[:, :, queries], k[:, :, keys], v[:, :, keys], attn_mask=allowed)
    assert error(out, want) < 1e-5


@pytest.mark.parametrize(("active", "context", "message"), [
    (torch.zeros(256, dtype=torch.bool), torch.ones(256, dtype=torch.bool), "no active query"),
    (torch.ones(255, dtype=torch.bool), torch.ones(256, dtype=torch.bool), "the mask has 256 queries and 256 keys"),
])
def test_restrict_says_what_does_not_fit(active, context, message):
    with pytest.raises(ValueError, match=message):
        restrict(BlockMask.full(256, 256), active, context)


# a model's average

def test_the_average_keeps_what_most_renders_keep_at_the_same_cost():
    parts = [recorded(seed=s)[0] for s in (0, 0, 0, 1)]
    mean = average(parts).mask(1.0, 0, 0)
    common = parts[0].mask(1.0, 0, 0)
    agreement = (mean.kept & common.kept).sum() / common.kept.sum()
    assert float(agreement) > 0.9
    assert mean.density == pytest.approx(sum(p.density() for p in parts) / 4, abs=0.03)
    assert bool(mean.kept[0, 2].all())
    assert torch.equal(average(parts[:1]).mask(1.0, 0, 0).kept, common.kept)


def test_the_average_needs_one_layout():
    first = recorded()[0]
    other = Connectivity((1, 9, 14), 3, [], {}, 64, 64)
    with pytest.raises(ValueError, match="layouts differ"):
        average([first, other])
    with pytest.raises(ValueError, match="nothing to average"):
        average([])


# the size rule

def test_small_clips_and_dense_histories_stay_dense():
    assert "the clip is small: 100 tokens" in why_dense(100, 0.2, "cpu")
    assert "the history's attention is dense: 90%" in why_dense(4096, 0.9, "cpu")
    assert why_dense(4096, 0.3, "cpu") == "" and worthwhile(4096, 0.3, "cpu") and not worthwhile(100, 0.2, "cpu")
    assert why_dense(4096, 0.3, "meta") == "sparse attention is not measured on meta"
    if not torch.cuda.is_available():
        assert "no GPU" in why_dense(99999, 0.2, "cuda")
