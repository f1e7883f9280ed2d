"""The compatibility gate g_tau: may this history serve that request?

Every discrepancy that can be measured must stay under its threshold: the paper's four (size and shape of a substituted
entity, colour of shared and substituted ones), how entities move, their mean latents, and the share of the picture that
the change map predicts to change. What cannot be measured is named in the decision and never counted as zero.

Modifiers that the prompts do not share (a colour, a count, a direction ...) are differences the creator asked for, so
the discrepancy they explain is not held against the history; but they must lead to something:
- colour, material, size, attribute: the entity's region is computed anew, so its region must be known;
- count, negation, action, direction, relation: they reach beyond one region. They pass when the change map was
  measured (it sees any difference, and its region joins the scope), or when the first steps already show the new
  motion (action, direction) or the new size (count), so that the two regions together hold both. Otherwise: refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from .recall import said
from .regions import differing_entities
from .signature import (
    EntitySignature,
    Signature,
    colour_distance,
    displacement,
    latent_distance,
    motion_distance,
    shape_distance,
    size_distance,
)

if TYPE_CHECKING:
    from .prompt import Modifier
    from .recall import Correspondence

_MEASURES: dict[str, Callable[[EntitySignature, EntitySignature], float]] = {
    "size": size_distance,
    "shape": shape_distance,
    "colour": colour_distance,
    "motion": motion_distance,
    "latent": latent_distance,
}
_SHARED = ("colour", "motion", "latent")
_SUBSTITUTED = ("size", "shape", "colour", "motion", "latent")

_EXPLAINS: dict[str, frozenset[str]] = {
    "colour": frozenset({"colour", "latent"}),
    "material": frozenset({"colour", "latent"}),
    "attribute": frozenset({"colour", "shape", "latent"}),
    "size": frozenset({"size", "shape"}),
    "count": frozenset({"size", "shape"}),
    "action": frozenset({"motion", "shape"}),
    "direction": frozenset({"motion"}),
    "negation": frozenset(_MEASURES),
    "relation": frozenset(),
}
_LOCAL = frozenset({"colour", "material", "size", "attribute"})
_SHOWN_BY = {"action": "motion", "direction": "motion", "count": "size"}

WORDLESS = 0.5  # share of the picture up to which the change map alone may vouch for a history, where no words were compared


@dataclass(frozen=True)
class Thresholds:
    """tau: a discrepancy passes up to and including its threshold; inf leaves it out.

    size: |log ratio| of areas. shape: 1 - Dice. colour: CIEDE2000. motion: share of the frame's shorter side.
    change: predicted share of the picture that changes. latent: relative distance of mean latents, 0..2; left out unless a
    profile sets it. The defaults are uncertified.
    """

    size: float = 0.7
    shape: float = 0.5
    colour: float = 20.0
    motion: float = 0.12
    change: float = 1.0
    latent: float = math.inf

    def __post_init__(self) -> None:
        for name, value in self._items():
            if math.isnan(value) or value < 0.0:
                raise ValueError(f"the {name} threshold must be a number of at least 0, not {value}")

    def scaled(self, factor: float) -> Thresholds:
        """Every threshold times `factor` (below 1: stricter)."""
        return Thresholds(**{name: value * factor for name, value in self._items()})

    def to_dict(self) -> dict[str, float | None]:
        """For JSON: inf, which JSON has not, becomes None."""
        return {name: None if math.isinf(value) else value for name, value in self._items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, float | None]) -> Thresholds:
        """The inverse of `to_dict`; a missing name keeps its default. Raises ValueError for an unknown name."""
        unknown = set(data) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"unknown thresholds: {', '.join(sorted(unknown))}")
        return cls(**{name: math.inf if value is None else float(value) for name, value in data.items()})

    def _items(self) -> list[tuple[str, float]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self)]


@dataclass(frozen=True)
class Distance:
    """One measured discrepancy. entity: the target's lemma, "" for the whole picture. expected: the prompts themselves
    declare this difference, so it is reported and not held against the history."""

    name: str
    entity: str
    value: float
    threshold: float
    expected: bool = False

    @property
    def within(self) -> bool:
        return self.value <= self.threshold


@dataclass(frozen=True)
class Decision:
    """The gate's answer for one history. reason: for the creator. unmeasured: what could not be compared ("ball:
    colour"). recompute: the (target, history) entities whose regions have to be computed anew."""

    accepted: bool
    reason: str
    distances: tuple[Distance, ...]
    history_id: str
    unmeasured: tuple[str, ...] = ()
    recompute: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> dict[str, object]:
        """For JSON; an infinite value or threshold becomes None."""
        rows = [
            {"name": d.name, "entity": d.entity, "value": _finite(d.value), "threshold": _finite(d.threshold),
             "within": d.within, "expected": d.expected}
            for d in self.distances
        ]
        return {"accepted": self.accepted, "reason": self.reason, "history": self.history_id, "distances": rows,
                "unmeasured": list(self.unmeasured), "recompute": [list(pair) for pair in self.recompute]}


