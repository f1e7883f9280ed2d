"""Steps that are not computed: which are skipped, and what the next computed one puts right."""

from __future__ import annotations

import pytest
import torch
from carnator.carnator_core.course import Course
from carnator.carnator_core.forecast import Forecaster, Pace
from carnator.carnator_core.skipping import Skipping

SIGMAS = [1.0, 0.8, 0.6, 0.4, 0.2, 0.0]


def prediction(value: float) -> torch.Tensor:
    return torch.full((1, 2, 1, 2, 2), value)


def test_nothing_is_skipped_before_something_was_computed() -> None:
    """A forecast needs a step to start from, however patient the pace is."""
    skipping = Skipping(Forecaster(), pace=Pace(tolerance=10.0))
    assert not skipping.skips(0, 5)
    skipping.observe(0, 1.0, prediction(1.0))
    assert not skipping.skips(1, 4)  # how far a forecast errs has not been seen yet
    skipping.observe(1, 0.8, prediction(1.0))
    assert skipping.skips(2, 3)


def test_without_a_course_or_a_pace_every_step_is_computed() -> None:
    skipping = Skipping(Forecaster())
    skipping.observe(0, 1.0, prediction(1.0))
    assert not any(skipping.skips(step, 5 - step) for step in range(1, 5))


def test_a_course_says_which_steps_are_skipped() -> None:
    """Of a history whose predictions hardly move, the steps between the first and the last are free to skip."""
    costs = torch.full((5, 5), float("inf"), dtype=torch.float64)
    for i in range(5):
        costs[i, i + 1:] = 1e-9
    skipping = Skipping(Forecaster(lambda sigma: prediction(1.0)), course=Course(costs, 0.25, 6))
    skipping.observe(0, 1.0, prediction(1.0))
    assert skipping.skips(1, 4) and skipping.course is not None and not skipping.course.due(1)


@pytest.mark.parametrize("corrects", [True, False])
def test_an_euler_state_is_put_right_after_a_forecast(corrects: bool) -> None:
    """With the corrector, Euler ends a gap where it would have with the line between both computed steps served; without it,
    what is served at a computed step is the prediction itself."""
    skipping = Skipping(Forecaster(), corrects=corrects)
    skipping.observe(0, 1.0, prediction(1.0))
    x = served_x = torch.zeros(1, 2, 1, 2, 2)
    truth = {0.8: 1.0, 0.6: 1.2, 0.4: 1.4}  # a straight line from the step at 0.8 on
    skipping.computed(1, 0.8, 0.6, prediction(1.0))

    def euler(state: torch.Tensor, now: float, then: float, value: torch.Tensor) -> torch.Tensor:
        return state * then / now + (1 - then / now) * value

    served_x = euler(served_x, 0.6, 0.4, skipping.forecast(0.6, 0.4))
    x = euler(x, 0.6, 0.4, prediction(truth[0.6]))
    out = skipping.computed(3, 0.4, 0.2, prediction(truth[0.4]))
    served_x, x = euler(served_x, 0.4, 0.2, out), euler(x, 0.4, 0.2, prediction(truth[0.4]))
    assert torch.allclose(served_x, x, atol=1e-5) == corrects
    assert torch.equal(out, prediction(truth[0.4])) != corrects


def test_what_is_remembered_of_a_step_is_a_copy() -> None:
    """The sampler may go on to change what it was given."""
    skipping = Skipping(Forecaster())
    given = prediction(1.0)
    skipping.computed(0, 1.0, 0.8, given)
    given.zero_()
    assert torch.equal(skipping.forecaster.predict(0.8), prediction(1.0))


def test_another_model_forecasts_nothing_of_the_first_one() -> None:
    skipping = Skipping(Forecaster(), pace=Pace(tolerance=10.0))
    skipping.observe(0, 1.0, prediction(1.0))
    skipping.observe(1, 0.8, prediction(1.0))
    skipping.forget()
    assert not skipping.skips(2, 3)
