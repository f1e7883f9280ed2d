"""Which steps a hit computes, from what its history says of the cost of skipping."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
import torch
from carnator.carnator_core.course import UNIT, Course, bend, choose, skipping_costs
from carnator.carnator_core.record import Past
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

SHAPE = (2, 1, 3, 3)
STEPS = 12
SIGMAS = torch.linspace(1, 0, STEPS + 1).tolist()
BASE, TURN = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(i)) for i in range(2))


def bending(at: float) -> list[Tensor]:
    """Predictions that stand still but for one quick turn at a noise level."""
    return [BASE + TURN * math.tanh(20 * (s - at)) for s in SIGMAS[:-1]]


def costs_of(predictions: list[Tensor]) -> Tensor:
    return skipping_costs(bend(predictions), SIGMAS[:-1], SIGMAS)


def held(predictions: list[Tensor], i: int, k: int) -> Tensor:
    """What Euler's state at step k lacks when D_i was served between i and k, by stepping."""
    right = wrong = torch.zeros(SHAPE, dtype=torch.float64)
    for j in range(i, k):
        r = SIGMAS[j + 1] / SIGMAS[j]
        right = r * right + (1 - r) * predictions[j].double()
        wrong = r * wrong + (1 - r) * predictions[i].double()
    return right - wrong


@pytest.mark.parametrize(("i", "k"), [(0, 1), (0, 2), (3, 7), (0, 11)])
def test_the_cost_is_the_error_that_holding_leaves_in_the_state(i: int, k: int) -> None:
    predictions = bending(0.6)
    error = float(held(predictions, i, k).square().sum() / predictions[-1].square().sum())
    assert float(costs_of(predictions)[i, k]) == pytest.approx(error, rel=1e-4, abs=1e-9)


def test_a_history_that_stands_still_costs_nothing_and_needs_the_fewest_steps() -> None:
    costs = costs_of([BASE] * STEPS)
    assert float(costs[torch.isfinite(costs)].max()) < 1e-9
    assert len(choose(costs, 2, 1e-6, longest=3)) == 3, "nine steps on, by four at a time"
    assert choose(costs, 2, 1e-6, longest=STEPS) == (STEPS - 1,)


@pytest.mark.parametrize("at", [0.75, 0.45])
def test_steps_lie_where_the_history_bends(at: float) -> None:
    costs = costs_of(bending(at))
    tight = choose(costs, 0, 1e-4, STEPS)
    bend = min(range(STEPS), key=lambda i: abs(SIGMAS[i] - at))
    assert {bend, bend + 1} & set(tight) and len(tight) < STEPS - 1


@given(seed=st.integers(0, 99), start=st.integers(0, 4), longest=st.integers(1, 9), allowed=st.floats(1e-6, 2.0))
@settings(max_examples=40, deadline=None)
def test_no_smaller_set_keeps_within_what_is_allowed(seed: int, start: int, longest: int, allowed: float) -> None:
    n = 8
    costs = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)).double().triu(1)
    costs[torch.ones(n, n).tril().bool()] = torch.inf
    costs[torch.arange(n - 1), torch.arange(1, n)] = 0.0

    def total(steps: tuple[int, ...]) -> float:
        way = (start, *steps)
        if any(b - a - 1 > longest for a, b in zip(way, way[1:], strict=False)):
            return math.inf
        return sum(float(costs[a, b]) for a, b in zip(way, way[1:], strict=False))

    found = choose(costs, start, allowed, longest)
    assert found[-1] == n - 1 and found == tuple(sorted(found)) and found[0] > start
    assert total(found) <= allowed
    between = range(start + 1, n - 1)
    smaller = [c for size in range(len(found) - 1) for c in combinations(between, size)]
    assert all(total((*c, n - 1)) > allowed for c in smaller)


def test_every_step_is_due_until_one_was_computed() -> None:
    course = Course(costs_of(bending(0.5)), 1.0, 6)
    assert all(course.due(i) for i in range(STEPS))
    course.computed(0, 0.0, 0.0)
    assert not all(course.due(i) for i in range(1, STEPS)) and course.due(STEPS - 1)


def test_a_target_that_moves_more_than_its_history_gets_more_steps() -> None:
    costs = costs_of(bending(0.5))

    def steps(own: float) -> int:
        course = Course(costs, 0.5, STEPS)
        course.computed(0, 0.0, 0.0)
        course.computed(1, own, 1.0)
        return len(course.steps)
    assert steps(100.0) > steps(1.0) >= steps(0.01)
    assert steps(math.nan) == steps(1.0), "a movement that is not a number says nothing"


def test_what_was_spent_is_not_spent_again() -> None:
    costs = torch.full((4, 4), torch.inf).double()
    costs[0, 2] = costs[2, 3] = 0.0
    costs[0, 1] = costs[1, 2] = 0.0
    costs[1, 3] = (UNIT * 1.0) ** 2
    course = Course(costs, 1.0, 3, spent=0.0)
    course.computed(1, 0.0, 0.0)
    assert course.steps == (3,)
    again = Course(costs, 1.0, 3, spent=1e-4)
    again.computed(1, 0.0, 0.0)
    assert again.steps == (2, 3)


def test_a_second_call_at_a_step_changes_nothing() -> None:
    course = Course(costs_of(bending(0.5)), 0.5, 6)
    course.computed(0, 0.0, 0.0)
    course.computed(1, 1.0, 1.0)
    before = course.steps
    course.computed(1, 50.0, 0.0)
    assert course.steps == before and course.own == 1.0


def test_a_history_of_another_schedule_is_judged_as_it_is_served() -> None:
    predictions, fine = bending(0.6), SIGMAS[:-1]
    coarse = [1.0, 0.8, 0.52, 0.2]
    past = Past(fine, predictions)
    direct = skipping_costs(bend([past.at(s) for s in coarse]), coarse, [*coarse, 0.0])
    scale = float(past.at(0.2).square().sum() / predictions[-1].square().sum())
    torch.testing.assert_close(skipping_costs(bend(predictions), fine, [*coarse, 0.0]), direct * scale, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("sigmas", [[], [1.0, -1.0, 0.5], [0.0]])
def test_a_schedule_that_does_not_fit_is_refused(sigmas: list[float]) -> None:
    with pytest.raises(ValueError, match="does not fit a schedule"):
        skipping_costs(bend([BASE] * 2), [1.0, 0.5], sigmas)
    with pytest.raises(ValueError, match="no predictions|without predictions"):
        bend([])
