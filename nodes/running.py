"""What the host executes at this moment: the graph that was queued, and the workflow it was drawn as.

A node's own hidden inputs date from when it was last executed. The host keeps the output of a node whose inputs did not
change, so at sampling time they may belong to an earlier prompt; the host's queue is what tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = "carnator_id"  # property of a node on the page, which sets it; it tells nodes of different tabs apart


@dataclass(frozen=True)
class Running:
    """graph: node id -> {class_type, inputs}. workflow: the page's own form of it, {} when it came without one."""

    run: str = ""
    graph: Mapping[str, Any] = field(default_factory=dict)
    workflow: Mapping[str, Any] = field(default_factory=dict)

    def mark(self, node: str) -> str:
        """The page's own mark of a node, "" when it has none. node: "7", or "5:7" for node 7 inside sub-graph node 5."""
        definitions = {d.get("id"): d for d in (self.workflow.get("definitions") or {}).get("subgraphs") or []}
        level: Mapping[str, Any] = self.workflow
        found: Mapping[str, Any] = {}
        for part in node.split(":"):
            found = next((n for n in level.get("nodes") or [] if str(n.get("id")) == part), {})
            level = definitions.get(found.get("type"), {})
        return str((found.get("properties") or {}).get(MARK, ""))


def running() -> Running:
    """What is executed now; an empty one outside of an execution, or on a host that does not tell."""
    try:
        from server import PromptServer

        queue = PromptServer.instance.prompt_queue
        items, _ = getattr(queue, "get_current_queue_volatile", queue.get_current_queue)()
        _, run, graph, extra, *_ = items[0]
        workflow = (extra.get("extra_pnginfo") or {}).get("workflow") or {}
        return Running(str(run), graph, workflow)
    except (ImportError, AttributeError, IndexError, TypeError, ValueError):
        return Running()


def executing() -> str:
    """Id of the node that is executed now; "" outside of an execution, or on a host that does not tell."""
    try:
        from comfy_execution.utils import get_executing_context
    except ImportError:  # hosts before it
        return ""
    return str(getattr(get_executing_context(), "node_id", None) or "")
