"""Whether what is reused may be reused: text alone, the paper's discrepancies, the change map, and all together.

    python3 run.py bench validity [--quick] [--family NAME] [--limits FILE] [--json FILE] [--resume FILE] [--pairs FILE]

A bank of the demo world's renders and requests that it has not seen, most of them variants of a remembered scene, from
its seed or from a fresh one. Thresholds are chosen on one set of requests (largest coverage with at most `alpha` unsafe)
and counted on another. A reuse is safe when its decoded clip states what the dense one states and draws it as well
(bench/_lab.py). Each rule is counted with the reuse that it was made for: text and the paper's with the paper's joint
reuse, the change map and ours with forecasting. On the first requests each rule is counted with the other reuse as well.
--pairs keeps what ours measured and how it came out as labelled pairs, from which `run.py calibrate` makes a profile.
--limits takes the thresholds that an earlier run (its --json) has chosen: whether they hold on another family.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from carnator.carnator_core import certify, profile
from carnator.carnator_core.gate import Thresholds
from carnator.demo.families import FAMILIES

from . import _lab as lab
from . import _stage as stage
from ._table import table
from ._workload import KINDS, Ask, Workload, workload

SEED = 20261129
Row = dict[str, Any]
_lab: lab.Lab


def streams(histories: int, calibrating: int, testing: int) -> tuple[Workload, int]:
    """One bank with all requests, the first `calibrating` of which choose the thresholds; and their number."""
    return workload(histories, calibrating + testing, SEED), calibrating


def _start(work: Workload, steps: int, family: str) -> None:
    """In each worker: its own model, one thread."""
    global _lab
    torch.set_num_threads(1)
    _lab = lab.Lab(stage.Stage(steps=steps, halved=True, half_vae=True, family=family), work)


def calibrate(number: int) -> Row:
    """One request of the calibration set: of every rule the first candidate, its distances, and whether its reuse is safe."""
    ask = _lab.workload.requests[number]
    row: Row = {"number": number, "kind": ask.kind, "shared": ask.shared, "rules": {}}
    made: dict[tuple[int, int, str], Row] = {}
    for rule in ("paper", "change_map", "ours"):
        choice = next(_lab.choices(ask, rule), None)
        if choice is not None:
            label = _reused(made, ask, choice, lab.REUSE[rule])
            row["rules"][rule] = {"distances": choice.distances, "admissible": choice.decision.accepted, **label}
    _lab.forget()
    return row


def count(number: int, limits: dict[str, dict[str, float | None]], cross: int) -> Row:
    """One request of the test set: of every rule the first candidate that passes, and what reuse made of it."""
    ask = _lab.workload.requests[number]
    own = _lab.target(ask.prompt, ask.seed)
    row: Row = {"number": number, "kind": ask.kind, "shared": ask.shared, "dense": own.quality, "rules": {}}
    made: dict[tuple[int, int, str], Row] = {}
    for rule in lab.RULES:
        thresholds = Thresholds.from_dict(limits[rule])
        choice, tried = None, False
        for candidate in _lab.choices(ask, rule):
            tried = True
            if candidate.within(thresholds):
                choice = candidate
                break
        row["rules"][rule] = {"tried": tried, "hit": choice is not None}
        if choice is None:
            continue
        modes = [lab.REUSE[rule]] + (["ours" if lab.REUSE[rule] == "joint" else "joint"] if number < cross else [])
        for mode in modes:
            row["rules"][rule][mode] = _reused(made, ask, choice, mode)
        row["rules"][rule]["distances"] = choice.distances
    _lab.forget()
    return row


def _reused(made: dict[tuple[int, int, str], Row], ask: Ask, choice: lab.Choice, mode: str) -> Row:
    """The reuse of one history in one mode, rendered once for all rules that take it."""
    key = (choice.history, choice.seed, mode)
    if key not in made:
        made[key] = _lab.reuse(ask, choice, mode)
    return made[key]


def _calibrate(task: tuple[int]) -> Row:
    return calibrate(*task)


def _count(task: tuple[int, dict[str, dict[str, float | None]], int]) -> Row:
    return count(*task)


def gather(pool: Any, function: Any, tasks: Iterable[tuple[Any, ...]], what: str, keep: Path | None) -> list[Row]:
    """Rows of all tasks in order; those in the file `keep` are taken from there, new ones added to it. what: names the rows
    that are of one measurement."""
    tasks, kept = list(tasks), {}
    if keep is not None and keep.is_file():
        rows = [json.loads(line) for line in keep.read_text(encoding="utf-8").splitlines()]
        kept = {r["number"]: r for r in rows if r["what"] == what}
    step = stage.progress(len(tasks))
    for row in pool.imap_unordered(function, [t for t in tasks if t[0] not in kept]):
        step(what)
        row["what"] = what
        kept[row["number"]] = row
        if keep is not None:
            with keep.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
    return [kept[t[0]] for t in tasks]


def choose(rows: Sequence[Row], alpha: float) -> dict[str, certify.Selection]:
    """Thresholds of each rule that has some, from the calibration rows."""
    found = {}
    for rule in ("paper", "change_map", "ours"):
        samples = [certify.Sample(r["rules"][rule]["distances"], r["rules"][rule]["safe"], r["rules"][rule]["admissible"])
                   for r in rows if rule in r["rules"]]
        found[rule] = certify.select(samples, alpha, lab.NAMES[rule])
    return found


def write_pairs(path: Path, calibration: Sequence[Row], test: Sequence[Row], facts: Row) -> None:
    """Ours as labelled pairs, one JSON line each, under a line of facts: of the calibration requests the first candidate,
    of the test requests the accepted one (what is refused there is not rendered, so it has no label)."""
    lines: list[Row] = [{"facts": facts}]
    for row in calibration:
        if own := row["rules"].get("ours"):
            lines.append({"distances": own["distances"], "safe": own["safe"], "admissible": own["admissible"],
                          "request": str(row["number"])})
    for row in test:
        if (own := row["rules"]["ours"])["hit"]:
            lines.append({"distances": own["distances"], "safe": own["ours"]["safe"], "request": str(row["number"])})
    for line in lines[1:]:
        line["distances"] = {n: v if math.isfinite(v) else None for n, v in line["distances"].items()}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def facts(steps: int, family: str) -> Row:
    """What a profile made of these pairs is for."""
    theatre = stage.Stage(steps=steps, halved=True, family=family)
    settings = stage.settings(probe=lab.Lab.probe)
    identity = theatre.history(theatre.render("a red ball on snow", 1, settings), 1).identity
    return {"model": profile.model_of(identity), "shape_class": profile.shape_class(identity),
            "settings": {"mode": settings.mode, "probe": settings.probe, "tolerance": settings.tolerance}}


def mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return round(statistics.mean(values), 4) if values else None


def method(rows: Sequence[Row], rule: str, mode: str) -> Row:
    """The figures of one rule with one reuse. latency_ratio: dense seconds over the method's, misses included."""
    took = [(r, r["rules"][rule].get(mode) if r["rules"][rule]["hit"] else None) for r in rows]
    hits = [(r, h) for r, h in took if h is not None]
    tried = sum(r["rules"][rule]["tried"] for r in rows)
    unsafe = sum(not h["safe"] for _, h in hits)
    shown = [(h or r["dense"]) for r, h in took]
    cost = statistics.mean(h["cost"] if h else 1.0 for _, h in took)
    by_change = {}
    for kind in KINDS:
        of_kind = [(r, h) for r, h in took if r["kind"] == kind]
        hit = [h for _, h in of_kind if h is not None]
        if of_kind:
            by_change[kind] = {"requests": len(of_kind), "hit_rate": mean(h is not None for _, h in of_kind),
                               "unsafe": sum(not h["safe"] for h in hit)}
    return {"name": rule, "reuse": mode, "requests": len(rows), "accepted": len(hits), "unsafe": unsafe,
            "hit_rate": round(len(hits) / len(rows), 4), "coverage": round(len(hits) / tried, 4) if tried else 0.0,
            "unsafe_rate": round(unsafe / len(hits), 4) if hits else 0.0,
            "bound": round(certify.upper_bound(unsafe, len(hits)), 4) if hits else 1.0,
            "alignment": mean(s["alignment"] for s in shown), "quality": mean(s["quality"] for s in shown),
            "latency_ratio": round(1 / cost, 3), "hit_latency_ratio": round(1 / statistics.mean(h["cost"] for _, h in hits), 3)
            if hits else None, "hit_psnr": mean(min(h["psnr"], 99.0) for _, h in hits), "by_change": by_change}


