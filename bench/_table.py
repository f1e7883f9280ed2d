"""Rows of figures as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def table(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, str] | None = None) -> None:
    """Print rows under headings; columns: key -> heading (None: the first row's keys under their own names)."""
    columns = columns or {key: key for key in rows[0]}
    cells = [list(columns.values()), *([f"{r.get(k, '')}" for k in columns] for r in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip())
