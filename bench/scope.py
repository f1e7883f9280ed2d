"""What a hit saves and what it costs in quality: the paper's Table 3 in the demo world, ours, and the host's step caches.

    python3 run.py bench scope [--quick] [--family NAME] [--part NAME] [--json FILE]

Pairs of prompts that differ in one thing, history and target from the same noise; every method renders the target, in turns
that are rotated, on the host's own sampler. Ratios are medians over pairs of dense seconds / the method's, within the pair;
seconds are the processor's on a machine without a GPU. The decoded video (demo VAE) is judged: by the demo's scorer, and
against the dense render of the same noise. Quality says nothing of real models; take the ranking as a lead.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ._scope_methods import CACHES, NAMES, Meter, Pair, Shown, Studio, pairs, quality, quiet
from ._scope_regions import sources, unions
from ._stage import Stage, family_option, machine, progress
from ._table import table

Row = dict[str, Any]
SEED, STEPS = 2026, 30
SAME = 99.0  # dB that stand for "the very same": nothing lies between them and a figure
PARTS = ("methods", "against", "curve", "unions", "connectivity", "large")
OURS_SWEEP = ({"tolerance": 0.1}, {"tolerance": 0.25}, {"tolerance": 0.5}, {"tolerance": 1.0, "longest": 10})
CURVE: dict[str, tuple[dict[str, Any], ...]] = {
    "ours": OURS_SWEEP,
    "easycache": tuple({"reuse_threshold": t} for t in (0.01, 0.02, 0.03, 0.04, 0.05, 0.1)),
    "lazycache": tuple({"reuse_threshold": t} for t in (0.05, 0.07, 0.1, 0.14, 0.2, 0.3, 1.0)),
    "steps": tuple({"steps": n} for n in (8, 10, 12, 14, 17, 20, 24)),
    "alone": tuple({"miss_tolerance": t} for t in (0.1, 0.15, 0.2, 0.3, 0.4)),
}


def once(studio: Studio, some: Sequence[Pair], names: Sequence[str], rare: Sequence[str] = ()) -> list[Row]:
    """Every method on every pair (those in `rare` on every other one), a row each. The first render warms up."""
    rows: list[Row] = []
    step = progress(len(some) * len(names))
    studio.stage.sample(studio.stage.model, some[0].target, 0)
    for number, pair in enumerate(some):
        bank, _ = studio.bank_of(pair)
        turn = number % len(names)
        shown: dict[str, Shown] = {}
        for name in [*names[turn:], *names[:turn]]:
            if name not in rare or number % 2 == 0:
                shown[name] = studio.show(name, pair, bank)
            step("methods")
        dense = shown["dense"]
        rows += [row_of(found, dense, pair) | {"pair": number} for found in shown.values()]
    return rows


def row_of(found: Shown, dense: Shown, pair: Pair) -> Row:
    """One render as plain figures."""
    ratios = {"e2e_ratio": dense.e2e / found.e2e, "dit_ratio": dense.dit / max(found.dit, 1e-9)}
    return {"name": found.name, "kind": pair.kind, "hit": found.hit, "e2e_s": found.e2e, "dit_s": found.dit, **ratios,
            "evals": found.evals, "tokens_share": found.tokens, "density": found.density, **quality(found, dense, pair.target)}


def summed_up(rows: Sequence[Row], steps: int) -> Row:
    """A method's row of the table, over the pairs on which it was a hit: medians of seconds and ratios, means of the rest."""
    hits = [r for r in rows if r["hit"]]
    out: Row = {"name": rows[0]["name"], "pairs": len(rows), "hits": len(hits)}
    if not hits:
        return out
    for key in ("e2e_ratio", "dit_ratio", "e2e_s", "dit_s"):
        out[key] = round(statistics.median(r[key] for r in hits), 3)
    for key, name in (("evals", "evals"), ("tokens_share", "tokens_share"), ("density", "density"), ("alignment", "alignment"),
                      ("psnr", "psnr_dense"), ("ssim", "ssim_dense"), ("psnr_latent", "psnr_latent")):
        out[name] = round(statistics.fmean(r[key] for r in hits), 3)
    out["psnr_worst"] = round(min(r["psnr"] for r in hits), 2)
    return out | {"steps": steps}


