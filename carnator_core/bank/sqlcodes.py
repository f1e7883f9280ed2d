"""What SQLite's errors say: somebody else holds the lock, the folder cannot hold an index, or the index is broken."""

from __future__ import annotations

import sqlite3

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
# Result codes that speak of the folder and not of the file's contents.
_NO_PLACE = {
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_NOLFS, sqlite3.SQLITE_AUTH,
}  # fmt: skip
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock, or the folder has none to give."""
    return _code(error) in _BUSY


def has_no_place(error: sqlite3.Error) -> bool:
    """Whether the folder cannot hold an index, or not be written."""
    return _code(error) in _NO_PLACE


def is_broken(error: sqlite3.Error) -> bool:
    """Whether the index file itself is beyond use."""
    return _code(error) in _BROKEN


def in_words(error: Exception) -> str:
    """Why the index or its folder cannot be used, for a creator."""
    if isinstance(error, sqlite3.Error) and is_busy(error):
        return "another program keeps its index locked"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _code(error: sqlite3.Error) -> int:
    """SQLite's primary result code; that of a broken file for an error of our own."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT)) & 0xFF
