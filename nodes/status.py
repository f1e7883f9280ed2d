"""What a node tells the page: one line while it runs, and what is left of it afterwards.

Only the page that queued the render hears of it; without one nothing is sent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from .running import running

log = logging.getLogger("carnator")
LINE, SUMMARY = "carnator.status", "carnator.summary"


def speaker(node_id: str | None) -> Callable[[str], None]:
    """A function that shows a line of text on the node; silent where the host cannot. Never fails a render."""
    return lambda text: _send(LINE, node_id, {"text": text})


def reporter(node_id: str | None) -> Callable[[dict[str, Any]], None]:
    """A function that sends a render's summary to the page, where the node shows it."""
    return lambda summary: _send(SUMMARY, node_id, summary)


def stamped(node_id: str | None, facts: dict[str, Any]) -> dict[str, Any]:
    """facts with `node`, the page's `mark` of it, and the `run` they belong to (the host's prompt id)."""
    now = running()
    return {"node": node_id, "mark": now.mark(node_id or ""), "run": now.run, **facts}


def written(node_id: str | None, text: str) -> dict[str, Any]:
    """What an output node returns for a text to be shown on it: the host's own form, and one that tells tabs apart."""
    return {"text": (text,), "carnator_view": [stamped(node_id, {"text": text})]}


def _send(event: str, node_id: str | None, facts: dict[str, Any]) -> None:
    if node_id is None:
        return
    try:
        from server import PromptServer

        server = PromptServer.instance
        if server.client_id is not None:
            server.send_sync(event, stamped(node_id, facts), server.client_id)
    except Exception as error:  # noqa: BLE001 - what a page shows is never worth a render
        log.debug("nothing shown on the node: %s", error)