def methods(studio: Studio, some: Sequence[Pair]) -> Row:
    """The main table, and per method and kind of change."""
    names = [n for n in NAMES if n != "chorus2"]
    rows = once(studio, some, names, ("nirvana", "chorus", "latent", "attention", "joint"))
    twin = [r | {"name": "chorus2"} for r in rows if r["name"] == "attention"]  # the same settings: rendered once, listed twice
    rows += twin
    listed = [summed_up([r for r in rows if r["name"] == n], studio.stage.steps) for n in NAMES]
    kinds = [{"kind": kind} | summed_up(found, studio.stage.steps) for n in ("joint", "ours", *CACHES)
             for kind in dict.fromkeys(p.kind for p in some)
             if (found := [r for r in rows if r["name"] == n and r["kind"] == kind])]
    return {"methods": listed, "by_kind": kinds}


def against(rows: Sequence[Row]) -> Row:
    """Ours against the paper's joint reuse on the pairs that both hit: mean alignments, median speed of ours over joint's."""
    found = {name: {r["pair"]: r for r in rows if r["name"] == name and r["hit"]} for name in ("joint", "ours")}
    both = sorted(found["joint"].keys() & found["ours"].keys())
    if not both:
        return {"pairs": 0}
    out: Row = {"pairs": len(both)}
    for name, those in found.items():
        out[f"alignment_{name}"] = round(statistics.fmean(those[i]["alignment"] for i in both), 3)
    for kind in ("e2e", "dit"):
        speeds = [found["joint"][i][f"{kind}_s"] / found["ours"][i][f"{kind}_s"] for i in both]
        out[f"{kind}_speed"] = round(statistics.median(speeds), 3)
    return out


def curve(studio: Studio, some: Sequence[Pair]) -> Row:
    """Quality against evaluations, per method and setting."""
    rows: list[tuple[str, str, Row]] = []
    step = progress(len(some) * sum(len(s) for s in CURVE.values()))
    for pair in some:
        bank, _ = studio.bank_of(pair)
        dense = studio.show("dense", pair, bank)
        for turn in range(max(len(s) for s in CURVE.values())):  # methods in turns, not one after the other
            for name, settings in CURVE.items():
                if turn < len(settings):
                    found = studio.show(name, pair, bank, **settings[turn])
                    rows.append((name, json.dumps(settings[turn]), row_of(found, dense, pair)))
                    step("curve")
    points = [{"setting": json.loads(text)} | summed_up([r for n, t, r in rows if (n, t) == (name, text)], studio.stage.steps)
              for name, text in dict.fromkeys((n, t) for n, t, _ in rows)]
    return {"curve": points}


def equal(points: Sequence[Row]) -> dict[str, list[Row]]:
    """Ours against each of the others at equal quality, from the curve."""
    return {other: at_equal_quality(points, other) for other in (*CACHES, "steps", "alone")}


def at_equal_quality(points: Sequence[Row], other: str) -> list[Row]:
    """For every setting of ours: its cost against the other's at the same PSNR, and against the other's cheapest that agrees as
    well with the prompt.

    Between two settings of the other its evaluations and speeds are interpolated, linearly in PSNR; settings that another
    one beats in quality and evaluations are left out. Where none of its settings is as good, the best one stands in, and
    the figure is a lower bound ("at_least"); where all are better, the cheapest.
    """
    out = []
    theirs = [p for p in points if p["name"] == other and p["hits"]]
    for ours in (p for p in points if p["name"] == "ours" and p["hits"]):
        row: Row = {"setting": ours["setting"], "evals": ours["evals"]}
        for key in ("psnr_dense", "alignment"):
            rival = at(theirs, key, ours[key])
            row[key] = {"ours": ours[key], "theirs": rival[key], "setting": rival["setting"], "evals": round(rival["evals"], 2),
                        "at_least": rival[key] < ours[key], "evals_ratio": round(rival["evals"] / ours["evals"], 3),
                        "dit_speed": round(ours["dit_ratio"] / rival["dit_ratio"], 3),
                        "e2e_speed": round(ours["e2e_ratio"] / rival["e2e_ratio"], 3)}
        out.append(row)
    return out


def at(points: Sequence[Row], key: str, value: float) -> Row:
    """The least that a method costs at a quality, as a row of the curve; its setting names the two it lies between."""
    best = [p for p in points if not any(o[key] >= p[key] and o["evals"] < p["evals"] for o in points)]
    best.sort(key=lambda p: p[key])
    good, below = [p for p in best if p[key] >= value], [p for p in best if p[key] < value]
    if not good:
        return best[-1]
    if key == "alignment" or not below or good[0][key] >= SAME:
        return good[0]
    low, high = below[-1], good[0]
    share = (value - low[key]) / (high[key] - low[key])
    mixed = {k: low[k] + share * (high[k] - low[k]) for k in ("dit_ratio", "e2e_ratio", "evals")}
    return {**high, **mixed, key: value, "setting": {k: [high["setting"][k], low["setting"][k]] for k in high["setting"]}}


