"""The index: one SQLite file beside the entries that can be thrown away and rebuilt from them at any time.

It also is the lock between processes: whatever moves a folder does so inside a transaction of this file.
"""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .sqlcodes import has_no_place, is_busy
from .worth import Life

LOG = logging.getLogger("carnator")
VERSION = 3
FILE = "index.sqlite"
BUSY_S = 10.0
TRY_S = 0.25  # how long one attempt to open waits, so that a folder without locks is known at once
LEASE_S = 15 * 60.0  # how long a write or a reading counts that nobody ended: its process may have died
_TABLES = """
CREATE TABLE entries(
  id TEXT PRIMARY KEY, identity TEXT NOT NULL, noise TEXT NOT NULL, render TEXT NOT NULL,
  bytes INTEGER NOT NULL, dense_seconds REAL NOT NULL,
  used_at REAL NOT NULL, hits INTEGER NOT NULL, seconds_saved REAL NOT NULL, pinned INTEGER NOT NULL,
  created REAL NOT NULL, check_sum INTEGER NOT NULL,
  card BLOB NOT NULL, vector BLOB NOT NULL);
CREATE INDEX by_identity ON entries(identity, noise);
CREATE INDEX by_render ON entries(render);
CREATE TABLE writes(token TEXT PRIMARY KEY, bytes INTEGER NOT NULL, expires REAL NOT NULL);
CREATE TABLE readers(token TEXT PRIMARY KEY, entry TEXT NOT NULL, expires REAL NOT NULL);
"""
# In the order of _check. Casts, because SQLite lets a column hold values of any type.
_CHECKED = "id, identity, bytes, dense_seconds, created, CAST(card AS BLOB), CAST(vector AS BLOB)"


@dataclass(frozen=True)
class Row:
    """What the index keeps of an entry. card is canonical JSON, vector float32 bytes; noise is the noise's digest, render
    the key of its exact repeats."""

    id: str
    identity: str
    noise: str
    render: str
    size: int
    dense_seconds: float
    life: Life
    created: float
    card: bytes
    vector: bytes


