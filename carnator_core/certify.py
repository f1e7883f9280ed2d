"""Risk: choosing the gate's thresholds from labelled pairs, and certifying them on others (paper, appendix F).

A pair is one request with one accepted or refused history. It is safe when reuse keeps every quality metric within
its tolerance of the dense render. Thresholds are chosen on one set of pairs and certified on a disjoint one.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy.stats import beta
from torch import Tensor

from .gate import Decision, Thresholds

_NAMES = ("size", "shape", "colour", "motion", "change", "latent")
_CELLS = 1 << 20  # of the grid search; the line search after it uses all values


@dataclass(frozen=True)
class Sample:
    """One labelled pair. distances: the largest counted discrepancy of each name; a missing or NaN one does not count.
    safe: y_i. admissible: False when the gate refuses whatever the thresholds are."""

    distances: Mapping[str, float]
    safe: bool
    admissible: bool = True


@dataclass(frozen=True)
class Selection:
    """Chosen thresholds with their coverage C(tau), empirical risk R(tau) (0 when none is accepted) and counts."""

    thresholds: Thresholds
    coverage: float
    risk: float
    accepted: int
    tried: int


def is_safe(quality: Mapping[str, float], dense: Mapping[str, float], tolerance: Mapping[str, float]) -> bool:
    """y_i = I[Q_m >= Q_m^dense - Delta_m for every metric m of `tolerance`]; a missing or NaN value is not safe."""
    return all(
        quality.get(m, math.nan) >= dense.get(m, math.nan) - allowed for m, allowed in tolerance.items()
    )


def counted(decision: Decision) -> dict[str, float]:
    """The largest value of each discrepancy that counts against the history, for a `Sample`."""
    worst: dict[str, float] = {}
    for d in decision.distances:
        if not d.expected:
            worst[d.name] = max(d.value, worst.get(d.name, 0.0))
    return worst


def upper_bound(unsafe: int, accepted: int, confidence: float = 0.95) -> float:
    """One-sided Clopper-Pearson upper bound of the unsafe rate: P(rate <= bound) >= confidence.

    0 of 50 gives 0.0450 at 0.90 and 0.0582 at 0.95. Nothing accepted bounds nothing: 1.0.
    Raises ValueError for counts that cannot be or a confidence outside (0, 1).
    """
    if not 0 <= unsafe <= accepted or not 0.0 < confidence < 1.0:
        raise ValueError(f"{unsafe} unsafe of {accepted} at confidence {confidence} is not possible")
    if unsafe == accepted:
        return 1.0
    return float(beta.ppf(confidence, unsafe + 1, accepted - unsafe))


def needed(bound: float, confidence: float = 0.95, unsafe: int = 0) -> int:
    """How many accepted pairs, `unsafe` of them unsafe, a bound of at most `bound` takes (59 for 5 % at 95 %)."""
    if not 0.0 < bound < 1.0:
        raise ValueError(f"a bound lies between 0 and 1, not at {bound}")
    low, high = unsafe, unsafe + 1
    while upper_bound(unsafe, high, confidence) > bound:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if upper_bound(unsafe, middle, confidence) > bound else (low, middle)
    return high


def select(samples: Sequence[Sample], alpha: float, names: Sequence[str] = _NAMES) -> Selection:
    """tau* = argmax C(tau) subject to R(tau) <= alpha, over the discrepancies in `names`; the others are left out.

    Exact on a grid of quantiles (a cumulative histogram over all threshold combinations), then each threshold in turn
    is moved to its best value given the others, until none moves. At equal coverage the smaller risk wins, and every
    threshold is drawn in to the largest value it accepts. When nothing can be accepted, all thresholds are zero. A
    discrepancy that no sample has measured is left out.
    Raises ValueError without samples, or for an alpha outside [0, 1).
    """
    if not samples or not 0.0 <= alpha < 1.0:
        raise ValueError("at least one sample, and an alpha of at least 0 and less than 1")
    used = [s for s in samples if s.admissible]
    values = torch.tensor([[_value(s.distances.get(n)) for n in names] for s in used], dtype=torch.float64)
    values = values.reshape(len(used), len(names))
    unsafe = torch.tensor([not s.safe for s in used], dtype=torch.bool)
    best = _refine(values, unsafe, alpha, _grid_search(values, unsafe, alpha))
    if _score(values, unsafe, best, alpha)[0] <= 0:
        best = torch.zeros_like(best)
    inside = (values <= best).all(dim=1)
    accepted, wrong = int(inside.sum()), int((inside & unsafe).sum())
    drawn_in = values[inside].amax(dim=0) if accepted else best
    known = {n for s in samples for n, v in s.distances.items() if not math.isnan(v)} if accepted else set(names)
    limits = dict.fromkeys(_NAMES, math.inf) | {n: float(v) for n, v in zip(names, drawn_in, strict=True) if n in known}
    return Selection(Thresholds(**limits), accepted / len(samples), wrong / max(1, accepted), accepted, len(samples))


def certificate(
    accepted: Sequence[bool],
    safe: Sequence[bool],
    thresholds: Thresholds,
    confidence: float = 0.95,
    **facts: Any,
) -> dict[str, Any]:
    """A certificate of `thresholds` from pairs that took no part in choosing them, as a JSON-able dict.

    accepted[i]: the gate's decision; safe[i]: y_i. facts: model, shape_class, metrics, tolerances, pack_version ...
    """
    if len(accepted) != len(safe):
        raise ValueError("as many decisions as labels")
    count = sum(map(bool, accepted))
    unsafe = sum(1 for a, s in zip(accepted, safe, strict=True) if a and not s)
    return {
        **facts,
        "thresholds": thresholds.to_dict(),
        "tried": len(accepted),
        "accepted": count,
        "unsafe": unsafe,
        "coverage": count / len(accepted) if accepted else 0.0,
        "bound": upper_bound(unsafe, count, confidence),
        "confidence": confidence,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def describe(found: Mapping[str, Any] | None) -> str:
    """What a certificate says, in a line; "uncertified" without one or when its figures do not add up."""
    try:
        if found is None:
            return "uncertified"
        unsafe, accepted, confidence = int(found["unsafe"]), int(found["accepted"]), float(found["confidence"])
        if abs(upper_bound(unsafe, accepted, confidence) - float(found["bound"])) > 1e-6:
            return "uncertified"
    except (KeyError, TypeError, ValueError):
        return "uncertified"
    return (f"certified: at most {found['bound']:.2%} of reuses unsafe at {confidence:.0%} confidence "
            f"({unsafe} unsafe of {accepted} accepted)")


def _value(distance: float | None) -> float:
    """A discrepancy that does not apply passes every threshold."""
    return 0.0 if distance is None or math.isnan(distance) else distance


def _grid_search(values: Tensor, unsafe: Tensor, alpha: float) -> Tensor:
    """The best thresholds on a grid of each discrepancy's quantiles, [names] float64."""
    count, names = values.shape
    levels = []
    measured = [column[column.isfinite() & ~unsafe].unique() for column in values.T]
    most = int(_CELLS ** (1 / max(1, sum(len(known) > 1 for known in measured))) + 1e-9)
    for known in measured:
        picks = torch.linspace(0, len(known) - 1, min(most, len(known))).round().long()
        levels.append(known[picks] if len(known) else torch.zeros(1, dtype=torch.float64))
    cells = [torch.searchsorted(level, values[:, i].contiguous()) for i, level in enumerate(levels)]
    kept = torch.ones(count, dtype=torch.bool)
    flat = torch.zeros(count, dtype=torch.int64)
    sizes = [len(level) for level in levels]
    for cell, size in zip(cells, sizes, strict=True):
        kept &= cell < size
        flat = flat * size + cell.clamp_max(size - 1)
    totals = []
    for chosen in (kept, kept & unsafe):
        histogram = torch.bincount(flat[chosen], minlength=math.prod(sizes)).reshape(sizes)
        for axis in range(names):
            histogram = histogram.cumsum(axis)
        totals.append(histogram.flatten())
    accepted, wrong = totals
    score = torch.where(wrong <= alpha * accepted + 1e-9, accepted * (count + 1) - wrong, -1)
    place = torch.unravel_index(score.argmax(), sizes)
    return torch.stack([level[int(index)] for level, index in zip(levels, place, strict=True)])