def judge(
    target_sig: Signature,
    history_sig: Signature,
    correspondence: Correspondence,
    thresholds: Thresholds,
    change_share: float | None,
    history_id: str = "",
    own_steps: bool = False,
) -> Decision:
    """g_tau(q, C_j): compare the target's Early Signature with a history's, over the entities that correspond.

    change_share: predicted share of the picture that changes (shared noise only), None or NaN when not measured.
    own_steps: the target's own steps decide the picture (forecasting), not the history's latent (the paper's fusion).
    What the prompts exchange may then look as different as it likes, once the change map was measured: its distances
    are reported, and only what the prompts agree on is held to the thresholds.
    """
    pairs = list(dict.fromkeys((*correspondence.pairs, *filter(None, (correspondence.substituted,)))))
    seen_change = change_share is not None and not math.isnan(change_share)
    distances: list[Distance] = []
    unmeasured: list[str] = []
    anew = set(differing_entities(correspondence)) if own_steps and seen_change else set()
    for pair in pairs:
        ours, theirs = target_sig.get(pair[0]), history_sig.get(pair[1])
        explained = frozenset(_MEASURES) if pair in anew else _explained(pair, correspondence)
        for name in _SUBSTITUTED if pair == correspondence.substituted else _SHARED:
            value = math.nan
            if ours is not None and theirs is not None:
                if ours.region.shape != theirs.region.shape:
                    reason = (f"{_subject(pair)}: the token grids differ, {_grid(ours)} here and {_grid(theirs)} there")
                    return Decision(False, reason, tuple(distances), history_id)
                value = _MEASURES[name](ours, theirs)
            if math.isnan(value):
                if name != "latent" or not math.isinf(thresholds.latent):  # nobody asked for it
                    unmeasured.append(f"{pair[0]}: {name}")
            else:
                distances.append(Distance(name, pair[0], value, getattr(thresholds, name), name in explained))
    if seen_change and change_share is not None:
        distances.append(Distance("change", "", change_share, thresholds.change))
    else:
        unmeasured.append("predicted change")

    names = dict(pairs)
    problems = [
        _words(d, names.get(d.entity, ""), target_sig, history_sig)
        for d in distances if not d.expected and not d.within
    ]
    problems += [
        text for conflict in correspondence.modifiers
        if (text := _unresolved(conflict, pairs, target_sig, history_sig, distances, seen_change))
    ]
    substituted = correspondence.substituted
    if not distances:
        problems.append("nothing could be compared with this history yet")
    elif substituted and not seen_change and not any(d.entity == substituted[0] for d in distances):
        problems.append(f"{_subject(substituted)}: not to be seen in the first steps, so nothing could be compared")
    elif not correspondence.known and change_share is not None and change_share > WORDLESS:
        problems.append(f"words do not tell what differs, and {change_share:.0%} of the picture changes")
    recompute = differing_entities(correspondence)
    reason = "; ".join(problems) if problems else _accepted(recompute, change_share if seen_change else None, correspondence.known)
    return Decision(not problems, reason, tuple(distances), history_id, tuple(unmeasured), recompute)


