"""Finding the prompt text that belongs to a node, in the workflow the host runs."""

from __future__ import annotations

from typing import Any

_TEXT_INPUTS = ("text", "prompt", "positive_prompt", "string", "value", "t5xxl")


def _consumers(graph: dict[str, Any], node: str) -> list[str]:
    return [i for i, n in graph.items()
            if any(isinstance(v, list) and len(v) == 2 and str(v[0]) == node for v in n.get("inputs", {}).values())]


def _text(graph: dict[str, Any], link: Any, depth: int = 0) -> str:
    """The text behind a link: of the node's own text input, or further up."""
    if isinstance(link, str):
        return link
    if not (isinstance(link, list) and len(link) == 2) or depth > 12:
        return ""
    inputs = graph.get(str(link[0]), {}).get("inputs", {})
    for name in _TEXT_INPUTS:
        if name in inputs:
            found = _text(graph, inputs[name], depth + 1)
            if found:
                return found
    for name in ("positive", "conditioning", "conditioning_1"):
        if name in inputs:
            return _text(graph, inputs[name], depth + 1)
    return ""


def prompt_of(graph: dict[str, Any] | None, node: str | None) -> str:
    """Text of the positive prompt of the first sampler or guider downstream of `node`; "" when none is found.

    graph: the host's API-form workflow, node id -> {class_type, inputs}. Nothing in it is executed.
    """
    if not graph or node is None:
        return ""
    seen, queue = {str(node)}, [str(node)]
    while queue:
        for consumer in _consumers(graph, queue.pop(0)):
            inputs = graph[consumer].get("inputs", {})
            for name in ("positive", "conditioning"):
                if name in inputs:
                    found = _text(graph, inputs[name])
                    if found:
                        return found
            if consumer not in seen:
                seen.add(consumer)
                queue.append(consumer)
    return ""