def _refine(values: Tensor, unsafe: Tensor, alpha: float, start: Tensor) -> Tensor:
    """Coordinate ascent on coverage: each threshold at its best value given the others, until none improves."""
    best = start.clone()
    score = _score(values, unsafe, best, alpha)
    moved = True
    while moved:
        moved = False
        for i in range(values.shape[1]):
            others = torch.cat((values[:, :i], values[:, i + 1 :]), dim=1)
            rest = torch.cat((best[:i], best[i + 1 :]))
            open_ = (others <= rest).all(dim=1) & values[:, i].isfinite()
            line, order = values[open_, i].sort(stable=True)
            wrong = unsafe[open_][order].cumsum(0)
            accepted = torch.arange(1, len(line) + 1)
            last_of_ties = torch.cat((line[1:] > line[:-1], torch.ones(min(1, len(line)), dtype=torch.bool)))
            allowed = torch.nonzero((wrong <= alpha * accepted + 1e-9) & last_of_ties).flatten()
            if len(allowed) == 0:
                continue
            trial = best.clone()
            trial[i] = line[allowed[-1]]
            if (better := _score(values, unsafe, trial, alpha)) > score:
                best, score, moved = trial, better, True
    return best


def _score(values: Tensor, unsafe: Tensor, limits: Tensor, alpha: float) -> tuple[int, int]:
    """(accepted, minus unsafe) under `limits`, to be compared; -1 accepted where the risk exceeds alpha."""
    inside = (values <= limits).all(dim=1)
    accepted, wrong = int(inside.sum()), int((inside & unsafe).sum())
    return (accepted if wrong <= alpha * accepted + 1e-9 else -1), -wrong
