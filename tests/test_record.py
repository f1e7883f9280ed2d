"""Trajectories: what was predicted at a call, and at any noise level."""

from __future__ import annotations

import pytest
import torch
from carnator.carnator_core.record import EXACT_BYTES, Trajectory, same_sigma, storage_dtype
from hypothesis import given, settings
from hypothesis import strategies as st


def flat(value: float) -> torch.Tensor:
    """A prediction [1, 1, 1, 2, 2] of one value."""
    return torch.full((1, 1, 1, 2, 2), float(value))


def test_neighbouring_steps_of_a_long_schedule_are_not_the_same_step() -> None:
    sigmas = torch.linspace(1, 0, 1001).tolist()
    assert not any(same_sigma(a, b) for a, b in zip(sigmas, sigmas[1:], strict=False))


def test_a_sigma_after_a_float16_trip_is_still_the_same_step() -> None:
    assert same_sigma(0.7, float(torch.tensor(0.7).half()) * 0 + 0.7 * (1 + 5e-5))
    assert same_sigma(0.0, 0.0) and same_sigma(0.0, 5e-8) and not same_sigma(0.0, 1e-6)


def test_every_call_needs_a_prediction() -> None:
    with pytest.raises(ValueError, match="2 sigmas for 1 predictions"):
        Trajectory([1.0, 0.5], [flat(1)])


def test_an_empty_trajectory_serves_nothing() -> None:
    empty = Trajectory()
    assert len(empty) == 0 and empty.call(0, 1.0) is None
    with pytest.raises(ValueError, match="empty trajectory"):
        empty.at(0.5)


def test_a_call_is_replayed_only_at_its_own_index_and_sigma() -> None:
    kept = Trajectory([1.0, 0.5], [flat(1), flat(2)])
    replayed = kept.call(1, 0.5)
    assert replayed is not None and replayed is kept.predictions[1]
    assert kept.call(1, 0.6) is None, "another schedule"
    assert kept.call(0, 0.5) is None, "another call"
    assert kept.call(2, 0.5) is None, "past the end"


def test_the_two_calls_of_heun_at_one_sigma_are_both_replayed_in_order() -> None:
    kept = Trajectory([1.0, 0.5, 0.5, 0.2], [flat(v) for v in (1, 2, 3, 4)])
    assert torch.equal(kept.call(1, 0.5), flat(2)) and torch.equal(kept.call(2, 0.5), flat(3))


def test_at_takes_the_last_call_at_a_sigma_alone_and_as_a_neighbour() -> None:
    kept = Trajectory([1.0, 0.5, 0.5, 0.2], [flat(v) for v in (10, 99, 20, 26)])
    assert torch.equal(kept.at(0.5), flat(20))
    torch.testing.assert_close(kept.at(0.75), flat(15))
    torch.testing.assert_close(kept.at(0.35), flat(23))


def test_at_holds_the_ends() -> None:
    kept = Trajectory([0.9, 0.4], [flat(3), flat(5)])
    assert torch.equal(kept.at(1.0), flat(3)) and torch.equal(kept.at(0.0), flat(5))


def test_at_does_not_need_the_calls_in_order_of_sigma() -> None:
    kept = Trajectory([0.9, 0.2, 0.6], [flat(9), flat(2), flat(6)])  # dpm_adaptive takes steps back
    torch.testing.assert_close(kept.at(0.4), flat(4))
    torch.testing.assert_close(kept.at(0.75), flat(7.5))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=12, unique=True), st.floats(0.0, 1.0))
def test_at_is_exact_for_predictions_linear_in_sigma(sigmas: list[float], sigma: float) -> None:
    kept = Trajectory(sigmas, [flat(3 * s - 1) for s in sigmas])
    inside = min(max(sigma, min(sigmas)), max(sigmas))
    torch.testing.assert_close(kept.at(sigma), flat(3 * inside - 1), atol=1e-3, rtol=0)


def test_fifty_steps_serve_thirty() -> None:
    def d(s: float) -> torch.Tensor:
        return flat(s * s - s**3)  # second derivative at most 4 on 0..1

    fifty, thirty = torch.linspace(1, 0, 51)[:-1].tolist(), torch.linspace(1, 0, 31)[:-1].tolist()
    kept = Trajectory(fifty, [d(s) for s in fifty])
    error = max(float((kept.at(s) - d(s)).abs().max()) for s in thirty)
    assert error <= 4 * (1 / 50) ** 2 / 8 + 1e-6, "linear interpolation errs by at most h^2 max|D''| / 8"


def test_what_is_added_is_kept_as_it_is() -> None:
    kept, prediction = Trajectory(), flat(1)
    kept.add(1, prediction)
    assert kept.predictions[0] is prediction and isinstance(kept.sigmas[0], float)


def test_float32_until_the_trajectory_is_too_large() -> None:
    fits = torch.empty(1, 16, 1, 64, 64)  # 256 KiB
    assert storage_dtype(fits, EXACT_BYTES // (fits.numel() * 4)) is torch.float32
    assert storage_dtype(fits, EXACT_BYTES // (fits.numel() * 4) + 1) is torch.float16
