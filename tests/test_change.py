"""The change map: units, padding, predicted share, and the factor per sigma."""

from __future__ import annotations

import math

import pytest
import torch
from carnator.carnator_core.change import ChangeScale, change_map, change_region, fit_scale, predicted_share
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


def area_under_curve(score: Tensor, truth: Tensor) -> float:
    """Probability that a changed token outranks an unchanged one."""
    above, below = score[truth], score[~truth]
    return float((above[:, None] > below[None]).float().mean() + 0.5 * (above[:, None] == below[None]).float().mean())


def test_a_known_change_in_units_of_the_latent_energy() -> None:
    history = torch.ones(4, 2, 4, 4)
    target = history.clone()
    target[:, 1, 2:, 2:] = -1.0  # one token of a (1, 2, 2) patch: squared difference 4, energy 1
    change = change_map(target, history, (1, 2, 2))
    expected = torch.zeros(2, 2, 2)
    expected[1, 1, 1] = 4.0
    assert torch.allclose(change, expected)
    assert predicted_share(change) == pytest.approx(1 / 8)
    assert torch.equal(change_region(change), expected > 0)


def test_tokens_over_the_edge_average_over_what_they_hold() -> None:
    history, target = torch.ones(2, 1, 3, 5), -torch.ones(2, 1, 3, 5)
    assert torch.allclose(change_map(target, history, (1, 2, 2)), torch.full((1, 2, 3), 4.0))
    assert torch.allclose(change_map(target, history, (2, 2, 2)), torch.full((1, 2, 3), 4.0))


def test_equal_flat_and_broken_predictions() -> None:
    flat = torch.zeros(2, 1, 4, 4)
    assert not bool(change_map(flat, flat, (1, 2, 2)).any())
    one = torch.randn(2, 1, 4, 4)
    assert not bool(change_map(one, one, (1, 2, 2)).any())
    broken = one.clone()
    broken[0, 0, 0, 0] = float("nan")
    assert math.isnan(predicted_share(change_map(broken, one, (1, 2, 2))))
    assert change_map(one.bfloat16(), one.bfloat16() * 2, (1, 2, 2)).dtype == torch.float32
    with pytest.raises(ValueError, match="one shape"):
        change_map(one, torch.randn(2, 2, 4, 4), (1, 2, 2))


def test_it_ranks_changed_tokens_first_through_noise() -> None:
    generator = torch.Generator().manual_seed(3)
    history = torch.randn(16, 3, 16, 16, generator=generator)
    target = history + 0.5 * torch.randn(history.shape, generator=generator)
    target[:, :, 4:10, 4:10] += 1.0
    truth = torch.zeros(3, 8, 8, dtype=torch.bool)
    truth[:, 2:5, 2:5] = True
    assert area_under_curve(change_map(target, history, (1, 2, 2)).flatten(), truth.flatten()) > 0.99


@given(st.floats(0.1, 10.0))
@settings(max_examples=20, deadline=None)
def test_the_map_does_not_depend_on_the_latent_scale(scale: float) -> None:
    generator = torch.Generator().manual_seed(4)
    one, two = torch.randn(2, 4, 2, 6, 6, generator=generator)
    assert torch.allclose(change_map(one * scale, two * scale, (1, 2, 2)), change_map(one, two, (1, 2, 2)), rtol=1e-4)


def test_the_factor_is_linear_between_measured_sigmas() -> None:
    scale = ChangeScale((1.0, 0.9, 0.5), (4.0, 3.0, 1.0))
    assert scale.at(1.2) == 4.0
    assert scale.at(0.95) == pytest.approx(3.5)
    assert scale.at(0.7) == pytest.approx(2.0)
    assert scale.at(0.1) == 1.0
    assert ChangeScale.from_dict(scale.to_dict()) == scale
    assert ChangeScale().at(0.3) == 1.0
    for wrong in (((0.5, 1.0), (1.0, 1.0)), ((1.0,), ()), ((), ())):
        with pytest.raises(ValueError, match=r"sigma"):
            ChangeScale(*wrong)


def test_fit_scale_undoes_an_exaggeration() -> None:
    generator = torch.Generator().manual_seed(5)
    finished = [torch.rand(2, 8, 8, generator=generator) for _ in range(4)]
    early = [3.0 * f for f in finished]
    factor = fit_scale(early, finished)
    assert factor == pytest.approx(3.0, rel=0.05)
    truth = sum(predicted_share(f) for f in finished) / 4
    assert sum(predicted_share(e, factor) for e in early) / 4 == pytest.approx(truth, abs=0.005)
    with pytest.raises(ValueError, match="at least one"):
        fit_scale([], [])
