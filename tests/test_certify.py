"""Risk: the Clopper-Pearson bound, the choice of thresholds, and what a certificate says."""

from __future__ import annotations

import itertools
import json
import math
import random

import pytest
import torch
from carnator.carnator_core.certify import (
    Sample,
    certificate,
    counted,
    describe,
    is_safe,
    needed,
    select,
    upper_bound,
)
from carnator.carnator_core.gate import Decision, Distance, Thresholds
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom


def test_the_papers_bound_and_its_neighbours() -> None:
    assert upper_bound(0, 50, 0.90) == pytest.approx(0.0450, abs=5e-5)
    assert upper_bound(0, 50, 0.95) == pytest.approx(0.0582, abs=5e-5)
    assert upper_bound(0, 59, 0.95) <= 0.05 < upper_bound(0, 58, 0.95)
    assert needed(0.05, 0.95) == 59
    assert needed(0.05, 0.95, unsafe=1) == 93
    assert upper_bound(0, 0) == upper_bound(7, 7) == 1.0
    for wrong in ((-1, 5, 0.9), (6, 5, 0.9), (0, 5, 1.0), (0, 5, 0.0)):
        with pytest.raises(ValueError, match="not possible"):
            upper_bound(*wrong)
    with pytest.raises(ValueError, match="between 0 and 1"):
        needed(0.0)


@given(st.integers(1, 300), st.integers(0, 300), st.sampled_from([0.8, 0.9, 0.95, 0.99]))
@settings(max_examples=60, deadline=None)
def test_the_bound_is_where_so_few_failures_become_improbable(accepted: int, unsafe: int, confidence: float) -> None:
    unsafe = min(unsafe, accepted - 1)
    bound = upper_bound(unsafe, accepted, confidence)
    assert binom.cdf(unsafe, accepted, bound) == pytest.approx(1 - confidence, abs=1e-6)
    assert bound <= upper_bound(unsafe + 1, accepted, confidence)
    assert bound >= upper_bound(unsafe, accepted + 1, confidence)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("accepted", [20, 59, 200])
def test_the_bound_covers_in_simulation(rate: float, accepted: int) -> None:
    """In at least 95 of 100 worlds the true rate lies under the bound (within the simulation's own error)."""
    generator = torch.Generator().manual_seed(accepted)
    failures = (torch.rand(4000, accepted, generator=generator) < rate).sum(1).tolist()
    table = [upper_bound(x, accepted, 0.95) for x in range(accepted + 1)]
    covered = sum(table[x] >= rate for x in failures) / len(failures)
    assert covered >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / 4000)


def random_samples(seed: int, count: int, names: tuple[str, ...]) -> list[Sample]:
    """Pairs whose chance to be unsafe grows with their distances; some distances do not apply."""
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        distances = {n: rng.random() if rng.random() < 0.9 else math.nan for n in names}
        known = [d for d in distances.values() if not math.isnan(d)]
        samples.append(Sample(distances, rng.random() > max(known, default=0.0) ** 3))
    return samples


def passes(sample: Sample, limits: dict[str, float]) -> bool:
    return all(math.isnan(d) or d <= limits[n] for n, d in sample.distances.items())


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("alpha", [0.0, 0.1])
def test_selection_is_the_brute_force_optimum_on_small_sets(seed: int, alpha: float) -> None:
    names = ("size", "colour")
    samples = random_samples(seed, 14, names)
    levels = [sorted({0.0, *(s.distances[n] for s in samples if not math.isnan(s.distances[n]))}) for n in names]
    best = 0
    for pair in itertools.product(*levels):
        inside = [s for s in samples if passes(s, dict(zip(names, pair, strict=True)))]
        if sum(not s.safe for s in inside) <= alpha * len(inside):
            best = max(best, len(inside))
    found = select(samples, alpha, names)
    assert found.accepted == best
    assert found.coverage == best / 14
    assert found.thresholds.shape == math.inf  # not asked to choose it


