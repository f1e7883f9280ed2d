"""JSON as the bank reads it: bounded, without duplicate keys or NaN, and never an error of another kind."""

from __future__ import annotations

import json
import math
from typing import Any

from .errors import BankDamaged

MAX_JSON_BYTES = 2 << 20
MAX_DEPTH = 64


def loads(data: bytes) -> Any:
    """Parse UTF-8 JSON. Raises BankDamaged for anything malformed, too large, or nested deeper than 64."""
    if len(data) > MAX_JSON_BYTES:
        raise BankDamaged("a JSON text is too large")
    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_float)
    except (ValueError, RecursionError) as error:
        raise BankDamaged("a JSON text is malformed") from error
    if _depth(value, MAX_DEPTH) < 0:
        raise BankDamaged("a JSON text is nested too deeply")
    return value


def dumps(value: Any) -> bytes:
    """The one spelling of a value: ASCII, sorted keys, no spaces. Raises TypeError or ValueError otherwise."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("duplicate key")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text} is too large")
    return value


def _depth(value: Any, left: int) -> int:
    """Levels left below `value`; negative when it is too deep."""
    if left < 0 or not isinstance(value, (dict, list)):
        return left
    inner = value.values() if isinstance(value, dict) else value
    return min((_depth(v, left - 1) for v in inner), default=left)
