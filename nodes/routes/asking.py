"""Reading a request: every value that it brings is checked here, and what cannot be served becomes a sentence."""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from ...carnator_core.bank import BankDamaged, BankError, BankMissing
from ...carnator_core.bank.limits import valid_id
from ...carnator_core.bank.strictjson import loads
from .. import banks

log = logging.getLogger("carnator")
MAX_BODY = 64 << 10
BODY_SECONDS = 30.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_COUNT = re.compile(r"[0-9]{1,9}", re.ASCII)
# What a body that is cut short, badly packed or badly chunked raises while it is read.
BROKEN_BODY = (aiohttp.ClientError, HttpProcessingError, web.RequestPayloadError, asyncio.IncompleteReadError, ConnectionError)


class Refused(Exception):
    """A request that is not served: an HTTP status of the 400s (or 503), and a sentence for the page."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def guarded(handler: Handler) -> Handler:
    """A handler whose refusals, and the bank's, become short JSON answers."""
    @wraps(handler)
    async def served(request: web.Request) -> web.StreamResponse:
        if request.method == "HEAD":  # comes with every GET route; an export would be made for nothing
            return refusal(405, "ask with GET")
        try:
            return await handler(request)
        except Refused as error:
            return refusal(error.status, str(error))
        except BankMissing as error:
            return refusal(404, error.reason)
        except BankError as error:  # what a creator can do something about: no room, a damaged file
            return refusal(409, error.reason)
        except BROKEN_BODY:
            return refusal(400, "the request's body is broken or was cut short")
        except TimeoutError:
            return refusal(408, "the request's body took too long to arrive")
        except (OSError, sqlite3.Error) as error:
            log.warning("Carnator: the bank cannot be used now: %s", str(error).encode("ascii", "replace").decode())
            return refusal(503, "the bank's folder cannot be used now; the server's log says why")
    return served


def refusal(status: int, sentence: str) -> web.Response:
    """A short answer that says why not."""
    return web.json_response({"error": sentence}, status=status)


def bank_name(value: Any) -> str:
    """A bank's name, checked. Raises Refused."""
    if not isinstance(value, str):
        raise Refused(400, "the name of a bank is missing")
    problem = banks.check_name(value)
    if problem:
        raise Refused(400, problem)
    return value


def entry_id(value: Any) -> str:
    """An entry's or a hit's id, checked. Raises Refused."""
    if not valid_id(value):
        raise Refused(400, "an id is 24 lower-case hex digits")
    return str(value)


def one_of(value: Any, choices: tuple[str, ...], what: str) -> str:
    """One of some words. Raises Refused."""
    if value not in choices:
        raise Refused(400, f"{what} is one of {', '.join(choices)}")
    return str(value)


def count(request: web.Request, name: str, default: int, most: int) -> int:
    """A whole number of the query. Raises Refused."""
    text = request.query.get(name, str(default))
    if not _COUNT.fullmatch(text) or int(text) > most:
        raise Refused(400, f"{name} is a whole number of at most {most}")
    return int(text)


async def body(request: web.Request, *names: str) -> dict[str, Any]:
    """The JSON object of a POST with just these names. Raises Refused.

    The type has to be said: a form of another site can send neither it nor, unasked, a request that carries it.
    """
    if request.content_type != "application/json":
        raise Refused(415, "send JSON, with the header Content-Type: application/json")
    data = bytearray()
    async with asyncio.timeout(BODY_SECONDS):
        async for part in request.content.iter_chunked(MAX_BODY):
            data += part
            if len(data) > MAX_BODY:
                raise Refused(413, f"the request's body is larger than {MAX_BODY // 1024} KiB")
    try:
        value = loads(bytes(data))
    except BankDamaged as error:
        raise Refused(400, error.reason) from error
    if not isinstance(value, dict) or value.keys() != set(names):
        raise Refused(400, f"send an object with {', '.join(names)}")
    return value
