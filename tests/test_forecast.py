"""Forecasting between computed steps, the pace at which steps are computed, and the fusion."""

from __future__ import annotations

import math

import pytest
import torch
from carnator.carnator_core.forecast import Forecaster, Pace, blend
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

SHAPE = (1, 4, 2, 3, 3)
BASE, TURN, SHIFT, BEND = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(i)) for i in range(4))


def history(sigma: float) -> Tensor:
    """A render that is anything but linear in sigma."""
    return BASE + TURN * math.sin(3 * sigma) + BEND * sigma**3


def test_there_is_nothing_to_forecast_before_anything_was_computed() -> None:
    with pytest.raises(ValueError, match="nothing was computed"):
        Forecaster(history).predict(0.5)


def test_a_constant_difference_to_the_history_is_forecast_exactly_over_any_distance() -> None:
    caster = Forecaster(history)
    caster.observe(1.0, history(1.0) + SHIFT)
    torch.testing.assert_close(caster.predict(0.2), history(0.2) + SHIFT)


def test_a_history_that_stands_still_leaves_everything_to_the_slope() -> None:
    caster = Forecaster(lambda s: BASE)
    for s in (1.0, 0.9):
        caster.observe(s, SHIFT * s)
    caster.best = "fitted"
    torch.testing.assert_close(caster.predict(0.8), SHIFT * 0.8)


def test_where_nothing_was_computed_the_history_carries_the_last_prediction_on() -> None:
    caster = Forecaster(history)
    caster.observe(1.0, SHIFT)
    caster.best = "repeat"
    torch.testing.assert_close(caster.carried(0.4), SHIFT + history(0.4) - history(1.0))
    alone = Forecaster()
    alone.observe(1.0, SHIFT)
    assert torch.equal(alone.carried(0.4), SHIFT)


def test_the_share_of_the_history_is_found_where_the_target_moves_with_it() -> None:
    share = torch.tensor([0.0, 0.25, 1.0]).view(1, 1, 1, 1, 3)

    def target(s: float) -> Tensor:
        return SHIFT + share * history(s)

    caster = Forecaster(history)
    for s in (1.0, 0.9):
        caster.observe(s, target(s))
    caster.best = "fitted"
    torch.testing.assert_close(caster.predict(0.7), target(0.7), atol=1e-5, rtol=1e-5)


def test_the_share_never_leaves_zero_to_one() -> None:
    caster = Forecaster(history)
    for s in (1.0, 0.9):
        caster.observe(s, SHIFT - 2 * history(s))  # moves against the history
    caster.best = "fitted"
    moved = SHIFT - 2 * history(0.9) + (-2 * (history(0.9) - history(1.0)))
    torch.testing.assert_close(caster.predict(0.8), moved, atol=1e-5, rtol=1e-5)  # a = 0: the slope alone


def test_the_slope_is_exact_over_one_step_and_held_beyond() -> None:
    caster = Forecaster()
    for s in (1.0, 0.9):
        caster.observe(s, BASE + SHIFT * s)
    caster.best = "slope"
    torch.testing.assert_close(caster.predict(0.85), BASE + SHIFT * 0.85)
    torch.testing.assert_close(caster.predict(0.8), BASE + SHIFT * 0.8)
    torch.testing.assert_close(caster.predict(0.5), BASE + SHIFT * 0.8)  # never further than the last step


@pytest.mark.parametrize(("target", "best"), [
    (lambda s: BASE, "repeat"),
    (lambda s: history(s) + SHIFT, "history"),
    (lambda s: BASE + SHIFT * s, "slope"),
    (lambda s: SHIFT + torch.tensor([0.2, 0.5, 0.9]).view(1, 1, 1, 1, 3) * history(s), "fitted"),
])
def test_the_predictor_that_erred_least_serves(target, best: str) -> None:  # type: ignore[no-untyped-def]
    caster = Forecaster(history)
    for s in (1.0, 0.9, 0.8):
        error = caster.observe(s, target(s))
    assert caster.best == best and error == min(caster.errors.values())
    assert error < 1e-5
    torch.testing.assert_close(caster.predict(0.7), target(0.7), atol=1e-4, rtol=1e-4)


