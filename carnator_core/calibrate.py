"""Calibration: from labelled pairs to a certified profile (paper, appendix F).

Pairs are JSON lines. One pair:
    {"distances": {"size": 0.1, "shape": 0.3, "colour": 8.0, "motion": 0.02, "change": 0.2}, "safe": true}
distances: for each discrepancy the largest value that counted against the history (`certify.counted`); one that did not
apply is left out, null stands for an infinite one. Instead of, or beside, "safe":
    "quality": {"alignment": 0.9}, "dense": {"alignment": 0.92}
the metrics of the reuse and of the dense render; they decide when tolerances are given. Further keys, all optional:
"admissible" (false: the gate refuses whatever the thresholds are), "request" (pairs of one request stay on one side of
the split), "source" ("bench" or "creator"), and what the profile is for: "model" and "shape_class" (as `profile.model_of`
and `profile.shape_class` name them), "settings" ({"mode", "probe", "tolerance"}), "change_scale". A line {"facts": {...}}
gives such keys to the lines after it. A creator's own verdicts ("kept the scene", "wrong scene") become pairs too.
"""

from __future__ import annotations

import json
import math
import random
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .certify import Sample, certificate, counted, describe, is_safe, needed, select
from .change import ChangeScale
from .gate import Decision, Thresholds
from .profile import Profile
from .verdicts import Label

ALPHA, CONFIDENCE = 0.05, 0.95
_NAMES = tuple(Thresholds().to_dict())
_FOR = ("model", "shape_class", "settings", "change_scale")


@dataclass(frozen=True)
class Pair:
    """One labelled pair. safe: None when only `quality` and `dense` say so. facts: what its profile is made for."""

    distances: Mapping[str, float]
    safe: bool | None
    admissible: bool
    request: str
    source: str
    quality: Mapping[str, float]
    dense: Mapping[str, float]
    facts: Mapping[str, Any]

    def sample(self, tolerances: Mapping[str, float]) -> Sample:
        """With its label: by the tolerances where metrics are known, else as it was given.

        Raises ValueError when neither says.
        """
        if tolerances and self.quality and self.dense:
            return Sample(self.distances, is_safe(self.quality, self.dense, tolerances), self.admissible)
        if self.safe is None:
            raise ValueError(f"the pair of {self.request!r} has no label: it needs \"safe\", or \"quality\" and \"dense\" "
                             "together with a tolerance for their metrics")
        return Sample(self.distances, self.safe, self.admissible)


def read_pairs(text: str) -> list[Pair]:
    """Pairs of JSON lines. Raises ValueError that names the line."""
    found, facts = [], {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} of the pairs is not JSON ({error})") from error
        try:
            if isinstance(row, dict) and isinstance(row.get("facts"), dict):
                facts = row["facts"]
                continue
            found.append(_pair({**facts, **row}, number))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f'line {number} of the pairs is no pair: it needs an object with "distances" and a label '
                             f"({type(error).__name__}: {error})") from error
    return found


def _pair(row: Mapping[str, Any], number: int) -> Pair:
    distances = {name: math.inf if value is None else float(value) for name, value in row["distances"].items()}
    if unknown := set(distances) - set(_NAMES):
        raise ValueError(f"unknown distances: {', '.join(sorted(unknown))}")
    safe = row.get("safe")
    if not isinstance(safe, bool | None) or safe is None and not (row.get("quality") and row.get("dense")):
        raise ValueError('"safe" has to be true or false')
    quality, dense = ({str(k): math.nan if v is None else float(v) for k, v in row.get(side, {}).items()}
                      for side in ("quality", "dense"))
    return Pair(distances, safe, row.get("admissible", True) is True, str(row.get("request", f"line {number}")),
                str(row.get("source", "bench")), quality, dense, {k: row[k] for k in _FOR if row.get(k) is not None})


def pairs_of(labels: Sequence[Label]) -> list[Pair]:
    """A creator's verdicts as pairs: of each discrepancy the largest that counted against the history."""
    found = []
    for label in labels:
        hit = label.hit
        facts = {"model": hit.model, "shape_class": hit.shape_class,
                 "settings": {"mode": hit.mode, "probe": hit.probe, "tolerance": hit.tolerance}}
        measured = counted(Decision(True, "", hit.distances, hit.history))
        found.append(Pair(measured, label.kept, True, hit.prompt, "creator", {}, {}, facts))
    return found


def only(pairs: Sequence[Pair], model: str = "", shape: str = "", mode: str = "") -> list[Pair]:
    """The pairs of one model, shape class and mode; an empty text lets all pass. A model may be named by a part of its name."""
    return [p for p in pairs if model in str(p.facts.get("model", "")) and shape in ("", p.facts.get("shape_class"))
            and mode in ("", p.facts.get("settings", {}).get("mode"))]


def split(pairs: Sequence[Pair], seed: int) -> tuple[list[Pair], list[Pair]]:
    """Two disjoint halves, at random; pairs of one request are never parted."""
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.request, []).append(pair)
    order = list(groups.values())
    random.Random(seed).shuffle(order)
    halves: tuple[list[Pair], list[Pair]] = ([], [])
    for group in order:
        halves[len(halves[0]) > len(halves[1])].extend(group)
    return halves