def report(decision: Decision) -> str:
    """The decision as text: the reason, then a line for every discrepancy with its threshold."""
    lines = [("reuse: " if decision.accepted else "no reuse: ") + decision.reason]
    for d in decision.distances:
        state = "asked for" if d.expected else "ok" if d.within else "TOO FAR"
        lines.append(f"  {d.entity or 'picture':<16} {d.name:<8} {d.value:8.3f}  at most {d.threshold:8.3f}  {state}")
    lines += [f"  not measured: {', '.join(decision.unmeasured)}"] if decision.unmeasured else []
    return "\n".join(lines)


def _explained(pair: tuple[str, str], correspondence: Correspondence) -> frozenset[str]:
    """Names of the discrepancies that the prompts' own modifiers account for."""
    found: frozenset[str] = frozenset()
    for name, ours, theirs in correspondence.modifiers:
        if name in pair and ours != theirs:
            found |= _EXPLAINS.get(_kind(ours, theirs), frozenset())
    return found


def _unresolved(
    conflict: tuple[str, Modifier | None, Modifier | None],
    pairs: list[tuple[str, str]],
    target: Signature,
    history: Signature,
    distances: list[Distance],
    seen_change: bool,
) -> str:
    """Why a declared difference cannot be served, "" when it can: see the module's rule."""
    name, ours, theirs = conflict
    if ours == theirs or seen_change:
        return ""
    kind, asked = _kind(ours, theirs), said(name, ours, theirs)
    pair = next((p for p in pairs if name in p), None)
    if pair is None:
        return f"{asked}, and nothing shows where"
    if kind in _LOCAL:
        located = any(sig is not None and bool(sig.region.any()) for sig in (target.get(pair[0]), history.get(pair[1])))
        return "" if located else f"{asked}, and the first steps do not show where it is"
    measure = _SHOWN_BY.get(kind)
    if any(d.name == measure and d.entity == pair[0] and not d.within for d in distances):
        return ""
    return f"{asked}, and the first steps do not show the difference" if measure else (
        f"{asked}, which only a history from the same noise can show")


def _kind(ours: Modifier | None, theirs: Modifier | None) -> str:
    modifier = ours or theirs
    return modifier.kind if modifier else ""


def _words(d: Distance, history_name: str, target: Signature, history: Signature) -> str:
    """One failed discrepancy as a creator would say it."""
    if d.name == "change":
        return f"the new words change about {d.value:.0%} of the picture (at most {d.threshold:.0%})"
    subject = _subject((d.entity, history_name))
    ours, theirs = target[d.entity], history[history_name]
    if d.name == "size":
        if math.isinf(d.value):
            return f"{subject}: not to be seen {'here' if ours.size == 0.0 else 'there'} in the last frame"
        word = "larger" if ours.size > theirs.size else "smaller"
        return f"{subject}: {math.exp(d.value):.1f} times {word} here (at most {math.exp(d.threshold):.1f} times)"
    if d.name == "shape":
        return f"{subject}: another shape here ({d.value:.2f} apart, at most {d.threshold:.2f})"
    if d.name == "colour":
        return f"{subject}: another colour here (difference {d.value:.0f}, at most {d.threshold:.0f})"
    if d.name == "latent":
        return f"{subject}: another look here ({d.value:.2f} apart, at most {d.threshold:.2f})"
    (ay, ax), (by, bx) = displacement(ours), displacement(theirs)
    way = "moves the other way here" if ay * by + ax * bx < 0.0 else "moves differently here"
    return f"{subject}: {way} ({d.value:.0%} of the frame apart, at most {d.threshold:.0%})"


def _accepted(recompute: tuple[tuple[str, str], ...], change_share: float | None, known: bool) -> str:
    what = ", ".join(_subject(pair) for pair in recompute)
    scope = f"computed anew: {what}" if what else "nothing differs by name" if known else "words do not tell what differs"
    return scope if change_share is None else f"{scope}; about {change_share:.0%} of the picture changes"


def _subject(pair: tuple[str, str]) -> str:
    ours, theirs = pair
    return ours if ours == theirs or not theirs else f"{ours} for {theirs}"


def _grid(entity: EntitySignature) -> str:
    return " x ".join(str(n) for n in entity.region.shape)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