@given(st.integers(0, 10_000), st.sampled_from([0.0, 0.05, 0.2]))
@settings(max_examples=25, deadline=None)
def test_selection_keeps_its_promise(seed: int, alpha: float) -> None:
    names = ("size", "colour", "change")
    samples = random_samples(seed, 80, names)
    found = select(samples, alpha, names)
    limits = {n: getattr(found.thresholds, n) for n in names}
    inside = [s for s in samples if passes(s, limits)]
    assert len(inside) == found.accepted
    assert sum(not s.safe for s in inside) <= alpha * len(inside) + 1e-9
    for name in names:  # each threshold is one that some accepted pair needs
        assert limits[name] in {0.0, *(s.distances[name] for s in inside)}


def test_selection_with_nothing_to_gain_or_nothing_to_lose() -> None:
    bad = select([Sample({"size": 0.3}, False), Sample({"size": 0.1}, False)], 0.1)
    assert (bad.accepted, bad.coverage, bad.risk) == (0, 0.0, 0.0)
    assert bad.thresholds == Thresholds(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    good = select([Sample({"size": 0.3, "change": 0.2}, True), Sample({"size": math.inf}, True)], 0.1)
    assert good.accepted == 1  # an infinite distance is never accepted
    assert (good.thresholds.size, good.thresholds.change) == (0.3, 0.2)
    refused = select([Sample({"size": 0.1}, True), Sample({"size": 0.1}, True, admissible=False)], 0.1)
    assert refused.coverage == 0.5
    with pytest.raises(ValueError, match="at least one sample"):
        select([], 0.1)


def test_five_discrepancies_and_hundreds_of_pairs_are_quick_and_near_the_truth() -> None:
    names = ("size", "shape", "colour", "motion", "change")
    rng = random.Random(1)
    true = dict(zip(names, (0.7, 0.8, 0.6, 0.75, 0.5), strict=True))
    samples = []
    for _ in range(600):
        distances = {n: rng.random() for n in names}
        samples.append(Sample(distances, all(distances[n] <= true[n] for n in names)))
    ideal = sum(s.safe for s in samples)
    assert select(samples, 0.0).accepted == ideal


def test_labels() -> None:
    tolerance = {"psnr": 1.0, "alignment": 0.0}
    assert is_safe({"psnr": 29.0, "alignment": 1.0}, {"psnr": 30.0, "alignment": 1.0}, tolerance)
    assert not is_safe({"psnr": 28.9, "alignment": 1.0}, {"psnr": 30.0, "alignment": 1.0}, tolerance)
    assert not is_safe({"psnr": math.nan, "alignment": 1.0}, {"psnr": 30.0, "alignment": 1.0}, tolerance)
    assert not is_safe({"alignment": 1.0}, {"psnr": 30.0, "alignment": 1.0}, tolerance)


def test_only_what_counts_enters_a_sample() -> None:
    rows = (Distance("colour", "ball", 30.0, 20.0, expected=True), Distance("colour", "snow", 2.0, 20.0),
            Distance("colour", "sky", 5.0, 20.0), Distance("change", "", 0.2, 0.6))
    assert counted(Decision(True, "", rows, "h")) == {"colour": 5.0, "change": 0.2}


def test_a_certificate_says_what_was_tried_and_survives_json() -> None:
    accepted = [True] * 50 + [False] * 30
    safe = [True] * 50 + [False] * 30
    made = certificate(accepted, safe, Thresholds(motion=math.inf), 0.90, model="tiny", tolerances={"psnr": 1.0})
    back = json.loads(json.dumps(made, allow_nan=False))
    assert (back["tried"], back["accepted"], back["unsafe"], back["model"]) == (80, 50, 0, "tiny")
    assert back["bound"] == pytest.approx(0.0450, abs=5e-5)
    assert Thresholds.from_dict(back["thresholds"]) == Thresholds(motion=math.inf)
    assert describe(back) == "certified: at most 4.50% of reuses unsafe at 90% confidence (0 unsafe of 50 accepted)"
    for broken in (None, {}, back | {"bound": 0.01}, back | {"accepted": "x"}, back | {"unsafe": 60}):
        assert describe(broken) == "uncertified"
    with pytest.raises(ValueError, match="as many decisions"):
        certificate([True], [], Thresholds())
