"""The routes themselves."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar, cast

from aiohttp import web

from ...carnator_core import verdicts
from ...carnator_core.bank import Bank, BankError, BankMissing
from ...carnator_core.hosts import storing
from .. import banks, defaults
from . import listing, moving, pictures
from .asking import Handler, Refused, bank_name, body, count, entry_id, guarded, one_of

log = logging.getLogger("carnator")
OPEN_AT_ONCE = 8
MOST_REMOVED = 1000
MAX_SEARCH = 200
MOVES_AT_ONCE = 2
SETTLE_SECONDS = 5.0
Args = ParamSpec("Args")
Value = TypeVar("Value")


class BankRoutes:
    """The page's side of the banks: a few of them open, and threads to work on them."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Bank] = OrderedDict()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="carnator-page")
        self._mover = ThreadPoolExecutor(max_workers=MOVES_AT_ONCE, thread_name_prefix="carnator-move")
        self._moves = 0

    def routes(self) -> list[tuple[str, str, Handler]]:
        """(method, path, handler) of all routes."""
        see: dict[str, Handler] = {
            "banks": self.banks, "overview": self.overview, "entries": self.entries, "thumbnail": self.thumbnail,
            "export": self.export, "settings": self.settings,
        }  # fmt: skip
        change: dict[str, Handler] = {
            "pin": self.pin, "remove": self.remove, "forget": self.forget, "verdict": self.verdict, "import": self.take_in,
            "settings": self.set_settings,
        }  # fmt: skip
        return [("GET", f"/carnator/{name}", guarded(handler)) for name, handler in see.items()] + [
            ("POST", f"/carnator/{name}", guarded(handler)) for name, handler in change.items()
        ]

    async def banks(self, request: web.Request) -> web.Response:
        """Names of the banks, the one in use without a loader always among them."""
        there, chosen = await self._do(banks.names), (await self._do(defaults.read)).bank
        return web.json_response({"banks": sorted({*there, chosen}), "default": chosen})

    async def overview(self, request: web.Request) -> web.Response:
        """The bank as a whole, and its last hits."""
        bank = self._bank(request.query.get("bank"))
        await self._settled()
        return web.json_response(await self._do(lambda: listing.overview(bank, int(self._budget(bank) * 1e9))))

    async def entries(self, request: web.Request) -> web.Response:
        """A stretch of the entries that a search finds, in some order."""
        bank = self._bank(request.query.get("bank"))
        search = request.query.get("search", "")
        if len(search) > MAX_SEARCH:
            raise Refused(400, f"a search has at most {MAX_SEARCH} letters")
        sort = one_of(request.query.get("sort", "newest"), listing.SORTS, "sort")
        offset = count(request, "offset", 0, 10**9 - 1)
        limit = count(request, "limit", listing.MOST_AT_ONCE, listing.MOST_AT_ONCE)
        await self._settled()
        cards = await self._do(lambda: listing.found(bank.entries(), search, sort))
        stretch = [listing.shown(card) for card in cards[offset : offset + limit]]
        return web.json_response({"total": len(cards), "offset": offset, "entries": stretch})

    async def thumbnail(self, request: web.Request) -> web.Response:
        """An entry's picture, for the browser to keep."""
        bank, entry = self._bank(request.query.get("bank")), entry_id(request.query.get("entry"))
        headers = {"ETag": pictures.tag(entry), "Cache-Control": pictures.FOR_EVER, "X-Content-Type-Options": "nosniff"}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        picture = await self._do(pictures.thumbnail, bank, entry)
        if not picture:
            return web.Response(status=204, headers=headers)  # no fault that a browser would report
        return web.Response(body=picture, content_type="image/jpeg", headers=headers)

    async def export(self, request: web.Request) -> web.StreamResponse:
        """A bank, or some of its entries, as one file to save."""
        name = bank_name(request.query.get("bank"))
        bank, chosen = self._bank(name), [entry_id(e) for e in request.query.getall("entry", [])]
        there = {card.id for card in await self._do(bank.entries)}
        if not there or not there.issuperset(chosen):
            raise BankMissing("there is nothing of that name to export")
        with self._moving():
            return await self._export(request, bank, chosen or None)

    async def _export(self, request: web.Request, bank: Bank, chosen: list[str] | None) -> web.StreamResponse:
        response = web.StreamResponse(headers={
            "Content-Type": moving.EXPORT_TYPE, "Content-Disposition": "attachment",  # the page names the file
            "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff",
        })  # fmt: skip
        await response.prepare(request)
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._mover, moving.export, bank, response, loop, chosen)
            await response.write_eof()
        except (OSError, BankError, sqlite3.Error) as error:
            log.warning("Carnator: an export ended early: %s", storing.ascii_only(str(error)))
            if request.transport is not None:
                request.transport.abort()  # a cut download must not look like a whole one
        return response

    async def take_in(self, request: web.Request) -> web.Response:
        """Entries of an exported file into a bank; each is checked whole before it is one of the bank's."""
        name = bank_name(request.query.get("bank"))
        if request.content_type != moving.EXPORT_TYPE or request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refused(415, f"send the file as it is, with the header Content-Type: {moving.EXPORT_TYPE}")
        if request.content_length is None:
            raise Refused(411, "say how large the file is (Content-Length)")
        budget = await self._do(self._budget, self._bank(name))
        if request.content_length > budget * 1e9:
            raise Refused(413, f"the file is larger than the bank's budget of {budget:g} GB")
        bank, loop = Bank.open(banks.folder(name), int(budget * 1e9)), asyncio.get_running_loop()
        with self._moving():
            try:
                taken = await loop.run_in_executor(self._mover, moving.take_in, bank, request, request.content_length, loop)
            finally:
                await self._do(bank.close)
        return web.json_response({"imported": len(taken)})

    async def settings(self, request: web.Request) -> web.Response:
        """The settings that the nodes read."""
        return web.json_response((await self._do(defaults.read)).plain())

    async def pin(self, request: web.Request) -> web.Response:
        """Keep an entry from leaving when room is needed, or let it go again."""
        asked = await body(request, "bank", "entry", "pinned")
        bank, entry = self._bank(asked["bank"]), entry_id(asked["entry"])
        if not isinstance(asked["pinned"], bool):
            raise Refused(400, "pinned is true or false")
        await self._do(self._present, bank, [entry])
        await self._do(bank.pin, entry, asked["pinned"])
        return web.json_response({"pinned": asked["pinned"]})

    async def remove(self, request: web.Request) -> web.Response:
        """Forget some entries."""
        asked = await body(request, "bank", "entries")
        bank, ids = self._bank(asked["bank"]), asked["entries"]
        if not isinstance(ids, list) or not 1 <= len(ids) <= MOST_REMOVED:
            raise Refused(400, f"entries is a list of 1 to {MOST_REMOVED} ids")
        chosen = [entry_id(e) for e in ids]
        await self._do(self._present, bank, chosen)
        for entry in chosen:
            await self._do(bank.remove, entry)
        return web.json_response({"removed": len(chosen)})

    async def forget(self, request: web.Request) -> web.Response:
        """Forget all that the bank holds, its last hits and what was said of them included."""
        bank = self._bank((await body(request, "bank"))["bank"])
        await self._settled()
        await self._do(bank.clear)
        await self._do(verdicts.forget, bank)
        return web.json_response({"forgotten": True})

    async def verdict(self, request: web.Request) -> web.Response:
        """What the creator says of a hit: it kept the scene, it shows the wrong one, or neither after all."""
        asked = await body(request, "bank", "hit", "said")
        bank, hit = self._bank(asked["bank"]), entry_id(asked["hit"])
        said = cast(verdicts.Said, one_of(asked["said"], verdicts.SAYINGS, "said"))
        try:
            await self._do(verdicts.say, bank, hit, said, time.time())
        except KeyError as error:
            raise Refused(404, "that hit is no longer among the last ones") from error
        return web.json_response({"said": "" if said == "withdrawn" else said})

    async def set_settings(self, request: web.Request) -> web.Response:
        """Settings that the nodes read, from the host's dialog."""
        asked = await body(request, "bank", "budget_gb")
        try:
            settings = defaults.of(asked)
        except ValueError as error:
            raise Refused(400, str(error)) from error
        await self._do(defaults.write, settings)
        return web.json_response(settings.plain())

    def _bank(self, name: object) -> Bank:
        """A bank by its name, kept open among the last few. Raises Refused."""
        checked = bank_name(name)
        place = str(banks.folder(checked))
        bank = self._open.pop(place, None) or Bank.open(banks.folder(checked))
        self._open[place] = bank
        while len(self._open) > OPEN_AT_ONCE:
            _, left = self._open.popitem(last=False)
            self._threads.submit(left.close)
        return bank

    @staticmethod
    def _budget(bank: Bank) -> float:
        """What a bank may hold, in GB."""
        return banks.budget(bank.folder.name) or defaults.read().budget_gb

    @staticmethod
    def _present(bank: Bank, ids: list[str]) -> None:
        if not {card.id for card in bank.entries()}.issuperset(ids):
            raise BankMissing("there is no such render in the bank (any more)")

    async def _do(self, work: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value:
        """Work on files, on a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: work(*args, **kwargs))

    async def _settled(self) -> None:
        """What a render has just left is in the bank; a store that takes long is not waited for."""
        try:
            await self._do(storing.flush, SETTLE_SECONDS)
        except TimeoutError:
            log.debug("the page sees the bank before a store has ended")

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """An export or import, each on a thread of its own: they wait for the network. Raises Refused when all are taken."""
        if self._moves >= MOVES_AT_ONCE:
            raise Refused(429, "other exports or imports are under way; try again when one of them is done")
        self._moves += 1
        try:
            yield
        finally:
            self._moves -= 1
