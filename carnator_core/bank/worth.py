"""What an entry is worth keeping for: seconds saved x decayed hits / bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from .errors import BankDamaged
from .strictjson import dumps, loads

HALF_LIFE_S = 7 * 24 * 3600.0
# What a hit on an entry that never had one is expected to save, as a share of its dense render.
EXPECTED_SAVING = 0.5


@dataclass(frozen=True)
class Life:
    """What happened to an entry since it was stored. heat is the number of uses at time heat_at (seconds since the
    epoch), each halved for every week since; being stored counts as the first use."""

    heat_at: float
    heat: float = 1.0
    hits: int = 0
    seconds_saved: float = 0.0
    pinned: bool = False

    def heat_now(self, now: float) -> float:
        """The decayed number of uses; a clock that was set back does not heat."""
        return self.heat * math.pow(0.5, max(0.0, now - self.heat_at) / HALF_LIFE_S)

    def used(self, now: float, seconds_saved: float) -> Life:
        """After one more hit that saved some seconds."""
        saved = max(0.0, seconds_saved) if math.isfinite(seconds_saved) else 0.0
        return replace(
            self, heat=self.heat_now(now) + 1, heat_at=now, hits=self.hits + 1, seconds_saved=self.seconds_saved + saved
        )

    def to_json(self) -> bytes:
        """The text of life.json."""
        return dumps(vars(self))

    @staticmethod
    def from_json(data: bytes) -> Life:
        """Read life.json. Raises BankDamaged."""
        body = loads(data)
        kinds = {"heat_at": float, "heat": float, "hits": int, "seconds_saved": float, "pinned": bool}
        if (
            not isinstance(body, dict)
            or body.keys() != kinds.keys()
            or any(type(body[k]) is not t for k, t in kinds.items())
        ):
            raise BankDamaged("life.json is malformed")
        if (
            not 0 <= body["hits"] < 1 << 53
            or not 0 <= body["heat"] < math.inf
            or not 0 <= body["seconds_saved"] < math.inf
        ):
            raise BankDamaged("life.json is malformed")
        return Life(**body)


def worth(life: Life, dense_seconds: float, size: int, now: float) -> float:
    """Expected seconds saved per byte: mean saving of a hit (with one expected hit as a prior) x heat / bytes."""
    per_hit = (life.seconds_saved + EXPECTED_SAVING * dense_seconds) / (life.hits + 1)
    return per_hit * life.heat_now(now) / max(1, size)


def victims(entries: Sequence[tuple[str, float, int]], need: int) -> list[str] | None:
    """Ids to let go so that at least `need` bytes become free, from (id, worth, bytes); None when it cannot be done."""
    chosen: list[str] = []
    for entry_id, _, size in sorted(entries, key=lambda e: (e[1], e[0])):
        if need <= 0:
            break
        chosen.append(entry_id)
        need -= size
    return chosen if need <= 0 else None
