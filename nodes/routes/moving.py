"""Entries in and out of a bank through the page: streams between the server's loop and a thread that works on files."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, BinaryIO, TypeVar, cast

from aiohttp import web

from ...carnator_core.bank import Bank, BankDamaged

# A browser asks the server before it sends a type like this across sites; no plain form can.
EXPORT_TYPE = "application/x-carnator-bank"
PATIENCE_S = 60.0
_CHUNK = 1 << 18
Value = TypeVar("Value")


class Outgoing:
    """What Bank.export_to writes, sent as it is written. For a thread."""

    def __init__(self, response: web.StreamResponse, loop: asyncio.AbstractEventLoop) -> None:
        self._response, self._loop = response, loop
        self._held = bytearray()

    def write(self, data: bytes) -> int:
        """Send, a quarter MiB at a time. Raises OSError when the page has gone."""
        self._held += data
        if len(self._held) >= _CHUNK:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Send what is held."""
        if self._held:
            _wait(self._response.write(bytes(self._held)), self._loop)
            self._held.clear()


class Incoming:
    """An upload's body as Bank.import_from reads it. For a thread. size: bytes that the request announced."""

    def __init__(self, request: web.Request, size: int, loop: asyncio.AbstractEventLoop) -> None:
        self._request, self._left, self._loop = request, size, loop

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end. Raises BankDamaged when nothing arrives for a while."""
        parts: list[bytes] = []
        want = min(size, self._left)
        while want:
            try:
                part = _wait(self._request.content.read(min(want, _CHUNK)), self._loop)
            except TimeoutError as error:
                raise BankDamaged("the file stopped arriving") from error
            if not part:
                break
            parts.append(part)
            want -= len(part)
            self._left -= len(part)
        return b"".join(parts)


def export(bank: Bank, response: web.StreamResponse, loop: asyncio.AbstractEventLoop, ids: Sequence[str] | None) -> None:
    """Write entries (None: all) into a prepared response. For a thread. Raises OSError and BankError."""
    stream = Outgoing(response, loop)
    bank.export_to(cast(BinaryIO, stream), ids)
    stream.flush()


def take_in(bank: Bank, request: web.Request, size: int, loop: asyncio.AbstractEventLoop) -> list[str]:
    """Take in the entries of an upload of `size` bytes. For a thread. Raises OSError and BankError."""
    return bank.import_from(cast(BinaryIO, Incoming(request, size, loop)))


def _wait(coroutine: Coroutine[Any, Any, Value], loop: asyncio.AbstractEventLoop) -> Value:
    return asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_S)
