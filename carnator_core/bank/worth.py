"""What an entry is worth keeping for: seconds that a hit saves x how recently it was of use / bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import BankDamaged
from .strictjson import dumps, loads

# An entry's last use counts for half after this time, a third after twice of it, and so on.
RECENT_S = 3600.0
# What a hit on an entry that never had one is expected to save, as a share of its dense render.
EXPECTED_SAVING = 0.5


@dataclass(frozen=True)
class Life:
    """What happened to an entry since it was stored; used_at is the time of its last use (its storing counts as one),
    in seconds since the epoch."""

    used_at: float
    hits: int = 0
    seconds_saved: float = 0.0
    pinned: bool = False

    def used(self, now: float, seconds_saved: float) -> Life:
        """After one more hit that saved some seconds."""
        saved = max(0.0, seconds_saved) if math.isfinite(seconds_saved) else 0.0
        return replace(self, used_at=now, hits=self.hits + 1, seconds_saved=self.seconds_saved + saved)

    def to_json(self) -> bytes:
        """The text of life.json."""
        return dumps(vars(self))

    @staticmethod
    def from_json(data: bytes) -> Life:
        """Read life.json. Raises BankDamaged."""
        body = loads(data)
        kinds = {"used_at": float, "hits": int, "seconds_saved": float, "pinned": bool}
        if not isinstance(body, dict) or body.keys() != kinds.keys():
            raise BankDamaged("life.json is malformed")
        if any(type(body[k]) is not t for k, t in kinds.items()):
            raise BankDamaged("life.json is malformed")
        if not 0 <= body["hits"] < 1 << 53 or not 0 <= body["seconds_saved"] < math.inf:
            raise BankDamaged("life.json is malformed")
        return Life(**body)


def worth(life: Life, dense_seconds: float, size: int, now: float) -> float:
    """Expected seconds saved per byte: the mean saving of a hit (with one expected hit as a prior) / bytes, x 1 / (1 +
    hours since the last use).

    On streams of requests in the demo world (bench/_eviction.py) this saves as much as LRU where all entries are alike,
    and more where they are not; counting hits that decay with half-lives of 6 hours to 7 days saves less than LRU, for
    creators go from theme to theme. GreedyDual-Size saves the same to 0.01 % (docs/data/bank.json).
    """
    per_hit = (life.seconds_saved + EXPECTED_SAVING * dense_seconds) / (life.hits + 1)
    return per_hit / max(1, size) / (1 + max(0.0, now - life.used_at) / RECENT_S)


def victims(entries: Sequence[tuple[str, float, int]], need: int) -> list[str] | None:
    """Ids to let go so that at least `need` bytes become free, from (id, worth, bytes); None when it cannot be done."""
    chosen: list[str] = []
    for entry_id, _, size in sorted(entries, key=lambda e: (e[1], e[0])):
        if need <= 0:
            break
        chosen.append(entry_id)
        need -= size
    return chosen if need <= 0 else None
