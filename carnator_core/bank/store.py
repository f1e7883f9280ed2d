"""The cache bank B = {C_1..C_M}: finished renders on disk, under a byte budget."""

from __future__ import annotations

import dataclasses
import logging
import secrets
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, TypeVar

from torch import Tensor

from ..history import History, Identity
from . import exchange
from . import format as entry_format
from .card import Cards, EntryCard
from .errors import BankDamaged, BankError, BankMissing, BankRefusal, BankUnreadable
from .format import Header
from .index import LEASE_S, Index
from .nearest import Nearest
from .reading import Reading
from .shelf import LIFE, Shelf, ascii_text
from .sqlcodes import in_words, is_broken
from .syncing import replace, sync_folder
from .worth import Life, victims, worth

LOG = logging.getLogger("carnator")
RESERVE_BYTES = 2 << 30
Found = TypeVar("Found")


class Bank:
    """A bank in a folder, which need not exist before the first entry. Safe for several threads and processes."""

    def __init__(
        self, folder: Path, budget_bytes: int | None, reserve_bytes: int, precision: str, clock: Callable[[], float]
    ) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        self.reserve_bytes = reserve_bytes
        self.precision = precision
        self._clock = clock
        self._shelf = Shelf(folder, clock)
        self._cards = Cards()
        self._vectors: dict[tuple[str, int], tuple[Nearest, tuple[int, int] | None]] = {}

    @staticmethod
    def open(
        folder: Path,
        budget_bytes: int | None = None,
        reserve_bytes: int = RESERVE_BYTES,
        precision: str = "auto",
        clock: Callable[[], float] = time.time,
    ) -> Bank:
        """A bank in `folder`; one that does not exist is an empty bank and is created by the first add.

        budget_bytes bounds what all entries take together (None: no bound), reserve_bytes is disk space never used;
        precision is "auto", "exact" or "compact" (see codec.encode); clock gives seconds since the epoch. Touches no
        file and never raises.
        """
        return Bank(Path(folder), budget_bytes, reserve_bytes, precision, clock)

    def close(self) -> None:
        """Let go of the index. The bank may be used again: it opens itself."""
        self._shelf.close()

    def add(self, history: History) -> str:
        """Store a history and return its id. Raises BankRefusal, with the reason, and then leaves nothing behind."""
        created = history.facts.get("created")
        created = float(created) if isinstance(created, (int, float)) and 0 <= created < 1e12 else self._clock()
        with _writing():
            contents = entry_format.prepare(history, self.precision, created)
            return self._publish(contents.bytes(), lambda staged: entry_format.write_entry(staged, contents))

    def export_to(self, stream: BinaryIO, ids: Sequence[str] | None = None) -> int:
        """Write entries (None: all that are sound) into one file, see exchange.py; how many. Raises OSError."""
        chosen = [card.id for card in self.entries()] if ids is None else list(ids)
        stream.write(exchange.MAGIC)
        written = 0
        for entry_id in chosen:
            try:
                with self.reading(entry_id) as reading:
                    reading.verify()
                    exchange.write_entry(stream, entry_id, reading.folder, reading.header)
                    written += 1
            except BankDamaged as error:
                LOG.warning("bank: entry %s was not exported: %s", entry_id, ascii_text(error))
        return written

    def import_from(self, stream: BinaryIO) -> list[str]:
        """Take in the entries of an exported file; returns their ids here. Every value is checked before.

        Entries that are here already are skipped, and none leaves to make room. Raises BankRefusal at the first that is
        damaged or has no room; those before it stay.
        """
        taken: list[str] = []
        with _writing():
            exchange.expect_magic(stream)
            here = {card.id for card in self.entries()}
            while (coming := exchange.next_entry(stream)) is not None:
                if coming.id in here:
                    coming.skip(stream)
                    continue
                taken.append(self._publish(coming.bytes(), partial(coming.receive, stream), coming.id, evict=False))
        return taken

    def _publish(self, size: int, fill: Callable[[Path], Header], entry_id: str | None = None, evict: bool = True) -> str:
        """Make room (or refuse, where none may leave), let `fill` write into a staging folder, and move it to its place."""
        token = secrets.token_hex(12)
        try:
            with self._shelf.transaction(create=True) as index:
                evicted = self._make_room(index, size, evict)
                index.begin_write(token, size, self._clock() + LEASE_S)
                staged = self._shelf.stage(token)
            self._shelf.empty(evicted)
            header = fill(staged)
            sync_folder(staged)
            with self._shelf.transaction() as index:
                if not index.end_write(token):
                    raise BankRefusal("storing took so long that its place was given up")
                if entry_id is None or index.life(entry_id) is not None:
                    entry_id = f"{int(self._clock() * 1000) & (1 << 48) - 1:012x}{secrets.token_hex(6)}"
                self._shelf.publish(index, token, entry_id, header)
            return entry_id
        except BaseException:
            self._shelf.unstage(token)
            self._give_back(token)
            raise

    def _give_back(self, token: str) -> None:
        try:
            with self._shelf.transaction() as index:
                index.end_write(token)
        except (BankError, OSError, sqlite3.Error) as error:
            LOG.debug("bank: a reservation is left to expire: %s", error)

    def _make_room(self, index: Index, size: int, evict: bool) -> list[str]:
        """Evict what is worth least until a write of `size` bytes fits; returns the trash to empty."""
        now = self._clock()
        in_flight = sum(index.writes(now).values())
        need = size + in_flight + self.reserve_bytes - shutil.disk_usage(self.folder).free
        if self.budget_bytes is not None:
            if size > self.budget_bytes:
                raise BankRefusal(f"the render needs {_mb(size)} and the bank may hold {_mb(self.budget_bytes)} in all")
            need = max(need, index.total_bytes() + in_flight + size - self.budget_bytes)
        if need <= 0:
            return []
        if not evict:
            raise BankRefusal(f"there is no room for {_mb(size)}: raise the budget, or forget some renders first")
        read = index.being_read(now)
        free = [(i, worth(life, dense, n, now), n) for i, n, dense, life in index.lives() if not life.pinned and i not in read]
        chosen = victims(free, need)
        if chosen is None:
            raise BankRefusal(f"there is no room for {_mb(size)}: what is kept is pinned, in use, or too little to help")
        return [self._shelf.discard(index, entry_id) for entry_id in chosen]

    def entries(self, identity_digest: str | None = None) -> list[EntryCard]:
        """Cards of all entries, or of those with one identity digest, oldest first. Raises BankUnreadable, see _looked_up."""
        def find(index: Index) -> list[EntryCard]:
            cards, broken = self._cards.of(index, identity_digest)
            for entry_id in broken:
                self._shelf.admit(index, entry_id)
            return self._cards.of(index, identity_digest)[0] if broken else cards

        return self._looked_up(find)

    def nearest(
        self, text_vector: Tensor, identity_digest: str, k: int = 10, noise_digest: str | None = None
    ) -> list[tuple[EntryCard, float]]:
        """The k entries of an identity whose text is most like [D], with the cosine similarity, best first.

        noise_digest: only those that started from this noise. Exact up to 2,048 entries, see nearest.py beyond.
        Raises BankUnreadable.
        """
        def find(index: Index) -> list[tuple[EntryCard, float]]:
            among = None if noise_digest is None else index.ids(identity_digest, noise_digest)
            if among is not None and not among:
                return []
            found = self._near(index, identity_digest, len(text_vector)).top(text_vector, k, among)
            cards = {card.id: card for card in self._cards.some(index, [i for i, _ in found])}
            return [(cards[i], similarity) for i, similarity in found if i in cards]

        return self._looked_up(find)

    def repeats(self, key: str) -> list[EntryCard]:
        """The entries that are exact repeats by `history.repeat_key`, the latest first. Raises BankUnreadable."""
        return self._looked_up(lambda index: self._cards.some(index, index.repeats(key)))

    def identities(self) -> list[Identity]:
        """All identities that entries have, the one used last for a new entry first. Raises BankUnreadable."""
        return self._looked_up(lambda index: [c.identity for c in self._cards.some(index, index.one_of_each_identity())])

    def _looked_up(self, find: Callable[[Index], list[Found]]) -> list[Found]:
        """What `find` finds in the index, nothing in a bank that is not there yet. A broken index is built anew.

        Raises BankUnreadable, with the reason, for a bank that is locked or whose folder fails: it is not empty.
        """
        try:
            try:
                with self._shelf.transaction() as index:
                    return find(index)
            except sqlite3.DatabaseError as error:
                if not is_broken(error):
                    raise
            with self._shelf.transaction() as index:  # the shelf has thrown the broken one away
                return find(index)
        except BankMissing:
            return []
        except (BankDamaged, OSError, sqlite3.Error) as error:
            raise BankUnreadable(f"the bank cannot be read: {in_words(error)}") from error

    def _near(self, index: Index, identity: str, width: int) -> Nearest:
        """The vectors of one identity, brought up to date when anybody has changed the index."""
        changes = index.changes()
        near, known_at = self._vectors.get((identity, width), (Nearest(width), None))
        if known_at != changes:
            ids = sorted(index.ids(identity))
            held = set(near.ids)
            near.update(ids, {i: v for i, _, c, v in index.cards([i for i in ids if i not in held]) if c is not None})
            self._vectors[identity, width] = (near, changes)
        return near

    def load(self, entry_id: str) -> History:
        """The whole entry in memory, every byte checked; a sampling run reads it piece by piece (see loans.py) instead.

        Raises BankDamaged (put aside, with one warning) or BankMissing; both are a miss.
        """
        with self.reading(entry_id) as reading:
            return reading.history()

    @contextmanager
    def reading(self, entry_id: str) -> Iterator[Reading]:
        """Open an entry for reading piece by piece; it is not evicted meanwhile. Raises as `load` does, also later on.

        What is found damaged while it is read is put aside when the block is left.
        """
        folder = self._shelf.place(entry_id)
        token = secrets.token_hex(12)
        self._lease(lambda index: index.begin_read(token, entry_id, self._clock() + LEASE_S))
        try:
            with Reading(folder, entry_format.read_header(folder)) as reading:
                yield reading
        except BankDamaged as error:
            error.entry_id = error.entry_id or entry_id
            if error.entry_id == entry_id and not isinstance(error, BankMissing):
                self._put_aside(entry_id, error)
            raise
        finally:
            self._lease(lambda index: index.end_read(token))

    def _lease(self, note: Callable[[Index], None]) -> None:
        """Note a reading's begin or end; where that cannot be written down (a full disk), reading goes on without."""
        try:
            with self._shelf.transaction() as index:
                note(index)
        except BankMissing:
            return
        except (OSError, sqlite3.Error) as error:
            LOG.debug("bank: reading without a lease: %s", error)

    def _put_aside(self, entry_id: str, error: BankDamaged) -> None:
        try:
            with self._shelf.transaction() as index:
                if index.life(entry_id) is not None:
                    self._shelf.quarantine(index, entry_id, error)
        except (BankMissing, OSError, sqlite3.Error) as later:
            LOG.warning("bank: a damaged entry could not be put aside: %s", ascii_text(later))

    def touch(self, entry_id: str, seconds_saved: float) -> None:
        """Note a hit. An entry that is gone, or a folder that cannot be written, is no error."""
        self._live(entry_id, lambda life: life.used(self._clock(), seconds_saved))

    def pin(self, entry_id: str, pinned: bool = True) -> None:
        """Keep an entry from eviction, or let it go. An entry that is gone is no error."""
        self._live(entry_id, lambda life: dataclasses.replace(life, pinned=pinned))

    def _live(self, entry_id: str, change: Callable[[Life], Life]) -> None:
        place = self._shelf.place(entry_id)
        try:
            with self._shelf.transaction() as index:
                life = index.life(entry_id)
                if life is not None:
                    life = change(life)
                    replace(place / LIFE, life.to_json())
                    index.set_life(entry_id, life)
        except BankMissing:
            return
        except (OSError, sqlite3.Error) as error:
            LOG.warning("bank: a hit or a pin could not be noted: %s", ascii_text(error))

    @contextmanager
    def alone(self) -> Iterator[Path]:
        """The bank's folder, while no other thread or process changes the bank: for small files beside the entries.

        Raises BankMissing when there is no bank yet, OSError and sqlite3.Error.
        """
        with self._shelf.transaction():
            yield self.folder

    def remove(self, entry_id: str) -> None:
        """Forget an entry: latents, vector, signature and thumbnail together. An entry that is gone is no error."""
        self._shelf.place(entry_id)
        self._forget(lambda index: [entry_id])

    def clear(self) -> None:
        """Forget every entry, pinned or not, those of other versions, and what lies in quarantine."""
        self._forget(lambda index: self._shelf.everything())
        shutil.rmtree(self.folder / "quarantine", ignore_errors=True)

    def _forget(self, which: Callable[[Index], list[str]]) -> None:
        try:
            with self._shelf.transaction() as index:
                trash = [self._shelf.discard(index, entry_id) for entry_id in which(index)]
        except BankMissing:
            return
        self._shelf.empty(trash)

    def total_bytes(self) -> int:
        """Bytes that the entries take."""
        try:
            with self._shelf.transaction() as index:
                return index.total_bytes()
        except (BankMissing, OSError, sqlite3.Error):
            return 0


@contextmanager
def _writing() -> Iterator[None]:
    """Whatever goes wrong with files or index becomes a refusal in words."""
    try:
        yield
    except BankDamaged as error:
        raise BankRefusal(f"the entry is not sound: {error}") from error
    except BankUnreadable as error:
        raise BankRefusal(error.reason) from error
    except (OSError, sqlite3.Error, ValueError) as error:
        raise BankRefusal(f"the bank could not be written: {in_words(error)}") from error


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
