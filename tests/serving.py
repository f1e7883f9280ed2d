"""The pack's routes on a real aiohttp server, behind the host's own checks, with banks in a folder of the test's."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

JSON = {"Content-Type": "application/json"}


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A running server. root: the folder that holds the banks."""

    port: int
    root: Path

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        """One request, as it is given; the connection is closed after it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, name: str, headers: dict[str, str] | None = None, **query: Any) -> Answer:
        return self.ask("GET", f"/carnator/{name}?{urlencode(query, doseq=True)}", headers=headers)

    def post(self, name: str, **body: Any) -> Answer:
        return self.ask("POST", f"/carnator/{name}", json.dumps(body).encode(), JSON)


@contextmanager
def serve(root: Path) -> Iterator[Served]:
    """A server on a thread, as the host builds its own: its middlewares, and every route also under /api."""
    from aiohttp import web
    from carnator.nodes.routes.handlers import BankRoutes
    from middleware.cache_middleware import cache_control
    from server import create_origin_only_middleware

    ready, stop = threading.Event(), None
    loop = asyncio.new_event_loop()
    port = 0

    async def main() -> None:
        nonlocal stop, port
        stop = asyncio.Event()
        app = web.Application(client_max_size=100 << 20, middlewares=[cache_control, create_origin_only_middleware()])
        routes = web.RouteTableDef()
        for method, path, handler in BankRoutes().routes():
            for prefix in ("", "/api"):
                routes.route(method, prefix + path)(handler)
        app.add_routes(routes)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()), name="serving")
    thread.start()
    assert ready.wait(30)
    try:
        yield Served(port, root)
    finally:
        loop.call_soon_threadsafe(stop.set)  # type: ignore[union-attr]
        thread.join(30)
        loop.close()
