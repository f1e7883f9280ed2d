"""Evidence Regions: attention readings against the plain formula, seeds, fusion, threshold, and a planted object."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carnator.carnator_core.evidence import (
    cross_response,
    evidence_region,
    expand,
    locate,
    otsu,
    seeds,
    soft_support,
    support,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.overrides import TorchFunctionMode

GRID = (3, 8, 10)


def attention(q: Tensor, k: Tensor) -> Tensor:
    """[heads, N, M] softmax, the oracle."""
    return torch.softmax(q.double() @ k.double().transpose(1, 2) / q.shape[2] ** 0.5, dim=-1)


def states(seed: int, tokens: int, keys: int, heads: int = 2, width: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(heads, tokens, width, generator=generator), torch.randn(heads, keys, width, generator=generator)


def planted(grid: tuple[int, int, int] = GRID, noise: float = 0.3) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """C, q, k and the true region of an object whose tokens attend to one another and to its noun."""
    truth = torch.zeros(grid, dtype=torch.bool)
    for t in range(grid[0]):
        truth[t, 2:5, 2 + t : 5 + t] = True
    generator = torch.Generator().manual_seed(7)
    features = torch.randn(2, truth.numel(), 16, generator=generator) * noise
    features[:, truth.flatten(), 0] += 4.0
    features[:, ~truth.flatten(), 1] += 4.0
    response = 0.05 + 0.3 * truth.flatten() + 0.1 * torch.rand(truth.numel(), generator=generator)
    return response, features, features, truth


class Largest(TorchFunctionMode):
    """The largest tensor that any operation makes."""

    numel = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numel = max(self.numel, out.numel())
        return out


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-6), (torch.float16, 1e-6)])
def test_cross_response_is_the_mean_over_heads_of_the_columns(dtype: torch.dtype, tolerance: float) -> None:
    """Softmax in float32 whatever the inputs' precision: the oracle sees the same rounded inputs."""
    q, k = (x.to(dtype) for x in states(1, 37, 12))
    expected = attention(q, k)[:, :, [2, 5]].sum(-1).mean(0)
    found = cross_response(q, k, [5, 2, 5], chunk=10)
    assert found.dtype == torch.float32
    assert torch.allclose(found.double(), expected, atol=tolerance)


def test_cross_response_without_columns_or_with_wrong_ones() -> None:
    q, k = states(2, 9, 4)
    assert torch.equal(cross_response(q, k, []), torch.zeros(9))
    for wrong in ([4], [-1]):
        with pytest.raises(IndexError, match="of 4"):
            cross_response(q, k, wrong)


def test_seeds_are_the_ends_of_the_quantiles() -> None:
    response = torch.arange(100.0)[torch.randperm(100, generator=torch.Generator().manual_seed(0))]
    positive, negative = seeds(response, 0.9, 0.3)
    assert sorted(response[positive].tolist()) == list(range(90, 100))
    assert sorted(response[negative].tolist()) == list(range(30))
    positive, negative = seeds(response, 0.5, 0.5, most=10)
    assert len(positive) == len(negative) == 10
    assert float(response[positive].min()) >= 50
    assert float(response[positive].max()) - float(response[positive].min()) >= 40  # a sample, not a corner


@pytest.mark.parametrize(
    "response", [torch.zeros(50), torch.full((50,), 0.2), 0.2 + 1e-3 * torch.rand(50), torch.full((50,), float("nan")),
                 torch.ones(1)]
)
def test_no_contrast_no_seeds_no_region(response: Tensor) -> None:
    positive, negative = seeds(response)
    assert len(positive) == len(negative) == 0
    q, k = states(3, len(response), len(response))
    assert not bool(expand(q, k, positive, negative).any())
    found = locate(response, [(q, k)], (1, 1, len(response)))
    assert not bool(found.region.any())
    assert not bool(found.soft.any())


@given(st.lists(st.floats(0, 1, width=32), min_size=2, max_size=60), st.floats(0.5, 1.0), st.floats(0.0, 0.9))
@settings(max_examples=60, deadline=None)
def test_seed_sets_never_overlap(values: list[float], positive: float, negative: float) -> None:
    high, low = seeds(torch.tensor(values), positive, negative)
    assert not set(high.tolist()) & set(low.tolist())
    if len(high) and len(low):
        assert float(torch.tensor(values)[high].min()) >= float(torch.tensor(values)[low].max())