class Index:
    """One connection. Not for two threads at once: the bank holds a lock around it."""

    def __init__(self, connection: sqlite3.Connection, stamp: tuple[int, int] | None) -> None:
        self._db = connection
        self.stamp = stamp

    @staticmethod
    def open(folder: Path) -> Index:
        """Open or create the index of a bank; one from another version or a broken one is replaced by an empty one.

        Where the folder cannot hold one (read-only, or a network folder without locks) it lives in memory, with a
        warning: the bank works, but processes do not see each other's writes until they reopen it. Raises sqlite3.Error
        when somebody else keeps it locked for BUSY_S: an index apart from theirs would not know of their writes.
        """
        path = folder / FILE
        patience = time.monotonic() + BUSY_S
        locks: bool | None = None
        while True:
            try:
                return Index(_connect(path, TRY_S), stamp(path))
            except sqlite3.DatabaseError as error:
                if is_busy(error):
                    locks = _can_lock(folder) if locks is None else locks
                    if not locks:
                        break
                    if time.monotonic() > patience:
                        raise
                    time.sleep(0.05)
                    continue
                if has_no_place(error):
                    break
                LOG.warning("bank: the index is unreadable (%s) and is rebuilt", error)
                try:
                    delete(path)
                except OSError:
                    break
        LOG.warning("bank: the folder cannot hold an index; it is kept in memory, apart from other processes")
        db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        db.executescript(_TABLES)
        return Index(db, None)

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, and one process at a time."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def changes(self) -> tuple[int, int]:
        """A value that differs whenever anybody has changed the index since."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0]), self._db.total_changes

    def put(self, row: Row) -> None:
        """Add or replace an entry."""
        life = row.life
        check = _check(row.id, row.identity, row.size, row.dense_seconds, row.created, row.card, row.vector)
        values: list[object] = [row.id, row.identity, row.noise, row.render, row.size, row.dense_seconds, life.used_at, life.hits]
        values += [life.seconds_saved, life.pinned, row.created, check, row.card, row.vector]
        self._db.execute(f"INSERT OR REPLACE INTO entries VALUES ({','.join('?' * len(values))})", values)

    def drop(self, entry_id: str) -> None:
        """Remove an entry's row, if there is one."""
        self._db.execute("DELETE FROM entries WHERE id=?", (entry_id,))

    def ids(self, identity: str | None = None, noise: str | None = None) -> set[str]:
        """All ids, or those of one identity, or those of it that started from one noise."""
        where, values = (" WHERE identity=?", [identity]) if identity is not None else ("", [])
        if identity is not None and noise is not None:
            where, values = f"{where} AND noise=?", [identity, noise]
        return {row[0] for row in self._db.execute(f"SELECT id FROM entries{where}", values)}

    def repeats(self, render: str) -> list[str]:
        """Ids of the entries with this key of an exact repeat, the latest first."""
        return [row[0] for row in self._db.execute("SELECT id FROM entries WHERE render=? ORDER BY created DESC, id", [render])]

    def one_of_each_identity(self) -> list[str]:
        """The id of one entry of every identity."""
        return [row[0] for row in self._db.execute("SELECT min(id) FROM entries GROUP BY identity ORDER BY max(created) DESC")]

    def lives(self, identity: str | None = None, ids: Sequence[str] | None = None) -> list[tuple[str, int, float, Life]]:
        """(id, bytes, dense seconds, life) of all entries, of those of one identity, or of some; oldest first."""
        query = "SELECT id, bytes, dense_seconds, used_at, hits, seconds_saved, pinned FROM entries"
        where, values = (" WHERE identity=?", [identity]) if identity is not None else ("", [])
        if ids is not None:
            where, values = f" WHERE id IN ({','.join('?' * len(ids))})", list(ids)
        rows = self._db.execute(f"{query}{where} ORDER BY created, id", values)
        return [(r[0], r[1], r[2], Life(r[3], r[4], r[5], bool(r[6]))) for r in rows]

    def life(self, entry_id: str) -> Life | None:
        """One entry's life, or None when it is not there."""
        columns = "used_at, hits, seconds_saved, pinned"
        row = self._db.execute(f"SELECT {columns} FROM entries WHERE id=?", (entry_id,)).fetchone()
        return None if row is None else Life(row[0], row[1], row[2], bool(row[3]))

    def set_life(self, entry_id: str, life: Life) -> None:
        """Write down an entry's life."""
        self._db.execute(
            "UPDATE entries SET used_at=?, hits=?, seconds_saved=?, pinned=? WHERE id=?",
            (life.used_at, life.hits, life.seconds_saved, life.pinned, entry_id),
        )

    def cards(self, ids: Sequence[str]) -> Iterator[tuple[str, float, bytes | None, Tensor]]:
        """(id, created, card, vector [D] float32) of entries; card is None where a row was altered behind our back."""
        for start in range(0, len(ids), 500):
            part = ids[start : start + 500]
            marks = ",".join("?" * len(part))
            for r in self._db.execute(f"SELECT {_CHECKED}, check_sum FROM entries WHERE id IN ({marks})", part):
                vector = torch.frombuffer(bytearray(r[6]), dtype=torch.float32) if r[6] else torch.empty(0)
                yield r[0], r[4], r[5] if _check(*r[:7]) == r[7] else None, vector

    def total_bytes(self) -> int:
        """Bytes of all entries."""
        return int(self._db.execute("SELECT coalesce(sum(bytes), 0) FROM entries").fetchone()[0])

    def begin_write(self, token: str, size: int, expires: float) -> None:
        """Set bytes aside for a write in flight, or keep it alive."""
        self._db.execute("INSERT OR REPLACE INTO writes VALUES (?,?,?)", (token, size, expires))

    def end_write(self, token: str) -> bool:
        """A write is over; False when it had already been given up on."""
        return self._db.execute("DELETE FROM writes WHERE token=?", (token,)).rowcount == 1

    def writes(self, now: float) -> dict[str, int]:
        """Writes in flight and their bytes; those that are overdue are forgotten."""
        self._forget_overdue("writes", now)
        return dict(self._db.execute("SELECT token, bytes FROM writes"))

    def begin_read(self, token: str, entry_id: str, expires: float) -> None:
        """Keep an entry from being evicted while it is read."""
        self._db.execute("INSERT OR REPLACE INTO readers VALUES (?,?,?)", (token, entry_id, expires))

    def end_read(self, token: str) -> None:
        """A reader is done."""
        self._db.execute("DELETE FROM readers WHERE token=?", (token,))

    def being_read(self, now: float) -> set[str]:
        """Ids of the entries that somebody reads; overdue readers are forgotten."""
        self._forget_overdue("readers", now)
        return {row[0] for row in self._db.execute("SELECT entry FROM readers")}

    def _forget_overdue(self, table: str, now: float) -> None:
        """Also what would run for longer than anything may: a clock that was ahead has been set right since."""
        self._db.execute(f"DELETE FROM {table} WHERE expires NOT BETWEEN ? AND ?", (now, now + 2 * LEASE_S))


def stamp(path: Path) -> tuple[int, int] | None:
    """What tells one index file from another that took its place; None when there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def delete(path: Path) -> None:
    """Remove an index with its companions. Raises OSError where another process holds it (Windows)."""
    path.unlink(missing_ok=True)
    _delete_companions(path)


def _delete_companions(path: Path) -> None:
    for suffix in ("-wal", "-shm", "-journal"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _check(entry_id: str, identity: str, size: int, dense: float, created: float, card: bytes, vector: bytes) -> int:
    """Checksum of all that does not change in a row."""
    return zlib.crc32(vector, zlib.crc32(card, zlib.crc32(repr((entry_id, identity, size, dense, created)).encode())))


def _can_lock(folder: Path) -> bool:
    """Whether files can be locked here at all, tried on one that nobody else knows."""
    path = folder / f"{FILE}-{secrets.token_hex(8)}"
    try:
        _connect(path, 0.0).close()
    except sqlite3.Error as error:
        return not is_busy(error)
    finally:
        with suppress(OSError):
            delete(path)
    return True


def _connect(path: Path, wait_s: float) -> sqlite3.Connection:
    """Open, create the tables where there are none, and make sure that they are ours; wait_s: seconds to wait for a lock."""
    if not path.exists():
        _delete_companions(path)  # those of a deleted index would be taken for this one's
    db = sqlite3.connect(path, timeout=wait_s, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("BEGIN IMMEDIATE")
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0 and not db.execute("SELECT name FROM sqlite_master").fetchall():
            for statement in _TABLES.split(";"):
                db.execute(statement)
        elif version != VERSION:
            raise sqlite3.DatabaseError(f"version {version}")
        db.execute(f"PRAGMA user_version={VERSION}")  # always: only a write shows that the folder may just be read
        db.execute("COMMIT")
        db.execute("SELECT count(*) FROM entries").fetchone()
        db.execute(f"PRAGMA busy_timeout={int(BUSY_S * 1000)}")
    except BaseException:
        db.close()
        raise
    return db
