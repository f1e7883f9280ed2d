"""README's tables of measured figures, written from the committed data.

    python3 run.py bench figures [--check]

Each table stands between `<!-- figures: NAME -->` and `<!-- /figures -->`. tests/test_figures.py fails while one says
anything else than docs/data; --check says so without writing.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from . import ROOT
from . import scope as scope_bench

README, DATA = ROOT / "README.md", ROOT / "docs" / "data"
FAMILIES = {"Wan2.1": "", "Wan2.2 5B": "_wan22", "LTX-Video": "_ltx"}  # title -> what the data files end in
RULES = {"text": "text alone", "paper": "the paper's discrepancies", "change_map": "the change map alone",
         "ours": "**Carnator** (all together)"}
REUSES = {"joint": "joint", "ours": "forecasting"}
METHODS = {"dense": "dense", "ours": "**Carnator** (`ours`)", "easycache": "EasyCache, its default",
           "lazycache": "LazyCache, its default", "nirvana": "NIRVANA-VID (`resume`)", "chorus": "Chorus",
           "chorus2": "Chorus II, attention alone", "latent": "the paper's latent reuse (`latent`)",
           "joint": "the paper's joint reuse (`joint`)"}
RIVALS = {"easycache": "EasyCache", "lazycache": "LazyCache", "steps": "fewer steps", "alone": "ours without a history"}
NEAR, LOOSE = '{"tolerance": 0.25}', '{"tolerance": 1.0, "longest": 10}'  # the default, and the fastest of ours
Data = dict[str, Any]


@cache
def data(name: str) -> Data:
    """A file of docs/data. Raises SystemExit when it is not there."""
    file = DATA / f"{name}.json"
    if not file.is_file():
        raise SystemExit(f"carnator: docs/data/{name}.json is not there; run the bench that writes it")
    return json.loads(file.read_text(encoding="utf-8"))  # type: ignore[no-any-return]


def measured(name: str) -> Iterator[tuple[str, Data]]:
    """Title and data of each family that this was measured on."""
    for title, suffix in FAMILIES.items():
        if (DATA / f"{name}{suffix}.json").is_file():
            yield title, data(name + suffix)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"  # a method without a hit has none


def dB(value: float | None) -> str:  # noqa: N802 (the unit's own spelling)
    return "-" if value is None or value >= scope_bench.SAME else f"{value:.1f} dB"


def share(value: float, of: int) -> str:
    """A share that was rounded, of so many, as whole percent."""
    return f"{round(value * of) / of:.0%}"


def yes(value: bool) -> str:
    return "yes" if value else "**no**"


def demo() -> str:
    """Each request of the demo."""
    rows = [[r["prompt"], r["kind"], r["decision"], f"{r['dense_s']:.2f}", f"{r['reuse_s']:.2f}", times(r["speedup"]),
             f"{r['computed']} of {r['steps']}", f"{yes(r['agrees_dense'])} / {yes(r['agrees_reuse'])}"]
            for r in data("demo")["requests"]]
    return table(["request", "what changes", "", "dense s", "Carnator s", "speed", "steps computed",
                  "follows the prompt, dense / reuse"], rows)


def demo_models() -> str:
    """The demo's summary, each family."""
    rows = []
    for title, found in measured("demo"):
        s, misses = found["summary"], [r for r in found["requests"] if r["decision"] != "hit"]
        same = all(r["bit_identical_to_dense"] for r in misses)
        rows.append([title, f"{s['hits']} of {s['requests']}", f"**{times(s['median_speedup_hits'])}**",
                     f"{s['agrees_dense']} / {s['agrees_reuse']} of {s['requests']}", f"{s['transformer_share']:.0%}",
                     yes(same) if misses else "none", found["machine"].split(",")[0]])
    return table(["model", "hits", "median speed of hits", "follows the prompt, dense / reuse",
                  "transformer's share of a dense render", "misses bit-identical to stock", "machine"], rows)


def models() -> str:
    """How well the demo models follow prompts."""
    rows = []
    for title, found in measured("evaluate"):
        held, pairs = found["held"], found["pairs"]
        at, control = held["attention"]["4"]["iou"], held["attention"]["4"]["control_iou"]
        rows.append([title, *(share(held[k], held["clips"]) for k in ("noun", "colour", "size", "place", "motion", "all")),
                     "{} of {}".format(*pairs["objects_right"]), f"{at:.2f} / {control:.2f}"])
    return table(["model", "noun", "colour", "size", "place", "motion", "all at once", "of two objects",
                  "attention at step 4: IoU with its own object / another's"], rows)


