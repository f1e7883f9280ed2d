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


def _links(node: dict[str, Any], names: tuple[str, ...] = ()) -> list[str]:
    """Ids of the nodes that feed a node, through the inputs with these names, or through any."""
    return [str(v[0]) for n, v in node.get("inputs", {}).items()
            if isinstance(v, list) and len(v) == 2 and (not names or n in names)]


def _samplers(graph: dict[str, Any], start: list[str]) -> set[str]:
    """The first nodes with a latent to sample from, downstream of some nodes."""
    seen, queue, found = set(start), list(start), set()
    while queue:
        for consumer in _consumers(graph, queue.pop(0)):
            if consumer in seen:
                continue
            seen.add(consumer)
            if "latent_image" in graph[consumer].get("inputs", {}):
                found.add(consumer)
            else:
                queue.append(consumer)
    return found


def unfollowed(graph: dict[str, Any] | None, node: str | None, kind: str) -> bool:
    """Whether a sampler goes on from the latent of one that `node` feeds, and has no node of class `kind` in its MODEL line.

    graph: as for `prompt_of`. False when the graph does not show it.
    """
    if not graph or node is None or str(node) not in graph:
        return False
    for first in _samplers(graph, [str(node)]):
        for second in _samplers(graph, [first]):
            queue, seen = _links(graph[second], ("model", "guider")), set()
            while queue:
                at = queue.pop()
                if at not in seen and at in graph:
                    seen.add(at)
                    queue += _links(graph[at])
            if not any(graph[at].get("class_type") == kind for at in seen):
                return True
    return False
