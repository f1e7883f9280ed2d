"""What a creator says of hits: "kept the scene" or "wrong scene", kept beside the bank's entries for calibration.

Two files of JSON lines in the bank's folder, each row in the bank's one spelling (strictjson.dumps), replaced as a whole
under the bank's own lock: `hits.jsonl` holds the last hits that can be judged, `verdicts.jsonl` what was said of them.
A row that does not read is left out with a warning and nothing else; the last row about a hit is the one that counts.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from .bank import Bank, BankDamaged, BankMissing
from .bank.limits import valid_id
from .bank.strictjson import dumps, loads
from .bank.syncing import replace
from .gate import Distance

LOG = logging.getLogger("carnator")
SCHEMA = 1
HITS, VERDICTS = "hits.jsonl", "verdicts.jsonl"
KEPT_HITS, KEPT_VERDICTS = 100, 10_000
MAX_PROMPT, MAX_ROW = 20_000, 1 << 18
Said = Literal["kept", "wrong", "withdrawn"]
SAYINGS: tuple[Said, ...] = ("kept", "wrong", "withdrawn")
Row = TypeVar("Row")


@dataclass(frozen=True)
class Hit:
    """A served hit. id and history: 24 hex digits (of the hit itself, and of the bank's entry). similarity: cosine of the
    texts. distances: all that the gate measured, infinite where a thing was not to be seen. saved: seconds. date: seconds
    since the epoch. model and shape_class as a certificate names them; probe (steps) and tolerance (of forecasts) as set."""

    id: str
    history: str
    history_prompt: str
    prompt: str
    mode: str
    similarity: float
    distances: tuple[Distance, ...]
    saved: float
    date: float
    model: str = ""
    shape_class: str = ""
    probe: int = 0
    tolerance: float = 0.0


@dataclass(frozen=True)
class Label:
    """A hit and whether the creator found the scene kept. date: when that was said, seconds since the epoch."""

    hit: Hit
    kept: bool
    date: float


def new_hit_id() -> str:
    """An id for a hit."""
    return secrets.token_hex(12)


def note(bank: Bank, hit: Hit) -> None:
    """Remember a hit among the last KEPT_HITS. Raises BankMissing when there is no bank, OSError, sqlite3.Error."""
    with bank.alone() as folder:
        _append(folder / HITS, _hit_body(hit), KEPT_HITS)


def say(bank: Bank, hit_id: str, said: Said, date: float) -> Label | None:
    """Label one of the last hits, or withdraw its label; returns the label now in force.

    Raises KeyError for a hit that is not among them, ValueError for another word, BankMissing, OSError, sqlite3.Error.
    """
    if said not in SAYINGS:
        raise ValueError(f"a hit is judged by one of {', '.join(SAYINGS)}, not {said!r}")
    with bank.alone() as folder:
        hit = {h.id: h for h in hits(folder)}.get(hit_id)
        if hit is None:
            raise KeyError(hit_id)
        _append(folder / VERDICTS, {**_hit_body(hit), "verdict": said, "said": float(date)}, KEPT_VERDICTS)
    return None if said == "withdrawn" else Label(hit, said == "kept", date)


def hits(folder: Path) -> list[Hit]:
    """The last hits of the bank in `folder`, oldest first; none where there is no such bank. Never raises for its contents."""
    return _read(folder / HITS, _hit)


def labels(folder: Path) -> list[Label]:
    """All labels in force of the bank in `folder`, oldest first; for calibration. Never raises for the file's contents."""
    said = {row.hit.id: (row, word) for row, word in _read(folder / VERDICTS, _label)}
    return sorted((row for row, word in said.values() if word != "withdrawn"), key=lambda row: row.date)


def forget(bank: Bank) -> None:
    """Remove the last hits and all labels; they hold prompts. Raises OSError and sqlite3.Error."""
    try:
        with bank.alone() as folder:
            for path in (*folder.glob(f"{HITS}*"), *folder.glob(f"{VERDICTS}*")):
                path.unlink(missing_ok=True)
    except BankMissing:
        return


def _append(path: Path, body: dict[str, Any], most: int) -> None:
    replace(path, b"\n".join([*_lines(path)[1 - most :], dumps(body), b""]))


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines()
    except FileNotFoundError:
        return []


def _read(path: Path, make: Callable[[Any], Row]) -> list[Row]:
    try:
        lines = _lines(path)
    except OSError as error:
        LOG.warning("bank: %s cannot be read: %s", path.name, error.strerror)
        return []
    found: list[Row] = []
    for line in lines:
        try:
            if len(line) > MAX_ROW:
                raise BankDamaged("a row is too long")
            found.append(make(loads(line)))
        except (BankDamaged, KeyError, TypeError, ValueError):
            continue
    if len(found) < len(lines):
        LOG.warning("bank: %d of %d rows of %s do not read and are left out", len(lines) - len(found), len(lines), path.name)
    return found


def _hit_body(hit: Hit) -> dict[str, Any]:
    rows = [[d.name, d.entity, _finite(d.value), _finite(d.threshold), d.expected] for d in hit.distances]
    return {
        "schema": SCHEMA, "hit": hit.id, "history": hit.history, "history_prompt": hit.history_prompt[:MAX_PROMPT],
        "prompt": hit.prompt[:MAX_PROMPT], "mode": hit.mode, "similarity": float(hit.similarity), "distances": rows,
        "saved": float(hit.saved), "date": float(hit.date), "model": hit.model, "shape_class": hit.shape_class,
        "probe": hit.probe, "tolerance": float(hit.tolerance),
    }  # fmt: skip


def _hit(body: Any) -> Hit:
    """Raises KeyError, TypeError or ValueError for anything else than a row of this schema."""
    if type(body["schema"]) is not int or body["schema"] != SCHEMA:
        raise ValueError("the row was written by another version")
    if not valid_id(body["hit"]) or not valid_id(body["history"]):
        raise ValueError("not an id")
    return Hit(
        id=body["hit"], history=body["history"], history_prompt=_text(body["history_prompt"]), prompt=_text(body["prompt"]),
        mode=_text(body["mode"]), similarity=_number(body["similarity"]),
        distances=tuple(_distance(row) for row in body["distances"]), saved=_number(body["saved"]), date=_number(body["date"]),
        model=_text(body["model"]), shape_class=_text(body["shape_class"]), probe=int(_number(body["probe"])),
        tolerance=_number(body["tolerance"]),
    )  # fmt: skip


def _label(body: Any) -> tuple[Label, Said]:
    word = body["verdict"]
    if word not in SAYINGS:
        raise ValueError("not a verdict")
    return Label(_hit(body), word == "kept", _number(body["said"])), word


def _distance(row: Any) -> Distance:
    name, entity, value, threshold, expected = row
    if not isinstance(name, str) or not isinstance(entity, str) or not isinstance(expected, bool):
        raise ValueError("not a distance")
    value, threshold = (math.inf if v is None else _number(v) for v in (value, threshold))
    return Distance(name, entity, value, threshold, expected)


def _text(value: Any) -> str:
    if not isinstance(value, str) or len(value) > MAX_PROMPT:
        raise ValueError("not a text, or too long a one")
    return value


def _number(value: Any) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise ValueError("not a number")
    return float(value)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