def validity() -> str:
    """Each rule on the first family."""
    found = data("validity")
    rows = []
    for m in found["methods"]:
        unsafe = f"{m['unsafe']} of {m['accepted']}"
        rows.append([RULES[m["name"]], REUSES[m["reuse"]], f"{m['hit_rate']:.1%}",
                     f"**{unsafe}**" if m["name"] == "ours" else unsafe, f"{m['bound']:.1%}",
                     f"{m['alignment']:.3f}", f"{m['quality']:.3f}", times(m["hit_latency_ratio"]),
                     dB(m["hit_psnr"])])
    dense = found["dense"]
    return table(["rule", "reuse", "hits", "unsafe of accepted", "bound at 95 %", f"alignment (dense {dense['alignment']:.3f})",
                  f"quality (dense {dense['quality']:.3f})", "speed on hits", "PSNR to dense"], rows)


def validity_kinds() -> str:
    """Unsafe ones by what the request changes."""
    methods = data("validity")["methods"]
    kinds = list(methods[0]["by_change"])
    rows = [[RULES[m["name"]], *(f"{c['unsafe']} / {round(c['hit_rate'] * c['requests'])}" for c in m["by_change"].values())]
            for m in methods]
    return table(["rule", *kinds], rows)


def validity_models() -> str:
    """Each family: ours beside the rule of the paper."""
    rows = []
    for title, found in measured("validity"):
        for m in found["methods"]:
            if m["name"] in ("paper", "ours"):
                rows.append([title, RULES[m["name"]], str(m["requests"]), f"{m['hit_rate']:.1%}",
                             f"{m['unsafe']} of {m['accepted']}", f"{m['bound']:.1%}",
                             f"{m['alignment']:.3f} ({found['dense']['alignment']:.3f})",
                             times(m["hit_latency_ratio"])])
    return table(["model", "rule", "requests", "hits", "unsafe of accepted", "bound at 95 %", "alignment (dense)", "speed on hits"],
                 rows)


def scope() -> str:
    """Each method on the first family."""
    rows = []
    found = {m["name"]: m for m in data("scope")["methods"]}
    for name, said in METHODS.items():
        m = found[name]
        if not m["hits"]:
            continue
        ours = "**" if name == "ours" else ""
        rows.append([said, f"{m['hits']} of {m['pairs']}", f"{ours}{times(m['e2e_ratio'])}{ours}",
                     f"{ours}{times(m['dit_ratio'])}{ours}", f"{m['evals']:.1f}", f"{m['tokens_share']:.0%}",
                     f"{m['alignment']:.3f}", dB(m["psnr_dense"]),
                     f"{m['ssim_dense']:.3f}"])
    return table(["method", "hits", "end to end", "transformer", f"evaluations of {data('scope')['steps']}",
                  "token-layers computed", "alignment", "PSNR", "SSIM"], rows)


def scope_models() -> str:
    """Ours and the step caches, each family."""
    rows = []
    for title, found in measured("scope"):
        by = {m["name"]: m for m in found["methods"]}
        for name in ("ours", "easycache", "lazycache"):  # all on the same pairs as dense
            m = by[name]
            if m["hits"]:
                aligned = f"{m['alignment']:.3f} ({by['dense']['alignment']:.3f})"
                rows.append([title, METHODS[name], f"{m['hits']} of {m['pairs']}", times(m["e2e_ratio"]), times(m["dit_ratio"]),
                             f"{m['evals']:.1f}", aligned, dB(m["psnr_dense"])])
    return table(["model", "method", "hits", "end to end", "transformer", "evaluations", "alignment (dense)", "PSNR"], rows)


def scope_equal() -> str:
    """Speed of ours over each rival's at equal quality: near the dense render, and where the prompt alone counts."""
    rows = []
    for title, found in measured("scope"):
        for other, compared in scope_bench.equal(found["curve"]).items() if "curve" in found else ():
            by, said = {json.dumps(row["setting"]): row for row in compared}, RIVALS[other]
            near, loose = by[NEAR], by[LOOSE]
            rows.append([title, said, *_equal(near, "psnr_dense", "{:.1f} dB"), *_equal(loose, "alignment", "{:.3f}")])
    return table(["model", "against", "as near the dense render: evaluations, ours / theirs", "transformer, end to end",
                  "as true to the prompt: evaluations, ours / theirs", "transformer, end to end"], rows)


