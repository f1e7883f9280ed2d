"""The one line under a node while it runs, and what is left of it afterwards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

log = logging.getLogger("carnator")


def speaker(node_id: str | None) -> Callable[[str], None]:
    """A function that shows a line of text on the node; silent where the host cannot. Never fails a render."""
    def say(text: str) -> None:
        if node_id is None:
            return
        try:
            from server import PromptServer
            PromptServer.instance.send_progress_text(text, node_id)
        except Exception as error:  # noqa: BLE001 - a status line is never worth a render
            log.debug("no status line: %s", error)
    return say


def reporter(node_id: str | None) -> Callable[[dict[str, Any]], None]:
    """A function that sends a render's summary to the page, where the node shows it."""
    def done(summary: dict[str, Any]) -> None:
        try:
            from server import PromptServer
            PromptServer.instance.send_sync("carnator.summary", {"node": node_id, **summary})
        except Exception as error:  # noqa: BLE001
            log.debug("no summary: %s", error)
    return done
