"""Choose the gate's thresholds from labelled pairs, certify them on others, and write the profile.

python3 run.py calibrate PAIRS.jsonl [--out PROFILE.json] [--risk 0.05] [--confidence 0.95] [--tolerance METRIC=NUMBER ...]
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from .explain import load_pack, read_text, stand

EPILOG = """\
A line of PAIRS.jsonl is one request with one remembered render:
  {"distances": {"size": 0.1, "shape": 0.3, "colour": 8.0, "motion": 0.02, "change": 0.2}, "safe": true}
distances   for each discrepancy the largest that counted against the remembered render; one that did not apply is left
            out, null is infinite
safe        whether the reuse was as good as the dense render; or, with --tolerance, the metrics of both:
            "quality": {"alignment": 0.9}, "dense": {"alignment": 0.92}
optional    "admissible": false (refused whatever the thresholds are), "request": "..." (pairs of one request stay on
            one side of the split), "source": "bench" or "creator", and what the profile is for: "model", "shape_class",
            "settings": {"mode", "probe", "tolerance"}, "change_scale"
A line {"facts": {...}} gives such keys to the lines after it. --verdicts takes a bank's folder: what its creator said
of reuses ("kept the scene", "wrong scene") is added.
"""


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="run.py calibrate", allow_abbrev=False, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Chooses thresholds of the largest coverage whose share of unsafe reuses stays within the risk, on one half\n"
                    "of the pairs; bounds the true share on the other half (one-sided Clopper-Pearson); writes a profile.")
    made.add_argument("pairs", nargs="?", metavar="PAIRS", help='JSON lines of labelled pairs; "-" is standard input')
    made.add_argument("--verdicts", metavar="FOLDER", action="append", default=[], help="a bank's folder (may be repeated)")
    made.add_argument("--out", metavar="FILE", help="where to write the profile; put it into user/carnator/profiles of ComfyUI")
    made.add_argument("--name", help="the profile's name (default: that of FILE)")
    made.add_argument("--risk", type=float, default=0.05, help="largest share of unsafe reuses when choosing (0.05)")
    made.add_argument("--confidence", type=float, default=0.95, help="confidence of the certified bound (0.95)")
    made.add_argument("--tolerance", metavar="METRIC=NUMBER", action="append", default=[], help="what a reuse may lose")
    made.add_argument("--model", default="", help="only pairs of this model (a part of its name will do)")
    made.add_argument("--shape", default="", help="only pairs of this latent shape (CxTxHxW)")
    made.add_argument("--mode", default="", help="only pairs of this mode of reuse")
    made.add_argument("--seed", type=int, default=0, help="of the split into halves (0)")
    made.add_argument("--json", action="store_true", help="print the profile as JSON instead of the report")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 for a certified profile, 1 for one that nothing was accepted for, 2 for a wrong call or file."""
    made = parser()
    options = made.parse_args(arguments)
    if options.pairs is None and not options.verdicts:
        made.error("give a file of labelled pairs, or --verdicts with a bank's folder")
    load_pack()
    core = importlib.import_module("carnator.carnator_core.calibrate")
    verdicts = importlib.import_module("carnator.carnator_core.verdicts")
    name = options.name or (Path(options.out).stem if options.out else "profile")
    try:
        rows = []
        if options.pairs is not None:
            rows += core.read_pairs(read_text(options.pairs))
        for folder in options.verdicts:
            if not stand(folder).is_dir():
                raise ValueError(f"{folder} is no folder")
            rows += core.pairs_of(verdicts.labels(stand(folder)))
        profile, report = core.calibrate(core.only(rows, options.model, options.shape, options.mode), name, options.risk,
                                         options.confidence, core.tolerances_of(",".join(options.tolerance)), options.seed)
        if options.out:
            stand(options.out).write_text(profile.to_json(), encoding="utf-8")
    except (OSError, ValueError) as error:
        made.error(str(error))
    print(json.dumps(json.loads(profile.to_json()), indent=2) if options.json else report)
    return 0 if profile.certificate is not None else 1


if __name__ == "__main__":
    sys.exit(main())
