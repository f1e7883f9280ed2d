"""The matrix in README.md: what the suite shows for a backbone and a feature. A test says it with `@shows(...)`.

Written by `python3 run.py test --collect-only -q --write-matrix`; tests/test_matrix.py fails while README says otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

README = Path(__file__).resolve().parent.parent / "README.md"
BEGIN, END = "<!-- matrix -->", "<!-- /matrix -->"
BACKBONES = ("Wan2.1", "Wan2.2 5B", "Wan2.2 A14B", "LTX-Video")
WORKS, ASIDE, DECLINES = OUTCOMES = ("works", "steps aside", "declines")
COLLECTED: pytest.StashKey[list[Any]] = pytest.StashKey()  # what a session collected, before -k and -m take away from it


def shows(backbone: str, feature: str, outcome: str) -> pytest.MarkDecorator:
    """A mark: the test shows what Carnator does for this feature on this backbone. The `page` fixture holds it to that.

    Raises ValueError for a backbone or an outcome that the matrix does not have.
    """
    if backbone not in BACKBONES or outcome not in OUTCOMES:
        raise ValueError(f"the matrix has no {backbone!r} that {outcome!r}; it has {', '.join(BACKBONES)}: {', '.join(OUTCOMES)}")
    return pytest.mark.shows(backbone, feature, outcome)


@dataclass
class Row:
    """A feature: backbone -> outcome, and the tests (file::function) that show it."""

    outcomes: dict[str, str] = field(default_factory=dict)
    tests: list[str] = field(default_factory=list)


def rows(items: Iterable[Any]) -> dict[str, Row]:
    """Feature -> row, of all marked tests of a collection, in the order of the files and of the tests in them.

    Raises ValueError when two tests show different outcomes for one cell.
    """
    found: dict[str, Row] = {}
    for item in sorted(items, key=lambda i: i.path.name):
        for mark in item.iter_markers("shows"):
            backbone, feature, outcome = mark.args
            row = found.setdefault(feature, Row())
            if row.outcomes.setdefault(backbone, outcome) != outcome:
                raise ValueError(f"{feature} on {backbone}: {item.nodeid} shows {outcome!r}, another test "
                                 f"{row.outcomes[backbone]!r}")
            name = f"{item.path.name}::{item.originalname}"
            if name not in row.tests:
                row.tests.append(name)
    return found


def table(found: dict[str, Row]) -> str:
    """The matrix as Markdown, sorted by outcome: what works first."""
    def order(feature: str) -> int:
        return min(OUTCOMES.index(o) for o in found[feature].outcomes.values())

    lines = ["| feature | " + " | ".join(BACKBONES) + " | shown by |", "| --- |" + " --- |" * (len(BACKBONES) + 1)]
    for feature in sorted(found, key=order):
        row = found[feature]
        cells = [row.outcomes.get(b, "") for b in BACKBONES]
        tests = ", ".join(f"`{t}`" for t in row.tests)
        lines.append(f"| {feature} | " + " | ".join(cells) + f" | {tests} |")
    return "\n".join(lines)


def read(lines: Iterable[str]) -> dict[str, Row]:
    """Feature -> row of a table that `table` made."""
    found: dict[str, Row] = {}
    for line in list(lines)[2:]:
        feature, *cells, tests = (cell.strip() for cell in line.strip("|").split("|"))
        found[feature] = Row({b: c for b, c in zip(BACKBONES, cells, strict=True) if c}, tests.replace("`", "").split(", "))
    return found


def written(text: str) -> str:
    """The matrix that stands in README's text, "" without one."""
    _, begun, rest = text.partition(BEGIN)
    inside, ended, _ = rest.partition(END)
    return inside.strip() if begun and ended else ""


def write(items: Iterable[Any]) -> None:
    """Put the matrix of a whole collection into README.md. Raises ValueError when the place for it is missing."""
    text = README.read_text(encoding="utf-8")
    head, begun, rest = text.partition(BEGIN)
    _, ended, tail = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"README.md has no lines {BEGIN} and {END}")
    README.write_text(f"{head}{BEGIN}\n{table(rows(items))}\n{END}{tail}", encoding="utf-8")
