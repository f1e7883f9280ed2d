"""The change map: how well the first predictions of two renders from one noise say where, and how much, they will differ.

    python3 run.py bench change [--quick] [--family NAME] [--json FILE]

Pairs of demo prompts that differ in one thing, rendered from the same noise. For each probe length: how well the map ranks
the tokens that really change (area under the ROC curve), the share of the picture that it predicts to change at the plain
level, the true share, and the factor on the level that would make the two agree (`change.fit_scale`).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from carnator.carnator_core import change
from torch import Tensor

from . import _stage as stage
from ._table import table
from ._workload import KINDS, changed, first_scene, kinds_of, prompt_of

LENGTHS = range(1, 11)
Row = dict[str, Any]


def auc(scores: Tensor, truth: Tensor) -> float:
    """Probability that a token that changes scores higher than one that does not (Mann-Whitney); NaN when all are alike."""
    positive, negative = scores[truth], scores[~truth]
    if not len(positive) or not len(negative):
        return float("nan")
    ranks = scores.flatten().argsort().argsort().double() + 1
    above = float(ranks[truth.flatten()].sum()) - len(positive) * (len(positive) + 1) / 2
    return above / (len(positive) * len(negative))


def measured(theatre: stage.Stage, kind: str, rng: random.Random) -> Row:
    """One pair: the change maps of every length, and the finished one."""
    scene = first_scene(rng)
    while kind not in kinds_of(scene):
        scene = first_scene(rng)
    seed = rng.randrange(2**31)
    old, new = (theatre.render(prompt_of(s), seed, stage.settings()) for s in (scene, changed(scene, kind, rng)))
    patch = new.run.patch
    maps = [change.change_map(b[0], a[0], patch) for a, b in zip(old.run.own.predictions, new.run.own.predictions, strict=True)]
    return {"kind": kind, "early": {p: maps[p - 1] for p in LENGTHS}, "finished": change.change_map(new.latent, old.latent, patch),
            "sigmas": new.run.own.sigmas}


def by_length(pairs: Sequence[Row]) -> list[Row]:
    """A row for each probe length over some pairs."""
    truths = [p["finished"] for p in pairs]
    rows = []
    for length in LENGTHS:
        early = [p["early"][length] for p in pairs]
        areas = [auc(e, change.change_region(t)) for e, t in zip(early, truths, strict=True)]
        known = [a for a in areas if a == a]
        rows.append({"probe": length, "sigma": round(pairs[0]["sigmas"][length - 1], 3), "auc": round(mean(known), 3),
                     "predicted": round(mean(change.predicted_share(e) for e in early), 3),
                     "true": round(mean(change.predicted_share(t) for t in truths), 3),
                     "factor": round(change.fit_scale(early, truths), 3)})
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="run.py bench change", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="one pair a kind, 20 steps: a smoke test, not a measurement")
    stage.family_option(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    options = parser.parse_args(arguments)
    theatre = stage.Stage(steps=20 if options.quick else 50, halved=True, family=options.family)
    rng, each = random.Random(17), 1 if options.quick else 6
    print(f"The change map, {each} pairs a kind, {theatre.steps} steps; on {stage.machine()}", flush=True)
    step, pairs = stage.progress(each * len(KINDS)), []
    for number in range(each * len(KINDS)):
        pairs.append(measured(theatre, KINDS[number % len(KINDS)], rng))
        step("pairs")
    tables = {"all": by_length(pairs), **{k: by_length([p for p in pairs if p["kind"] == k]) for k in KINDS}}
    print("\nAll kinds")
    table(tables["all"])
    print("\nArea under the curve and predicted / true share after 1, 2, 4, 7 and 10 steps, by what changes")
    table([{"change": k, **{f"{r['probe']}": f"{r['auc']:.2f}  {r['predicted']:.2f}/{r['true']:.2f}" for r in tables[k]
                            if r["probe"] in (1, 2, 4, 7, 10)}} for k in KINDS])
    if options.json:
        found = {"family": theatre.family.title, "machine": stage.machine(), "steps": theatre.steps, "pairs_a_kind": each,
                 "by_length": tables}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