@pytest.mark.parametrize("chunk", [7, 1024])
def test_expansion_equals_the_formula(chunk: int) -> None:
    q, k = states(4, 50, 50, heads=3)
    positive, negative = torch.tensor([3, 17, 40]), torch.tensor([0, 1])
    weights = attention(q, k)
    expected = (weights[:, :, positive].amax(-1) - weights[:, :, negative].amax(-1)).mean(0)
    assert torch.allclose(expand(q, k, positive, negative, chunk).double(), expected, atol=1e-6)
    alone = expand(q, k, positive, negative[:0], chunk).double()
    assert torch.allclose(alone, weights[:, :, positive].amax(-1).mean(0), atol=1e-6)


def test_expansion_never_holds_n_by_n() -> None:
    q, k = states(5, 2000, 2000, heads=1, width=8)
    with Largest() as seen:
        expand(q, k, torch.arange(20), torch.arange(20, 40), chunk=100)
    assert seen.numel <= 100 * 2000
    with Largest() as seen:
        expand(q, k, torch.arange(20), torch.arange(20, 40), chunk=100, sampled=128)
    assert seen.numel <= max(100 * 140, q.numel())


def test_sampled_row_sums_rank_the_same() -> None:
    response, q, k, _ = planted((4, 16, 20), noise=0.8)
    positive, negative = seeds(response)
    exact, cheap = expand(q, k, positive, negative), expand(q, k, positive, negative, sampled=128)
    ranks = torch.stack([exact.argsort().argsort().double(), cheap.argsort().argsort().double()])
    assert float(torch.corrcoef(ranks)[0, 1]) > 0.98
    one, two = locate(response, [(q, k)], (4, 16, 20)), locate(response, [(q, k)], (4, 16, 20), sampled=128)
    both, either = int((one.region & two.region).sum()), int((one.region | two.region).sum())
    assert both / either > 0.95


def test_fusion_is_the_papers_formula() -> None:
    cross, self_ = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([-0.5, 0.5, 0.0])
    # C -> 0, .5, 1; S -> 0, 1, .5; S (.2 + .8 C^2) = 0, .4, .5
    assert support(cross, self_, gamma=2.0, epsilon=0.2).tolist() == pytest.approx([0.0, 0.8, 1.0])
    assert not bool(support(cross, torch.ones(3)).any())


def test_one_outlier_does_not_hide_the_object() -> None:
    self_ = torch.zeros(200)
    self_[20:40] = 1.0
    self_[150] = 50.0
    region = evidence_region(support(torch.ones(200) - torch.linspace(0, 0.1, 200), self_), (1, 10, 20)).flatten()
    assert bool(region[20:40].all())
    alone = torch.zeros(200)
    alone[7] = 1.0  # when nothing else stands out, a single token is the object
    assert float(support(torch.linspace(1, 0.5, 200), alone)[7]) == 1.0


def test_otsu_splits_two_levels_in_the_middle_of_the_gap() -> None:
    assert otsu(torch.tensor([0.1] * 30 + [0.9] * 5)) == pytest.approx(0.5, abs=0.02)
    assert otsu(torch.tensor([0.0] * 90 + [0.2] * 8 + [1.0] * 2)) < 0.7


def test_threshold_and_shape() -> None:
    values = torch.linspace(0, 1, 240)
    region = evidence_region(values, GRID, threshold=0.75)
    assert region.shape == GRID
    assert int(region.sum()) == 60
    assert torch.equal(soft_support(values, GRID).flatten(), values)
    assert int(evidence_region(values[:80], (1, 8, 10), 0.2).sum()) > 0
    with pytest.raises(ValueError, match="do not fill"):
        evidence_region(values, (3, 8, 11))


@pytest.mark.parametrize("grid", [GRID, (1, 8, 10)])
def test_a_planted_object_is_found(grid: tuple[int, int, int]) -> None:
    response, q, k, truth = planted(grid)
    found = locate(response, [(q, k), (q.half(), k.half())], grid)
    assert torch.equal(found.region, truth)
    assert 0.0 <= float(found.soft.min()) and float(found.soft.max()) == 1.0


def test_expansion_mends_a_patchy_response() -> None:
    """Half of the object does not answer to its noun; self-attention brings it back."""
    response, q, k, truth = planted()
    patchy = response.clone()
    answered = torch.nonzero(truth.flatten()).flatten()[::2]
    patchy[truth.flatten()] = 0.12
    patchy[answered] = response[answered]
    spread = expand(q, k, *seeds(patchy))
    silent = truth.flatten() & (patchy == 0.12)
    assert float(spread[silent].min()) > float(spread[~truth.flatten()].max())