def _equal(row: Data, key: str, form: str) -> tuple[str, str]:
    found = row[key]
    more = ">= " if found["at_least"] else ""
    theirs = ", ".join(f"{k} " + (" to ".join(map(str, v)) if isinstance(v, list) else str(v)) for k, v in found["setting"].items())
    quality = form.format(found["ours"])
    if found["at_least"] or key == "alignment":
        quality += " / " + form.format(found["theirs"])
    return (f"{row['evals']:.1f} / {found['evals']:.1f} ({quality}; {theirs})",
            f"{more}**{times(found['dit_speed'])}**, {more}{times(found['e2e_speed'])}")


def against() -> str:
    """Ours against joint on the pairs that both hit."""
    rows = [[title, str(a["pairs"]), times(a["dit_speed"]), times(a["e2e_speed"]), f"{a['alignment_ours']:.3f}",
             f"{a['alignment_joint']:.3f}"]
            for title, found in measured("scope") if (a := found.get("against", {})).get("pairs")]
    return table(["model", "pairs that both hit", "transformer", "end to end", "alignment, ours", "alignment, joint"], rows)


def large() -> str:
    """The paper's rows where tokens matter."""
    found = [(d["machine"].split(",")[0], {r["mode"]: r for r in d["large"]}) for d in (data("scope_large"), data("scope"))]
    said = {"latent": "restricted layers (`latent`)", "attention": "the history's sparse attention", "joint": "both (`joint`)",
            "record": "recording, in the one step of four in which it is done"}
    rows = [[said[mode], *(times(rows[mode]["ratio"]) for _, rows in found)] for mode in said]
    return table(["five layers, 2,560 tokens, speed against dense", *(name for name, _ in found)], rows)


def change() -> str:
    """What the change map predicts, by the length of the probe."""
    rows = data("change")["by_length"]["all"]
    some = [r for r in rows if r["probe"] in (1, 2, 3, 4, 5, 7, 10)]
    return table(["after steps", *(str(r["probe"]) for r in some)], [
        ["ranks right", *(f"{r['auc']:.2f}" for r in some)],
        [f"predicted share (true: {some[0]['true']:.1%})", *(f"{r['predicted']:.1%}" for r in some)],
        ["factor", *(f"{r['factor']:.2f}" for r in some)]])


def change_models() -> str:
    """The change map after the probe's four steps, each family."""
    rows = [[title, f"{r['auc']:.2f}", f"{r['predicted']:.1%}", f"{r['true']:.1%}", f"{r['factor']:.2f}"]
            for title, found in measured("change") for r in found["by_length"]["all"] if r["probe"] == 4]
    return table(["model", "ranks right after 4 steps", "predicted share", "true share", "factor"], rows)


def probe() -> str:
    """Whole hits by the length of their probe."""
    rows = data("probe_hits")["hits"]
    return table(["probe steps", *(str(r["probe"]) for r in rows)], [
        ["evaluations of 50", *(f"{r['evals']:.1f}" for r in rows)],
        ["transformer", *(times(r["dit_ratio"]) for r in rows)],
        ["PSNR of the clip, dB", *(f"{r['psnr_dense']:.1f}" for r in rows)]])


TABLES: dict[str, Callable[[], str]] = {
    "demo": demo, "demo models": demo_models, "models": models, "validity": validity, "validity kinds": validity_kinds,
    "validity models": validity_models, "scope": scope, "scope models": scope_models, "scope equal": scope_equal,
    "against": against, "large": large, "change": change, "change models": change_models, "probe": probe}
PLACE = re.compile(r"(?P<indent> *)<!-- figures: (?P<name>[a-z ]+) -->\n.*?<!-- /figures -->", re.DOTALL)


def written(text: str) -> str:
    """README with every table as the data has it. Raises SystemExit for a table that nobody makes."""
    def made(match: re.Match[str]) -> str:
        name, indent = match["name"], match["indent"]
        if name not in TABLES:
            raise SystemExit(f"carnator: README asks for the table {name!r}; there are {', '.join(TABLES)}")
        lines = [f"<!-- figures: {name} -->", *TABLES[name]().splitlines(), "<!-- /figures -->"]
        return "\n".join(indent + line for line in lines)
    return PLACE.sub(made, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run.py bench figures", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail where README says anything else")
    options = parser.parse_args(arguments)
    text = README.read_text(encoding="utf-8")
    new = written(text)
    if new == text:
        print("README says what docs/data says")
        return 0
    if options.check:
        print("README differs from docs/data; python3 run.py bench figures writes it anew", file=sys.stderr)
        return 1
    README.write_text(new, encoding="utf-8")
    print("README written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
