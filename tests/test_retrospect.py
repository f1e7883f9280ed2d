"""The corrector: a first-order sampler ends where interpolated predictions would have taken it."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from carnator.carnator_core.retrospect import Retrospect
from torch import Tensor

Model = Callable[[float], Tensor]
SHAPE = (1, 2, 1, 3, 3)
STEPS = 20
SIGMAS = torch.linspace(1, 0, STEPS + 1, dtype=torch.float64).tolist()
NOISE, BASE, TURN, BEND = (torch.randn(SHAPE, generator=torch.Generator().manual_seed(i)).double() for i in range(4))


def curved(sigma: float) -> Tensor:
    return BASE + TURN * math.sin(3 * sigma) + BEND * sigma**3


def straight(sigma: float) -> Tensor:
    return BASE + TURN * sigma


def euler(model: Model, due: set[int], corrected: bool, known: Model = lambda s: BASE) -> list[Tensor]:
    """States of Euler's method where only the steps in `due` are computed; between, the last prediction is moved on as
    `known` moves (it stands still by default)."""
    x, states, back = NOISE, [NOISE], Retrospect()
    since, last = 2.0, BASE
    for i, s in enumerate(SIGMAS[:-1]):
        forecast = last + known(s) - known(since)
        if i in due:
            prediction = model(s)
            served = back.settle(s, SIGMAS[i + 1], prediction, (since, last), forecast) if corrected else prediction
            since, last = s, prediction
        else:
            served = forecast
            back.note(s, SIGMAS[i + 1], served)
        x = x + (SIGMAS[i + 1] - s) * (x - served) / s
        states.append(x)
    return states


EVERY = set(range(STEPS))


@pytest.mark.parametrize("gap", [2, 4, 9])
def test_predictions_on_a_line_leave_no_error_after_a_computed_step(gap: int) -> None:
    right, found = euler(straight, EVERY, False), euler(straight, {0, gap, STEPS - 1}, True)
    torch.testing.assert_close(found[gap + 1], right[gap + 1])
    assert float((found[gap] - right[gap]).norm()) > 1e-3, "before it, the forecasts' errors are in the state"


def test_a_curved_course_is_followed_more_closely() -> None:
    due = {0, 4, 8, 12, 16, 18, STEPS - 1}
    right = euler(curved, EVERY, False)[STEPS - 1]
    plain, corrected = (float((euler(curved, due, c)[STEPS - 1] - right).norm()) for c in (False, True))
    assert corrected < 0.3 * plain


def test_what_a_history_knows_of_the_course_stays_in_the_correction() -> None:
    def target(s: float) -> Tensor:
        return curved(s) + straight(s)  # differs from the history by a line
    right = euler(target, EVERY, False)
    found = euler(target, {0, 6, STEPS - 1}, True, known=curved)
    torch.testing.assert_close(found[7], right[7])


def test_a_forecast_with_a_slope_of_its_own_is_held_against_the_line() -> None:
    back, right = Retrospect(), straight(0.7)
    back.note(0.8, 0.7, BASE)  # whatever was served there
    x = NOISE + (0.7 - 0.8) * (NOISE - BASE) / 0.8
    served = back.settle(0.7, 0.6, right, (0.9, straight(0.9)), BASE, straight=False)
    found = x + (0.6 - 0.7) * (x - served) / 0.7
    true = NOISE + (0.7 - 0.8) * (NOISE - straight(0.8)) / 0.8
    torch.testing.assert_close(found, true + (0.6 - 0.7) * (true - right) / 0.7)


def test_the_last_step_and_a_step_after_a_computed_one_are_served_as_they_are() -> None:
    back, prediction = Retrospect(), curved(0.5)
    assert back.settle(0.5, 0.4, prediction, (0.6, BASE), BASE) is prediction
    back.note(0.6, 0.5, BASE)
    assert back.settle(0.5, 0.0, prediction, (0.7, BASE), BASE) is prediction, "there the prediction is the picture"
    assert not back.served