def calibrate(pairs: Sequence[Pair], name: str, alpha: float = ALPHA, confidence: float = CONFIDENCE,
              tolerances: Mapping[str, float] | None = None, seed: int = 0) -> tuple[Profile, str]:
    """Thresholds of the largest coverage with risk R <= alpha on one half, certified on the other; and a report.

    tolerances: Delta_m by metric. A half that accepts nothing certifies nothing: the profile then has no certificate.
    Raises ValueError for too few pairs, for pairs of more than one model, shape or setting, and for an alpha or
    confidence out of range.
    """
    if not 0.0 < confidence < 1.0 or not 0.0 <= alpha < 1.0:
        raise ValueError(f"the risk has to be at least 0 and below 1, and the confidence between 0 and 1, not {alpha:g} and "
                         f"{confidence:g}")
    facts = merged([p.facts for p in pairs])
    choosing, proving = split(pairs, seed)
    if not choosing or not proving:
        raise ValueError(f"{len(pairs)} labelled pairs of {len({p.request for p in pairs})} requests are too few to choose on "
                         "one half and certify on the other")
    tolerances = dict(tolerances or {})
    chosen = select([p.sample(tolerances) for p in choosing], alpha)
    proof = [p.sample(tolerances) for p in proving]
    accepted = [s.admissible and _passes(s, chosen.thresholds) for s in proof]
    made = certificate(
        accepted, [s.safe for s in proof], chosen.thresholds, confidence,
        model=facts.get("model", ""), shape_class=facts.get("shape_class", ""), settings=facts.get("settings", {}),
        change_scale=facts.get("change_scale"), metrics=sorted({m for p in pairs for m in p.quality}), tolerances=tolerances,
        alpha=alpha, seed=seed, pack_version=pack_version(), sources=dict(sorted(Counter(p.source for p in pairs).items())),
        chosen_on={"tried": chosen.tried, "accepted": chosen.accepted, "coverage": chosen.coverage, "risk": chosen.risk})
    scale = facts.get("change_scale")
    profile = Profile(name, chosen.thresholds, ChangeScale.from_dict(scale) if scale is not None else None,
                      made if made["accepted"] else None)
    return profile, _report(profile, made)


def merged(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of several pairs as those of one profile; what some of them leave open, the others say.

    Of forecast tolerances the tightest is kept: looser renders may only be less safe. Raises ValueError where two say
    different things.
    """
    found: dict[str, Any] = {}
    for one in facts:
        for name, value in one.items():
            if name == "settings":
                value = merged([found.get(name, {}), value])
            elif name == "tolerance":
                value = min(found.get(name, value), value)
            elif found.get(name, value) != value:
                raise ValueError(f"the pairs are of more than one {name.replace('_', ' ')}, and a profile is for one: "
                                 f"{found[name]} and {value}; say which one is meant")
            found[name] = value
    return found


def _passes(sample: Sample, thresholds: Thresholds) -> bool:
    limits = thresholds.to_dict()
    return all(math.isnan(d) or (limit := limits[n]) is None or d <= limit for n, d in sample.distances.items())


def _made_for(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{k} {facts[k]}" for k in _FOR if k in facts and k != "change_scale") or "not said"


def _report(profile: Profile, made: Mapping[str, Any]) -> str:
    """What was chosen and what it is worth, for a person."""
    on = made["chosen_on"]
    limits = ", ".join(f"{n} {'any' if v is None else f'{v:.3g}'}" for n, v in profile.thresholds.to_dict().items())
    lines = [f"profile {profile.name!r} for {_made_for(made)}",
             f"thresholds: {limits}",
             f"chosen on {on['tried']} pairs: {on['accepted']} accepted ({on['coverage']:.0%}), {on['risk']:.1%} of them unsafe",
             f"tried on {made['tried']} others: {made['accepted']} accepted ({made['coverage']:.0%}), {made['unsafe']} unsafe",
             describe(profile.certificate) if profile.certificate is not None
             else "uncertified: nothing was accepted, so nothing could be certified"]
    if profile.certificate is not None and made["bound"] > made["alpha"] > 0:
        enough = needed(made["alpha"], made["confidence"], made["unsafe"])
        lines.append(f"for a bound of {made['alpha']:.0%} at {made['confidence']:.0%}, {enough} accepted pairs are needed "
                     f"with {made['unsafe']} unsafe among them")
    if "creator" in made["sources"]:
        lines.append("your own verdicts are on reuses that were accepted: they can make thresholds tighter, not show that "
                     "looser ones are safe")
    return "\n".join(lines)


def pack_version() -> str:
    """The version that pyproject.toml states."""
    text = (Path(__file__).resolve().parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    return str(tomllib.loads(text)["project"]["version"])


def tolerances_of(text: str) -> dict[str, float]:
    """ "alignment=0.05, psnr=1" as {metric: Delta_m}; an empty text gives none. Raises ValueError for anything else."""
    found = {}
    for part in filter(None, (p.strip() for p in text.replace(";", ",").split(","))):
        name, equals, value = part.partition("=")
        try:
            found[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip() or not 0.0 <= found[name.strip()] < math.inf:
            raise ValueError(f"a tolerance is written as metric=number, the number at least 0, not {part!r}")
    return found
