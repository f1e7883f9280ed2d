"""Finding the prompt text that belongs to a sampler, in the workflow the host runs.

A text counts only when the graph alone shows that it is the one that was encoded: through nodes whose doings are known.
Behind any other node (a replacement, a wildcard, a language model, a mix of conditionings) it is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_HANDED_ON = {"PrimitiveString": "value", "PrimitiveStringMultiline": "value", "StringConstant": "string",
              "Reroute": "", "ReroutePrimitive|pysssss": "value"}  # class -> the input that its first output repeats
_ENCODERS = ("CLIPTextEncode", "CarnatorTextEncode")
_CONDITIONED = ("LTXVConditioning", "WanImageToVideo")  # positive, negative in and out; the text's tensors stay as they are
_GUIDERS = {"BasicGuider": "conditioning", "CFGGuider": "positive"}
_SAMPLERS = ("KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced")
_DEEPEST = 12


def _consumers(graph: dict[str, Any], node: str) -> list[str]:
    return [i for i, n in graph.items()
            if any(isinstance(v, list) and len(v) == 2 and str(v[0]) == node for v in n.get("inputs", {}).values())]


def _source(graph: dict[str, Any], link: Any) -> tuple[str, dict[str, Any], Any]:
    """Class, inputs and output index behind a link; class "" when there is none."""
    node = graph.get(str(link[0])) if isinstance(link, list) and len(link) == 2 else None
    return (str(node.get("class_type")), node.get("inputs", {}), link[1]) if node else ("", {}, 0)


def _repeated(kind: str, inputs: dict[str, Any]) -> Any:
    """What a node that hands something on hands on."""
    return inputs.get(_HANDED_ON[kind]) if _HANDED_ON[kind] else next(iter(inputs.values()), None)


def _string(graph: dict[str, Any], value: Any, depth: int = 0) -> str | None:
    """The text of an input, typed or linked; None when it cannot be told."""
    if isinstance(value, str):
        return value
    kind, inputs, output = _source(graph, value)
    if depth > _DEEPEST or output != 0:
        return None
    if kind in _HANDED_ON:
        return _string(graph, _repeated(kind, inputs), depth + 1)
    if kind == "StringConcatenate":
        parts = [_string(graph, inputs.get(name, default), depth + 1)
                 for name, default in (("string_a", None), ("delimiter", ""), ("string_b", None))]
        known = [part for part in parts if part is not None]
        return "".join(known) if len(known) == len(parts) else None
    return None


def _encoded(graph: dict[str, Any], link: Any, depth: int = 0) -> str | None:
    """The text that a conditioning was encoded from; None when it cannot be told."""
    kind, inputs, output = _source(graph, link)
    if depth > _DEEPEST:
        return None
    if kind in _CONDITIONED and output in (0, 1):
        return _encoded(graph, inputs.get(("positive", "negative")[output]), depth + 1)
    if output != 0:
        return None
    if kind in _ENCODERS:
        return _string(graph, inputs.get("text"))
    return _encoded(graph, _repeated(kind, inputs), depth + 1) if kind in _HANDED_ON else None


def _sampled(graph: dict[str, Any], sampler: str) -> str | None:
    """The text of a sampler's positive prompt; None when it cannot be told."""
    node = graph.get(sampler, {})
    inputs = node.get("inputs", {})
    if node.get("class_type") not in _SAMPLERS:
        return None
    if node["class_type"] != "SamplerCustomAdvanced":
        return _encoded(graph, inputs.get("positive"))
    kind, inputs, _ = _source(graph, inputs.get("guider"))
    return _encoded(graph, inputs.get(_GUIDERS[kind])) if kind in _GUIDERS else None


def _reached(graph: dict[str, Any], node: str) -> Iterator[str]:
    """The nodes that a node's model reaches and that sample with it, or may."""
    seen, queue = {node}, [node]
    while queue:
        source = queue.pop()
        for consumer in _consumers(graph, source):
            kind, inputs = graph[consumer].get("class_type"), graph[consumer].get("inputs", {})
            if consumer in seen or kind in _ENCODERS or kind in _CONDITIONED:
                continue
            if kind in _SAMPLERS:
                if source in _links(graph[consumer], ("model", "guider")):
                    seen.add(consumer)
                    yield consumer
                continue
            seen.add(consumer)
            if kind not in _GUIDERS and not inputs.keys().isdisjoint(("positive", "conditioning", "latent_image")):
                yield consumer  # a sampler of another pack, perhaps
            else:
                queue.append(consumer)


def prompt_of(graph: dict[str, Any] | None, node: str | None, sampler: str = "") -> str:
    """Text of the positive prompt that the model of `node` is sampled with; "" when it cannot be told.

    graph: the host's API-form workflow, node id -> {class_type, inputs}. Nothing in it is executed.
    sampler: the node that samples at this moment, "" when the host does not tell; then every sampler that the model reaches
    has to have the same text.
    """
    if not graph or node is None:
        return ""
    texts = {_sampled(graph, one) for one in ([sampler] if sampler else _reached(graph, str(node)))}
    return (texts.pop() or "") if len(texts) == 1 else ""


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
