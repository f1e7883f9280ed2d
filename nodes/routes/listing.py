"""A bank's entries as the page shows them: found, sorted, a stretch at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...carnator_core import verdicts
from ...carnator_core.bank import Bank, EntryCard

MOST_AT_ONCE = 200
SHOWN_PROMPT = 600
SHOWN_HITS = 12
_ORDER: dict[str, Callable[[EntryCard], tuple[Any, ...]]] = {
    "newest": lambda c: (-c.created, c.id),
    "oldest": lambda c: (c.created, c.id),
    "saved": lambda c: (-c.seconds_saved, -c.created, c.id),
    "hits": lambda c: (-c.hits, -c.created, c.id),
    "largest": lambda c: (-c.bytes, -c.created, c.id),
    "pinned": lambda c: (not c.pinned, -c.created, c.id),
}
SORTS = tuple(_ORDER)


def found(cards: Sequence[EntryCard], search: str, sort: str) -> list[EntryCard]:
    """Cards whose prompts hold every word of `search`, in an order of SORTS."""
    words = search.casefold().split()
    wanted = [c for c in cards if all(w in c.prompt.casefold() for w in words)] if words else list(cards)
    return sorted(wanted, key=_ORDER[sort])


def shown(card: EntryCard) -> dict[str, Any]:
    """What the page shows of an entry. bytes on disk; seconds: of its dense render; created: seconds since the epoch."""
    facts: dict[str, Any] = {name: card.facts.get(name) for name in ("seed", "steps", "seconds")}
    plain: dict[str, Any] = {n: v for n, v in facts.items() if type(v) in (int, float) and abs(v) < 1 << 64}
    if "seed" in plain:
        plain["seed"] = str(plain["seed"])  # the page's numbers end at 2^53
    return {"id": card.id, "prompt": card.prompt[:SHOWN_PROMPT], "bytes": card.bytes, "hits": card.hits,
            "seconds_saved": card.seconds_saved, "created": card.created, "pinned": card.pinned,
            "model": card.identity.fields.get("model", "")[:80], **plain}


def overview(bank: Bank, budget_bytes: int) -> dict[str, Any]:
    """The bank as a whole, and its last hits with what was said of them, newest first."""
    cards = bank.entries()
    here = {card.id for card in cards}
    said = {label.hit.id: "kept" if label.kept else "wrong" for label in verdicts.labels(bank.folder)}
    last = [
        {"id": hit.id, "history": hit.history if hit.history in here else "", "prompt": hit.prompt[:SHOWN_PROMPT],
         "history_prompt": hit.history_prompt[:SHOWN_PROMPT], "saved": hit.saved, "date": hit.date, "said": said.get(hit.id, "")}
        for hit in reversed(verdicts.hits(bank.folder)[-SHOWN_HITS:])
    ]
    return {"renders": len(cards), "bytes": sum(c.bytes for c in cards), "budget_bytes": budget_bytes,
            "free_bytes": free_bytes(bank.folder), "hits": sum(c.hits for c in cards),
            "seconds_saved": sum(c.seconds_saved for c in cards), "pinned": sum(c.pinned for c in cards), "last_hits": last}


def free_bytes(folder: Path) -> int:
    """Free space on the disk that holds a folder, which need not exist yet."""
    there = next(p for p in (folder, *folder.parents) if p.is_dir())
    return shutil.disk_usage(there).free
