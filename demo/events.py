"""The host's websocket, followed on a thread: which node ran when, and Carnator's own summaries."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from .host import CLIENT


@dataclass
class Events:
    """A context manager; while open, `seen` grows by (seconds on the local clock, type, data) for each JSON message.

    It stands for a page; as CLIENT for the one that queued what `Host.submit` sends: nodes speak to that one alone.
    """

    url: str
    client: str = CLIENT
    seen: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    _loop: asyncio.AbstractEventLoop | None = None
    _thread: threading.Thread | None = None
    _open: threading.Event = field(default_factory=threading.Event)
    _stop: asyncio.Event | None = None

    def __enter__(self) -> Events:
        self._thread = threading.Thread(target=lambda: asyncio.run(self._follow()), daemon=True)
        self._thread.start()
        if not self._open.wait(20):
            raise RuntimeError(f"the host's websocket at {self.url} did not open within 20 seconds")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        if self._thread is not None:
            self._thread.join(10)

    async def _follow(self) -> None:
        import aiohttp

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        address = self.url.replace("http", "ws", 1) + f"/ws?clientId={self.client}"
        async with aiohttp.ClientSession() as session, session.ws_connect(address, max_msg_size=0) as socket:
            self._open.set()
            stopping = asyncio.ensure_future(self._stop.wait())
            while not self._stop.is_set():
                receiving = asyncio.ensure_future(socket.receive())
                await asyncio.wait({receiving, stopping}, return_when=asyncio.FIRST_COMPLETED)
                if not receiving.done():
                    receiving.cancel()
                    break
                message = receiving.result()
                if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR):
                    break
                if message.type is aiohttp.WSMsgType.TEXT:
                    body = json.loads(message.data)
                    self.seen.append((time.perf_counter(), body.get("type", ""), body.get("data") or {}))

    def since(self, mark: int, kind: str) -> list[dict[str, Any]]:
        """Data of all messages of one type after position `mark` of `seen`."""
        return [data for _, name, data in self.seen[mark:] if name == kind]