COLUMNS = {"name": "rule", "reuse": "reuse", "hit_rate": "hits", "coverage": "coverage", "accepted": "accepted",
           "unsafe": "unsafe", "unsafe_rate": "unsafe rate", "bound": "bound 95 %", "alignment": "alignment",
           "quality": "quality", "latency_ratio": "speed", "hit_latency_ratio": "speed on hits", "hit_psnr": "dB on hits"}


def by_change(methods: Sequence[Row]) -> None:
    """Hits and unsafe ones, by what the request changes."""
    print("  " + "".ljust(24) + "".join(f"{m['name']:>18}" for m in methods))
    for kind in KINDS:
        cells = [m["by_change"].get(kind) for m in methods]
        if cells[0] is not None:
            said = [f"{round(c['hit_rate'] * c['requests'])} hits, {c['unsafe']} bad" for c in cells]
            print("  " + f"{kind} ({cells[0]['requests']})".ljust(24) + "".join(f"{s:>18}" for s in said))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="run.py bench validity", description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="14 + 21 requests against 100 histories: a smoke test")
    stage.family_option(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures there")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep each request's row there, and go on from it")
    parser.add_argument("--pairs", type=Path, metavar="FILE", help="also write ours as labelled pairs for run.py calibrate")
    parser.add_argument("--limits", type=Path, metavar="FILE",
                        help="count with the thresholds of this run instead of choosing some, each rule with its own reuse alone")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes (default: one a core)")
    parser.add_argument("--alpha", type=float, default=0.05, help="share of unsafe reuses allowed when choosing (0.05)")
    parser.add_argument("--steps", type=int, default=20, help="denoising steps of every render (20)")
    parser.add_argument("--requests", type=int, default=301, help="how many to count (301; the first ones of the stream)")
    options = parser.parse_args(arguments)
    family, name = FAMILIES[options.family], f"{options.family}, {options.steps} steps"
    work, calibrating = streams(*((100, 14, 21) if options.quick else (1000, 84, 301)))
    work = replace(work, requests=work.requests[: calibrating + options.requests])
    numbers = range(len(work.requests))
    print(f"{len(work.histories)} remembered renders, {calibrating} requests to choose thresholds, {len(numbers) - calibrating} "
          f"to count, {options.steps} steps; on {stage.machine()}", flush=True)
    began = time.perf_counter()
    cross = calibrating + (0 if options.limits else min(42, len(numbers) - calibrating))
    with multiprocessing.get_context("spawn").Pool(options.workers, _start, (work, options.steps, options.family)) as pool:
        choosing: list[Row] = []
        if options.limits:
            limits = json.loads(options.limits.read_text(encoding="utf-8"))["thresholds"]
        else:
            choosing = gather(pool, _calibrate, [(n,) for n in numbers[:calibrating]], f"calibration {name}", options.resume)
            chosen = choose(choosing, options.alpha)
            limits = {"text": lab.OPEN.to_dict(), **{r: s.thresholds.to_dict() for r, s in chosen.items()}}
        rows = gather(pool, _count, [(n, limits, cross) for n in numbers[calibrating:]], f"test {name}", options.resume)
    methods = [method(rows, rule, lab.REUSE[rule]) for rule in lab.RULES]
    some = [r for r in rows if r["number"] < cross]
    other = [method(some, rule, mode) for mode in ("joint", "ours") for rule in lab.RULES] if some else []
    ours = methods[-1]
    certificate = certify.certificate([r["rules"]["ours"]["hit"] for r in rows],
                                      [r["rules"]["ours"].get("ours", {}).get("safe", True) for r in rows],
                                      Thresholds.from_dict(limits["ours"]), model=f"carnator demo ({family.title})",
                                      shape_class="x".join(map(str, family.latent)),
                                      metrics=sorted(lab.TOLERANCE), tolerances=lab.TOLERANCE)
    print("\nEach rule with the reuse it was made for (alpha "
          f"{options.alpha} when choosing; dense: alignment {mean(r['dense']['alignment'] for r in rows)}, "
          f"quality {mean(r['dense']['quality'] for r in rows)})")
    table(methods, COLUMNS)
    print("\nBy what the request changes")
    by_change(methods)
    if other:
        print(f"\nThe same rules under one reuse, on the first {len(some)} requests")
        table(other, COLUMNS)
    print("\nThresholds: " + "; ".join(f"{r}: " + ", ".join(f"{n} {getattr(Thresholds.from_dict(limits[r]), n):.3g}" for n in names)
                                       for r, names in lab.NAMES.items() if names))
    print(f"Ours, {certify.describe(certificate)}; of {ours['requests']} tried")
    print(f"{time.perf_counter() - began:.0f} s", file=sys.stderr)
    if options.pairs:
        write_pairs(options.pairs, choosing, rows, facts(options.steps, options.family))
    if options.json:
        found = {"family": family.title, "machine": stage.machine(), "steps": options.steps, "histories": len(work.histories),
                 "calibration_requests": 0 if options.limits else calibrating, "requests": len(rows), "alpha": options.alpha,
                 "dense": {k: mean(r["dense"][k] for r in rows) for k in lab.TOLERANCE}, "methods": methods, "same_reuse": other,
                 "thresholds": limits, "certificate": certificate}
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
