"""Explain what the text stage makes of two prompts: a remembered one (A) and a new one (B).

python3 run.py explain "PROMPT A" "PROMPT B" [--json]
python3 run.py explain --batch pairs.jsonl [--json]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def load_pack() -> Any:
    """carnator_core.explain, with the pack imported as the host imports it: one package, its root not on sys.path."""
    if "carnator" not in sys.modules:
        start, place = ROOT / "__init__.py", [str(ROOT)]
        spec = importlib.util.spec_from_file_location("carnator", start, submodule_search_locations=place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["carnator"] = module
        spec.loader.exec_module(module)
    return importlib.import_module("carnator.carnator_core.explain")


def stand(name: str) -> Path:
    """A path as the person means it: run.py starts us in the checkout, not where they stand."""
    path = Path(name)
    if path.is_absolute():
        return path
    here = Path(os.environ.get("PWD", "")) / path
    return here if here.exists() or not path.exists() else path


def read_text(name: str) -> str:
    """A UTF-8 file, or standard input for "-". Raises ValueError in a sentence."""
    try:
        text = sys.stdin.read() if name == "-" else stand(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror}") from error
    return text.removeprefix("\ufeff")


def read_pairs(name: str) -> list[dict[str, Any]]:
    """Rows {"a": ..., "b": ...} of a JSON-lines file; "-" is standard input. Raises ValueError that names the line."""
    rows = []
    for number, line in enumerate(read_text(name).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}, line {number}: not JSON ({error.msg})") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(k), str) for k in ("a", "b")):
            raise ValueError(f'{name}, line {number}: needs an object with the texts "a" and "b"')
        rows.append(row)
    if not rows:
        raise ValueError(f'{name} holds no pairs: one JSON object {{"a": ..., "b": ...}} a line')
    return rows


def summary(rows: Sequence[dict[str, Any]], explained: Sequence[dict[str, Any]]) -> str:
    """A line per pair, then how often each verdict came, by class where the rows name one ("cls")."""
    lines = [f'"{one["a"]["raw"]}" -> "{one["b"]["raw"]}"\n    {one["verdict"]}' for one in explained]
    counts = Counter((str(r.get("cls") or r.get("class") or "all"), one["kind"])
                     for r, one in zip(rows, explained, strict=True))
    lines += ["", *(f"{name:<32} {kind:<16} {count:>5}" for (name, kind), count in sorted(counts.items()))]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 0 whatever the verdict; 2 for a wrong call or an unreadable file."""
    parser = argparse.ArgumentParser(
        prog="run.py explain", allow_abbrev=False,
        description="What the text stage makes of two prompts: what they name and say, how it corresponds, and whether "
                    "a render of A is worth a look for B (reuse-candidate, recompute: ..., refuse: ...).")
    parser.add_argument("prompts", nargs="*", metavar="PROMPT", help="A, the remembered prompt, and B, the new one")
    parser.add_argument("--batch", metavar="FILE", help='pairs to explain, one JSON object {"a": ..., "b": ...} a line')
    parser.add_argument("--json", action="store_true", help="print JSON: one object, or one a line with --batch")
    options = parser.parse_args(arguments)
    if options.batch is None and len(options.prompts) != 2 or options.batch is not None and options.prompts:
        parser.error('give two prompts ("PROMPT A" "PROMPT B"), or --batch FILE')
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8", errors="replace")
    if options.batch is None:
        pack = load_pack()
        one = pack.explain([tuple(options.prompts)])[0]
        print(json.dumps(one, ensure_ascii=False, indent=2) if options.json else pack.as_text(one))
        return 0
    try:
        rows = read_pairs(options.batch)
    except ValueError as error:
        parser.error(str(error))
    explained = load_pack().explain([(row["a"], row["b"]) for row in rows])
    if options.json:
        for row, one in zip(rows, explained, strict=True):
            kept = {k: v for k, v in row.items() if k not in ("a", "b")}
            print(json.dumps({**kept, **one}, ensure_ascii=False))
    else:
        print(summary(rows, explained))
    return 0


if __name__ == "__main__":
    sys.exit(main())
