"""The cache bank B = {C_1..C_M}: finished renders on disk, under a byte budget, shared by threads and processes.

Layout of the folder: entries/<id>/ (see format.py; life.json beside the entry's files holds hits and pin),
staging/<token>/ (writes in flight), trash/ (being deleted), quarantine/<id>/ (damaged, the last few), index.sqlite.
An entry appears by one rename from staging, and disappears by one rename to trash.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..history import History, Identity
from . import format as entry_format
from .errors import BankDamaged, BankError, BankMissing, BankRefusal
from .format import Header, Reading
from .index import FILE, Index, Row, stamp
from .limits import valid_id
from .strictjson import dumps, loads
from .syncing import replace, sync_folder
from .worth import Life, victims, worth

LOG = logging.getLogger("carnator")
RESERVE_BYTES = 2 << 30
WRITE_LEASE_S = 15 * 60.0
READ_LEASE_S = 15 * 60.0
KEPT_IN_QUARANTINE = 4
LIFE = "life.json"
FORGOTTEN = "forgotten"


@dataclass(frozen=True)
class EntryCard:
    """What recall needs of an entry, without opening it. text_vector is [D] float32 of unit length; bytes on disk;
    created in seconds since the epoch."""

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
        self._lock = threading.RLock()
        self._open_index: Index | None = None
        self._seen_mtime = -1
        self._fixed: dict[str, dict[str, Any]] = {}

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
        precision is "auto", "exact" or "compact" (see codec.encode); clock gives seconds since the epoch. Never raises.
        """
        return Bank(Path(folder), budget_bytes, reserve_bytes, precision, clock)

    def add(self, history: History) -> str:
        """Store a history and return its id. Raises BankRefusal, with the reason, and then leaves nothing behind."""
        created = history.facts.get("created")
        created = float(created) if isinstance(created, (int, float)) and 0 <= created < 1e12 else self._clock()
        try:
            contents = entry_format.prepare(history, self.precision, created)
            return self._publish(contents.bytes(), lambda staged: entry_format.write_entry(staged, contents))
        except OSError as error:
            raise BankRefusal(f"the bank could not be written: {error.strerror or error}") from error
        except (sqlite3.Error, ValueError) as error:
            raise BankRefusal(f"the bank could not be written: {error}") from error

    def _publish(self, size: int, fill: Callable[[Path], Header]) -> str:
        """Make room, let `fill` write the files into a staging folder, and move it to its place."""
        token = secrets.token_hex(12)
        staged = self.folder / "staging" / token
        try:
            with self._transaction(create=True) as index:
                evicted = self._make_room(index, token, size)
                index.begin_write(token, size, self._clock() + WRITE_LEASE_S)
                staged.mkdir(parents=True)
            self._empty(evicted)
            header = fill(staged)
            sync_folder(staged)
            entry_id = f"{int(self._clock() * 1000) & (1 << 48) - 1:012x}{secrets.token_hex(6)}"
            with self._transaction() as index:
                if not index.end_write(token):
                    raise BankRefusal("storing took so long that its place was given up")
                place = self.folder / "entries" / entry_id
                place.parent.mkdir(exist_ok=True)
                os.rename(staged, place)
                index.put(self._row(entry_id, place, header))
            sync_folder(place.parent)
            return entry_id
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            self._give_back(token)
            raise

    def _give_back(self, token: str) -> None:
        try:
            with self._transaction() as index:
                index.end_write(token)
        except (BankError, OSError, sqlite3.Error) as error:
            LOG.debug("bank: a reservation is left to expire: %s", error)

    def _make_room(self, index: Index, token: str, size: int) -> list[str]:
        """Evict what is worth least until a write of `size` bytes fits; returns the trash folders to empty."""
        now = self._clock()
        in_flight = sum(n for t, n in index.writes(now).items() if t != token)
        self.folder.mkdir(parents=True, exist_ok=True)
        need = size + in_flight + self.reserve_bytes - shutil.disk_usage(self.folder).free
        if self.budget_bytes is not None:
            if size > self.budget_bytes:
                raise BankRefusal(f"the render needs {_mb(size)} and the bank may hold {_mb(self.budget_bytes)} in all")
            need = max(need, index.total_bytes() + in_flight + size - self.budget_bytes)
        if need <= 0:
            return []
        read = index.being_read(now)
        free = [(i, worth(life, s, n, now), n) for i, n, s, life in index.lives() if not life.pinned and i not in read]
        chosen = victims(free, need)
        if chosen is None:
            raise BankRefusal(
                f"there is no room: {_mb(size)} are needed, and what is kept is pinned, in use, or too little to help"
            )
        return [self._discard(index, entry_id) for entry_id in chosen]

    def entries(self, identity_digest: str | None = None) -> list[EntryCard]:
        """Cards of all entries, or of those with one identity digest, oldest first. Never raises for a broken bank."""
        try:
            with self._transaction() as index:
                return self._cards(index, identity_digest)
        except (BankMissing, OSError, sqlite3.Error) as error:
            if not isinstance(error, BankMissing):
                LOG.warning("bank: cannot be read and counts as empty: %s", _ascii(error))
            return []

    def _cards(self, index: Index, identity_digest: str | None) -> list[EntryCard]:
        lives = index.lives(identity_digest)
        unknown = [i for i, *_ in lives if i not in self._fixed]
        for entry_id, created, card, vector in index.cards(unknown):
            body = None if card is None else loads(card)
            if body is None:
                self._readmit(index, entry_id)
                continue
            self._fixed[entry_id] = {
                "prompt": body["prompt"],
                "identity": Identity(body["identity"]),
                "noise_digest": body["noise_digest"],
                "facts": body["facts"],
                "created": created,
                "text_vector": torch.frombuffer(bytearray(vector), dtype=torch.float32),
            }
        return [
            EntryCard(
                id=i, bytes=n, hits=life.hits, seconds_saved=life.seconds_saved, pinned=life.pinned, **self._fixed[i]
            )
            for i, n, _, life in lives
            if i in self._fixed
        ]

    def load(self, entry_id: str) -> History:
        """The whole entry, every byte checked. Raises BankDamaged (put aside, one warning) or BankMissing: a miss."""
        with self.reading(entry_id) as reading:
            return reading.history()

    @contextmanager
    def reading(self, entry_id: str) -> Iterator[Reading]:
        """Open an entry for reading piece by piece; it is not evicted meanwhile. Raises as `load` does, also later on.

        What is found damaged while it is read is put aside when the block is left.
        """
        folder = self._place(entry_id)
        token = secrets.token_hex(12)
        self._lease(lambda index: index.begin_read(token, entry_id, self._clock() + READ_LEASE_S))
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
            with self._transaction() as index:
                note(index)
        except BankMissing:
            return
        except (OSError, sqlite3.Error) as error:
            LOG.debug("bank: reading without a lease: %s", error)

    def touch(self, entry_id: str, seconds_saved: float) -> None:
        """Note a hit. An entry that is gone, or a folder that cannot be written, is no error."""
        self._live(entry_id, lambda life: life.used(self._clock(), seconds_saved))

    def pin(self, entry_id: str, pinned: bool = True) -> None:
        """Keep an entry from eviction, or let it go. An entry that is gone is no error."""
        self._live(entry_id, lambda life: dataclasses.replace(life, pinned=pinned))

    def _live(self, entry_id: str, change: Callable[[Life], Life]) -> None:
        place = self._place(entry_id)
        try:
            with self._transaction() as index:
                life = index.life(entry_id)
                if life is None:
                    return
                life = change(life)
                replace(place / LIFE, life.to_json())
                index.set_life(entry_id, life)
        except BankMissing:
            return
        except (OSError, sqlite3.Error) as error:
            LOG.warning("bank: a hit or a pin could not be noted: %s", _ascii(error))

    def remove(self, entry_id: str) -> None:
        """Forget an entry: latents, vector, signature and thumbnail together. An entry that is gone is no error."""
        self._place(entry_id)
        try:
            with self._transaction() as index:
                trash = self._discard(index, entry_id)
        except BankMissing:
            return
        self._empty([trash])

    def clear(self) -> None:
        """Forget every entry, pinned or not, and what lies in quarantine."""
        try:
            with self._transaction() as index:
                trash = [self._discard(index, entry_id) for entry_id in index.ids()]
        except BankMissing:
            return
        self._empty(trash)
        shutil.rmtree(self.folder / "quarantine", ignore_errors=True)

    def total_bytes(self) -> int:
        """Bytes that the entries take."""
        try:
            with self._transaction() as index:
                return index.total_bytes()
        except (BankMissing, OSError, sqlite3.Error):
            return 0

    @contextmanager
    def _transaction(self, create: bool = False) -> Iterator[Index]:
        """The index, agreeing with the folders, inside a transaction. Raises BankMissing when there is no bank yet."""
        with self._lock:
            if not self.folder.is_dir():
                if not create:
                    raise BankMissing("the bank is empty")
                self.folder.mkdir(parents=True, exist_ok=True)
            index = self._index()
            with index.transaction():
                self._reconcile(index)
                yield index

    def _index(self) -> Index:
        index = self._open_index
        if index is not None and index.stamp is not None and index.stamp != stamp(self.folder / FILE):
            index.close()
            index = None
        if index is None:
            index = self._open_index = Index.open(self.folder)
            self._seen_mtime = -1
        return index

    def _reconcile(self, index: Index) -> None:
        """Take in what lies in entries/ without a row, drop rows without a folder, sweep what writers left behind."""
        try:
            mtime = os.stat(self.folder / "entries").st_mtime_ns
        except FileNotFoundError:
            mtime = 0
        if mtime == self._seen_mtime:
            return
        there = {e.name for e in os.scandir(self.folder / "entries")} if mtime else set()
        known = index.ids()
        for entry_id in known - there:
            index.drop(entry_id)
            self._fixed.pop(entry_id, None)
        for entry_id in there - known:
            if valid_id(entry_id):
                self._admit(index, entry_id)
        self._sweep(index)
        self._seen_mtime = mtime

    def _admit(self, index: Index, entry_id: str) -> None:
        place = self.folder / "entries" / entry_id
        if (place / FORGOTTEN).exists():
            self._empty([self._discard(index, entry_id)])
            return
        try:
            index.put(self._row(entry_id, place, entry_format.read_header(place)))
        except BankMissing as error:
            LOG.warning("bank: an entry cannot be read now: %s", _ascii(error))
        except BankDamaged as error:
            self._quarantine(index, entry_id, error)

    def _readmit(self, index: Index, entry_id: str) -> None:
        """A row was altered behind our back: read the entry again."""
        index.drop(entry_id)
        self._admit(index, entry_id)

    def _row(self, entry_id: str, place: Path, header: Header) -> Row:
        with Reading(place, header) as reading:
            vector = reading.text_vector()
        try:
            life = Life.from_json((place / LIFE).read_bytes())
        except (OSError, BankDamaged):
            life = Life(heat_at=header.created)
        seconds = header.facts.get("seconds")
        card = {
            "prompt": header.prompt,
            "identity": header.identity,
            "noise_digest": header.noise_digest,
            "facts": header.facts,
        }
        return Row(
            id=entry_id,
            identity=Identity(header.identity).digest(),
            size=header.bytes(),
            dense_seconds=float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0,
            life=life,
            created=header.created,
            card=dumps(card),
            vector=vector.numpy().tobytes(),
        )

    def _sweep(self, index: Index) -> None:
        """Remove staging folders whose write was given up, reservations without a folder, and all trash."""
        staging = self.folder / "staging"
        writes = index.writes(self._clock())
        there = {e.name for e in os.scandir(staging)} if staging.is_dir() else set()
        for token in writes.keys() - there:
            index.end_write(token)
        for token in there - writes.keys():
            shutil.rmtree(staging / token, ignore_errors=True)
        shutil.rmtree(self.folder / "trash", ignore_errors=True)

    def _discard(self, index: Index, entry_id: str) -> str:
        """Take an entry out of the bank, inside a transaction; returns the trash folder that holds it now."""
        trash = self.folder / "trash" / secrets.token_hex(12)
        trash.parent.mkdir(exist_ok=True)
        place = self.folder / "entries" / entry_id
        try:
            os.rename(place, trash)
        except FileNotFoundError:
            pass
        except OSError:
            # Windows does not move a folder with an open file in it: it is forgotten now and deleted when it is free.
            (place / FORGOTTEN).touch()
            (place / entry_format.HEADER).unlink(missing_ok=True)
        index.drop(entry_id)
        self._fixed.pop(entry_id, None)
        return trash.name

    def _empty(self, trash: list[str]) -> None:
        for name in trash:
            shutil.rmtree(self.folder / "trash" / name, ignore_errors=True)

    def _put_aside(self, entry_id: str, error: BankDamaged) -> None:
        try:
            with self._transaction() as index:
                if index.life(entry_id) is not None:
                    self._quarantine(index, entry_id, error)
        except (BankMissing, OSError, sqlite3.Error) as later:
            LOG.warning("bank: a damaged entry could not be put aside: %s", _ascii(later))

    def _quarantine(self, index: Index, entry_id: str, error: BankDamaged) -> None:
        """Move a damaged entry out of the way, with one warning; only the last few are kept."""
        LOG.warning("bank: entry %s is damaged (%s) and was put aside", entry_id, _ascii(error))
        ward = self.folder / "quarantine"
        ward.mkdir(exist_ok=True)
        try:
            os.rename(self.folder / "entries" / entry_id, ward / entry_id)
        except OSError:
            self._discard(index, entry_id)
        index.drop(entry_id)
        self._fixed.pop(entry_id, None)
        for old in sorted(ward.iterdir())[:-KEPT_IN_QUARANTINE]:
            shutil.rmtree(old, ignore_errors=True)

    def _place(self, entry_id: str) -> Path:
        if not valid_id(entry_id):
            raise BankMissing("there is no entry of that name")
        return self.folder / "entries" / entry_id


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def _ascii(error: BaseException) -> str:
    return str(error).encode("ascii", "replace").decode()
