"""The bank's folder and its index, kept in agreement.

entries/<id>/ (see format.py; life.json beside the entry's files holds hits and pin), staging/<token>/ (writes in
flight), trash/ (being deleted), quarantine/<id>/ (damaged, the last few), index.sqlite. An entry appears by one rename
from staging, and disappears by one rename to trash, each inside a transaction of the index: so a process that dies at
any moment leaves an entry that is wholly there or not at all, and the next transaction of anybody cleans up after it.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..history import Identity, repeat_key
from . import format as entry_format
from .errors import BankDamaged, BankForeign, BankMissing
from .format import Header
from .index import FILE, LEASE_S, Index, Row, delete, stamp
from .limits import valid_id
from .reading import Reading
from .sqlcodes import is_broken
from .strictjson import dumps
from .syncing import sync_folder
from .worth import Life

LOG = logging.getLogger("carnator")
KEPT_IN_QUARANTINE = 4
LIFE = "life.json"
FORGOTTEN = "forgotten"
_BATCH = 500


class Shelf:
    """Folders and index of one bank. Safe for several threads and processes."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self._clock = clock
        self._lock = threading.RLock()
        self._index: Index | None = None
        self._seen: tuple[int, int] | None = None
        # Entries of another version, and damaged ones that cannot be moved: not read again, nor counted, nor touched.
        self._left: set[str] = set()
        self._foreign = False  # whether those of another version were named in the log

    def place(self, entry_id: str) -> Path:
        """Where an entry lies. Raises BankMissing for what is not an id."""
        if not valid_id(entry_id):
            raise BankMissing("there is no entry of that name")
        return self.folder / "entries" / entry_id

    @contextmanager
    def transaction(self, create: bool = False) -> Iterator[Index]:
        """The index, agreeing with the folders, and nobody else at either.

        Raises BankMissing when there is no bank yet (unless it is to be created), OSError and sqlite3.Error.
        """
        with self._lock:
            if not self._is_there():
                if not create:
                    raise BankMissing("the bank is empty")
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # prompts are nobody else's business
            while True:
                index = self._current()
                try:
                    with index.transaction():
                        if self._reconcile(index):
                            yield index
                            return
                except sqlite3.DatabaseError as error:
                    if not is_broken(error):
                        raise
                    index.close()
                    self._index = None
                    delete(self.folder / FILE)
                    raise

    def _is_there(self) -> bool:
        """Whether there is a bank. Raises OSError where that cannot be known, or where something else lies in its place."""
        try:
            mode = os.stat(self.folder).st_mode
        except FileNotFoundError:
            return False
        if not stat.S_ISDIR(mode):
            raise NotADirectoryError(errno.ENOTDIR, "something else lies in the place of its folder")
        return True

    def close(self) -> None:
        """Let go of the index; the next transaction opens it again."""
        with self._lock:
            if self._index is not None:
                self._index.close()
            self._index = None

    def _current(self) -> Index:
        """The index; opened again when another file took its place."""
        index = self._index
        if index is not None and index.stamp is not None and index.stamp != stamp(self.folder / FILE):
            index.close()
            index = self._index = None
        if index is None:
            index = self._index = Index.open(self.folder)
            self._seen = None
        return index

    def stage(self, token: str) -> Path:
        """A new, empty folder for a write that the index knows under this token."""
        staged = self.folder / "staging" / token
        staged.mkdir(parents=True)
        return staged

    def publish(self, index: Index, token: str, entry_id: str, header: Header) -> None:
        """Move a staged entry to its place, last of all in a transaction. Raises OSError and sqlite3.Error, unmoved."""
        place = self.place(entry_id)
        place.parent.mkdir(exist_ok=True)
        staged = self.folder / "staging" / token
        row = self._row(entry_id, staged, header)
        os.rename(staged, place)
        try:
            sync_folder(place.parent)
            index.put(row)
        except BaseException:
            os.rename(place, staged)
            raise

    def unstage(self, token: str) -> None:
        """Remove what a write left."""
        shutil.rmtree(self.folder / "staging" / token, ignore_errors=True)

    def discard(self, index: Index, entry_id: str) -> str:
        """Take an entry out of the bank, inside a transaction; returns what `empty` deletes afterwards."""
        trash = self.folder / "trash" / secrets.token_hex(12)
        trash.parent.mkdir(exist_ok=True)
        place = self.place(entry_id)
        try:
            os.rename(place, trash)
        except FileNotFoundError:
            pass
        except OSError:
            # Windows does not move a folder with an open file in it: forgotten now, deleted when it is free.
            (place / FORGOTTEN).touch()
            (place / entry_format.HEADER).unlink(missing_ok=True)
        index.drop(entry_id)
        return trash.name

    def everything(self) -> list[str]:
        """Ids of all that lies among the entries, whoever wrote it."""
        entries = self.folder / "entries"
        return sorted(e.name for e in os.scandir(entries) if valid_id(e.name)) if entries.is_dir() else []

    def empty(self, trash: list[str]) -> None:
        """Delete what was discarded; outside of transactions, since it may take long."""
        for name in trash:
            shutil.rmtree(self.folder / "trash" / name, ignore_errors=True)

    def quarantine(self, index: Index, entry_id: str, error: BankDamaged) -> None:
        """Move a damaged entry out of the way, with one warning; only the last few are kept.

        Where it cannot be moved (a folder that may only be read) it is left where it is and no longer counts.
        """
        ward = self.folder / "quarantine"
        try:
            ward.mkdir(exist_ok=True)
            try:
                os.rename(self.place(entry_id), ward / entry_id)
            except OSError:
                self.discard(index, entry_id)
            for old in sorted(ward.iterdir())[:-KEPT_IN_QUARANTINE]:
                shutil.rmtree(old, ignore_errors=True)
            done = "was put aside"
        except OSError as refused:
            self._left.add(entry_id)
            done = f"is left out; it cannot be put aside: {ascii_text(refused)}"
        index.drop(entry_id)
        LOG.warning("bank: entry %s is damaged (%s) and %s", entry_id, ascii_text(error), done)

    def admit(self, index: Index, entry_id: str) -> None:
        """Take the row of an entry from its folder, or put a damaged one aside."""
        index.drop(entry_id)
        place = self.place(entry_id)
        if os.path.exists(place / FORGOTTEN):  # False, too, in a folder that may not be entered
            try:
                self.empty([self.discard(index, entry_id)])
            except OSError:
                self._left.add(entry_id)
            return
        try:
            index.put(self._row(entry_id, place, entry_format.read_header(place)))
        except BankForeign as error:
            if not self._foreign:
                LOG.warning("bank: some entries are left alone: %s", ascii_text(error))
                self._foreign = True
            self._left.add(entry_id)
        except BankMissing as error:
            LOG.warning("bank: an entry cannot be read now: %s", ascii_text(error))
        except BankDamaged as error:
            self.quarantine(index, entry_id, error)

    def _reconcile(self, index: Index) -> bool:
        """Take in what lies in entries/ without a row, drop rows without a folder, sweep what dead writers left.

        Nothing is done while the folder is unchanged. False: there was more than one transaction should hold.
        """
        entries = self.folder / "entries"
        try:
            found = os.stat(entries)
            now = (found.st_mtime_ns, found.st_ino)
        except FileNotFoundError:
            now = (0, 0)
        if now == self._seen:
            return True
        there = {e.name for e in os.scandir(entries)} if now != (0, 0) else set()
        known = index.ids()
        for entry_id in known - there:
            index.drop(entry_id)
        new = sorted(i for i in there - known - self._left if valid_id(i))
        for entry_id in new[:_BATCH]:
            self.admit(index, entry_id)
        if len(new) > _BATCH:
            return False
        try:
            self._sweep(index)
        except OSError as error:
            LOG.debug("bank: nothing is swept: %s", error)  # a folder of somebody else's: no reason not to read the entries
        self._seen = now
        return True

    def _sweep(self, index: Index) -> None:
        """Remove staging folders whose write was given up, reservations without a folder, and all trash.

        A write of which the index knows nothing is not given up for that: with an index in memory, or one built anew,
        it may be another's. So only the age of what it wrote tells.
        """
        staging = self.folder / "staging"
        writes = index.writes(self._clock())
        there = {e.name for e in os.scandir(staging)} if staging.is_dir() else set()
        for token in writes.keys() - there:
            index.end_write(token)
        for token in there - writes.keys():
            if self._given_up(staging / token):
                shutil.rmtree(staging / token, ignore_errors=True)
        trash = self.folder / "trash"  # the folder itself stays: somebody may be about to move an entry into it
        self.empty(os.listdir(trash) if trash.is_dir() else [])

    def _given_up(self, staged: Path) -> bool:
        """Whether nothing was written into a staging folder for as long as a write counts."""
        try:
            newest = max(p.stat().st_mtime for p in (staged, *staged.iterdir()))
        except OSError:  # just moved to its place, or not to be read
            return False
        return newest < self._clock() - LEASE_S

    def _row(self, entry_id: str, place: Path, header: Header) -> Row:
        with Reading(place, header, (entry_format.RENDER,)) as reading:
            vector = reading.text_vector()
        try:
            life = Life.from_json((place / LIFE).read_bytes())
        except (OSError, BankDamaged):
            life = Life(used_at=header.created)
        seconds = header.facts.get("seconds")
        names = ("prompt", "identity", "noise_digest", "facts")
        identity = Identity(header.identity).digest()
        return Row(
            id=entry_id,
            identity=identity,
            noise=header.noise_digest,
            render=repeat_key(identity, header.noise_digest, header.facts),
            size=header.bytes(),
            dense_seconds=float(seconds) if isinstance(seconds, (int, float)) and 0 <= seconds < 1e9 else 0.0,
            life=life,
            created=header.created,
            card=dumps({n: getattr(header, n) for n in names}),
            vector=vector.numpy().tobytes(),
        )


def ascii_text(error: BaseException) -> str:
    """An error's text for the log."""
    return str(error).encode("ascii", "replace").decode()
