"""The server of ComfyUI 0.3.64, as nodes see it while a prompt runs."""

from __future__ import annotations

from typing import Any


class Routes:
    """Keeps what is registered."""

    def __init__(self) -> None:
        self.known: list[tuple[str, str]] = []

    def route(self, method: str, path: str, **_: Any) -> Any:
        self.known.append((method, path))
        return lambda handler: handler


class PromptServer:
    instance: PromptServer

    def __init__(self) -> None:
        self.routes, self.lines, self.sent = Routes(), [], []  # type: ignore[var-annotated]
        self.client_id = "page"

    def send_progress_text(self, text: str, node_id: str, sid: str | None = None) -> None:
        self.lines.append(text)

    def send_sync(self, event: str, data: Any, sid: str | None = None) -> None:
        self.sent.append((event, data))
        if event == "carnator.status":
            self.lines.append(data["text"])


PromptServer.instance = PromptServer()
