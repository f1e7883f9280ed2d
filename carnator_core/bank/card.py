"""What recall needs of an entry, without opening it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..history import Identity
from .index import Index
from .strictjson import loads
from .worth import Life


@dataclass(frozen=True)
class EntryCard:
    """One entry. text_vector is [D] float32 of unit length; bytes on disk; created in seconds since the epoch."""

    id: str
    prompt: str
    identity: Identity
    text_vector: Tensor
    noise_digest: str
    facts: dict[str, Any]
    bytes: int
    hits: int
    seconds_saved: float
    created: float
    pinned: bool


class Cards:
    """Cards made from the index, of which all but hits and pin is made once."""

    def __init__(self) -> None:
        self._fixed: dict[str, dict[str, Any]] = {}

    def of(self, index: Index, identity: str | None) -> tuple[list[EntryCard], list[str]]:
        """Cards of one identity digest or of all, oldest first, and ids whose rows were altered behind our back."""
        lives = index.lives(identity)
        if identity is None:
            self._keep(i for i, *_ in lives)
        broken = self._learn(index, [i for i, *_ in lives])
        return self._made(lives), broken

    def some(self, index: Index, ids: Sequence[str]) -> list[EntryCard]:
        """Cards of some entries, those that are gone or altered left out."""
        self._learn(index, ids)
        lives = {i: (i, n, dense, life) for i, n, dense, life in index.lives(ids=ids)}
        return self._made([lives[i] for i in ids if i in lives])

    def _learn(self, index: Index, ids: Sequence[str]) -> list[str]:
        broken = []
        for entry_id, created, card, vector in index.cards([i for i in ids if i not in self._fixed]):
            if card is None:
                broken.append(entry_id)
                self._fixed.pop(entry_id, None)
                continue
            body = loads(card)
            self._fixed[entry_id] = {
                "prompt": body["prompt"],
                "identity": Identity(body["identity"]),
                "noise_digest": body["noise_digest"],
                "facts": body["facts"],
                "created": created,
                "text_vector": vector,
            }
        return broken

    def _made(self, lives: Sequence[tuple[str, int, float, Life]]) -> list[EntryCard]:
        return [
            EntryCard(i, bytes=n, hits=life.hits, seconds_saved=life.seconds_saved, pinned=life.pinned, **self._fixed[i])
            for i, n, _, life in lives
            if i in self._fixed
        ]

    def _keep(self, ids: Iterable[str]) -> None:
        """Forget cards of entries that are gone."""
        self._fixed = {i: self._fixed[i] for i in ids if i in self._fixed}