def test_the_error_is_relative_to_the_prediction() -> None:
    caster = Forecaster()
    assert caster.observe(1.0, torch.full(SHAPE, 4.0)) == math.inf
    assert caster.observe(0.9, torch.full(SHAPE, 5.0)) == pytest.approx(1 / 5)


def test_errors_outside_the_active_region_do_not_count() -> None:
    weight = torch.zeros(SHAPE[2:])
    weight[:, 1, 1] = 1
    caster = Forecaster(history, weight)
    caster.observe(1.0, BASE)
    wild = BASE.clone()
    wild[..., 0, 0] += 100
    assert caster.observe(0.9, wild) == 0.0 and caster.best == "repeat"


def test_without_a_history_only_ones_own_steps_serve() -> None:
    caster = Forecaster()
    caster.observe(1.0, BASE)
    assert torch.equal(caster.predict(0.5), BASE)
    caster.observe(0.9, BASE + SHIFT)
    caster.observe(0.8, BASE + 2 * SHIFT)
    assert set(caster.errors) == {"repeat", "slope"}


def test_a_forecast_leaves_what_was_observed_alone() -> None:
    caster, seen = Forecaster(history), history(1.0) + SHIFT
    before = seen.clone()
    caster.observe(1.0, seen)
    caster.observe(0.9, history(0.9) + SHIFT)
    caster.predict(0.8).add_(1)
    assert torch.equal(seen, before)


def test_pace_computes_every_step_at_tolerance_zero() -> None:
    pace = Pace(0.0)
    pace.computed(0.0)
    assert all(pace.compute_next(n) for n in range(20, 0, -1))


def test_pace_computes_until_an_error_is_known() -> None:
    pace = Pace(0.1)
    assert pace.compute_next(20)
    pace.computed(math.inf)
    assert pace.compute_next(20)


def test_pace_computes_after_an_error_that_is_not_a_number() -> None:
    pace = Pace(0.1)
    pace.computed(math.nan)
    assert pace.compute_next(20)


def test_pace_stops_at_the_longest_run_and_before_the_tail() -> None:
    pace = Pace(1.0, longest=3, tail=2)
    pace.computed(0.0)
    assert [pace.compute_next(n) for n in (20, 19, 18, 17)] == [False, False, False, True]
    pace.computed(0.0)
    assert [pace.compute_next(n) for n in (3, 2)] == [False, True]


def test_pace_adds_up_the_error_of_every_forecast_step() -> None:
    pace = Pace(0.03, longest=10)
    pace.computed(0.012)
    assert [pace.compute_next(20 - i) for i in range(3)] == [False, False, True]  # 0.012, 0.024, 0.036
    pace.computed(0.03)  # after two skipped steps: 0.01 for each
    assert pace.rate == pytest.approx(0.01)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.one_of(st.floats(0, 0.2), st.just(math.inf), st.just(math.nan)), min_size=60, max_size=60),
       st.floats(0, 0.1), st.integers(1, 6), st.integers(1, 5), st.integers(1, 60))
def test_pace_keeps_its_bounds(errors: list[float], tolerance: float, longest: int, tail: int, steps: int) -> None:
    pace, skipped, error_so_far = Pace(tolerance, longest, tail), 0, 0.0
    for left in range(steps, 0, -1):
        if pace.compute_next(left):
            pace.computed(errors[left - 1])
            skipped, error_so_far = 0, 0.0
        else:
            skipped += 1
            error_so_far += pace.rate
            assert left > tail and skipped <= longest
            assert error_so_far <= tolerance * (1 + 1e-9)


def test_blend_is_bit_exact_on_both_sides_and_mixes_between() -> None:
    own, past = BASE.clone(), TURN.clone()
    weights = torch.tensor([[[0.0, 0.5, 1.0]] * 3] * 2)
    past[..., 2], own[..., 0] = math.nan, math.inf  # what one side does not show cannot leak into the other
    mixed = blend(own, past, weights)
    assert torch.equal(mixed[..., 0], past[..., 0]) and torch.equal(mixed[..., 2], own[..., 2])
    torch.testing.assert_close(mixed[..., 1], (own[..., 1] + past[..., 1]) / 2)
    assert blend(own, past, None) is own