def large(quick: bool) -> list[Row]:
    """The paper's rows where tokens matter: five blocks of Wan2.1-1.3B on 2,560 tokens, bfloat16, transformer time only."""
    from ._shapes import MODES, WAN_480P, Stand, smaller

    shape = smaller(WAN_480P, 5, (16, 2, 20, 32) if quick else (16, 4, 40, 64))
    rows = []
    for share, density in ((0.05, 0.3),):
        stand = Stand(shape, "cpu", torch.bfloat16, share, density)
        stand.evaluate("full")
        took = stand.seconds(1, *MODES, "record")
        active = stand.scope.share()
        rows += [{"mode": mode, "tokens": shape.tokens, "layers": shape.layers, "active": round(active, 3),
                  "density": stand.density if mode in ("attention", "joint") else 1.0, "seconds": round(s, 3),
                  "ratio": round(took["dense"] / s, 3)} for mode, s in took.items()]
    return rows


def show(result: Row) -> None:
    """The tables as text."""
    if "methods" in result:
        print(f"{result['pairs']} pairs, {result['steps']} steps; ratios are medians against dense, hits only")
        table(result["methods"], {k: k for k in ("name", "hits", "e2e_ratio", "dit_ratio", "evals", "tokens_share", "density",
                                                 "alignment", "psnr_dense", "psnr_worst", "ssim_dense", "psnr_latent")})
    if "against" in result:
        print(f"Ours against joint on the pairs that both hit: {result['against']}")
    if "curve" in result:
        print("Quality against evaluations")
        table(sorted(result["curve"], key=lambda p: (p["name"], p["evals"])),
              {k: k for k in ("name", "setting", "evals", "dit_ratio", "e2e_ratio", "psnr_dense", "psnr_latent", "alignment")})
    for other, rows in equal(result.get("curve", ())).items():
        print(f"Speed of ours against {other} at equal quality (evaluations, transformer, end to end)")
        for row in rows:
            print(f"  {row['setting']}: " + "; ".join(
                f"{k} {'>= ' if row[k]['at_least'] else ''}{row[k]['evals_ratio']} {row[k]['dit_speed']} {row[k]['e2e_speed']}"
                for k in ("psnr_dense", "alignment")))
    for name, title in (("unions", "Which region"), ("connectivity", "Whose connectivity"), ("large", "Where tokens matter")):
        if result.get(name):
            print(title)
            table(result[name], {k: k for k in result[name][0]})


def keep(file: Path, result: Row, fresh: bool) -> None:
    """Write the figures; what the file holds of other parts stays, unless fresh."""
    before = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and not fresh else {}
    if before.get("family", result.get("family")) != result.get("family"):
        raise SystemExit(f"carnator: {file} holds figures of {before['family']}, and these are of {result['family']}")
    file.write_text(json.dumps(before | result, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="run.py bench scope", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="seven pairs, one a kind")
    family_option(parser)
    parser.add_argument("--part", choices=PARTS, action="append",
                        help="this part only; what --json holds of others is kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file as well")
    arguments = parser.parse_args()
    quiet()
    chosen = pairs(7 if arguments.quick else 28, SEED)
    some, few, short = (chosen[: 2 if arguments.quick else most] for most in (14, 7, 4))
    stage = Stage(steps=STEPS, halved=True, family=arguments.family)
    result: Row = {"family": stage.family.title, "machine": machine(), "steps": STEPS, "sampler": stage.sampler,
                   "cfg": stage.cfg, "quick": arguments.quick}
    meter = Meter(stage.model)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, meter.attached():
        studio = Studio(stage, meter, Path(folder))
        parts: dict[str, Callable[[], Row]] = {
            "methods": lambda: {"pairs": len(chosen)} | methods(studio, chosen),
            "against": lambda: {"against": against(once(studio, chosen[::2], ("dense", "joint", "ours")))},
            "curve": lambda: {"curve_pairs": len(some)} | curve(studio, some),
            "unions": lambda: {"unions": unions(studio, few)},
            "connectivity": lambda: {"connectivity": sources(studio, short)},
            "large": lambda: {"large": large(arguments.quick)},
        }
        for name in arguments.part or PARTS:
            result |= parts[name]()
            if arguments.json:
                keep(arguments.json, result, fresh=not arguments.part and name == PARTS[0])
    show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
