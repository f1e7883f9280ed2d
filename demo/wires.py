"""What feeds what in a workflow file of the UI: wires followed through reroutes, bypassed nodes and sub-graphs.

The rules are the front end's own. Nothing here needs ComfyUI.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MUTED, BYPASSED = 2, 4
SCALARS = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False, "COMBO": None}
OUTSIDE_IN, INSIDE_OUT = -10, -20  # the pseudo-nodes at a sub-graph's border
REROUTES = {"Reroute", "Reroute (rgthree)"}
# These exist in the front end only and are resolved away.
WIRES = REROUTES | {"PrimitiveNode", "SetNode", "GetNode"}


class GraphError(ValueError):
    """Why a workflow cannot be read, or turned into a prompt."""


@dataclass(frozen=True)
class Link:
    origin: int
    slot: int
    target: int
    target_slot: int


@dataclass
class Graph:
    """The top graph, or one instance of a sub-graph, with the node that stands for it one level up."""

    body: Mapping[str, Any]
    definitions: Mapping[str, Any]
    prefix: str = ""
    outer: Graph | None = None
    instance: dict[str, Any] = field(default_factory=dict)
    nodes: dict[int, dict[str, Any]] = field(init=False)
    links: dict[int, Link] = field(init=False)
    inner: dict[int, Graph] = field(init=False)

    def __post_init__(self) -> None:
        """Raises GraphError for a sub-graph that holds itself."""
        above = self.outer
        while above is not None:
            if above.body is self.body:
                raise GraphError(f"the sub-graph {self.body.get('name') or self.body['id']} holds itself")
            above = above.outer
        self.nodes = {n["id"]: dict(n) for n in self.body["nodes"]}
        self.links = dict(link_of(link) for link in self.body.get("links") or [])
        self.inner = {
            number: Graph(self.definitions[node["type"]], self.definitions, f"{self.prefix}{number}:", self, node)
            for number, node in self.nodes.items()
            if node["type"] in self.definitions
        }


@dataclass(frozen=True)
class Value:
    """What a wire carries when it ends at a typed-in value instead of a node's output."""

    value: Any


def link_of(link: Any) -> tuple[int, Link]:
    if isinstance(link, dict):
        return link["id"], Link(link["origin_id"], link["origin_slot"], link["target_id"], link["target_slot"])
    return link[0], Link(*link[1:5])


def running(graph: Graph) -> Iterator[tuple[Graph, dict[str, Any]]]:
    """Every node that is neither muted nor bypassed, inner ones in place of the sub-graph that holds them."""
    for number, node in graph.nodes.items():
        if node.get("mode", 0) in (MUTED, BYPASSED):
            continue
        if number in graph.inner:
            yield from running(graph.inner[number])
        else:
            yield graph, node


def source_of_input(graph: Graph, entry: Mapping[str, Any], wanted: str) -> tuple[str, int] | Value | None:
    """What feeds an input slot: (prompt id, output index), a value, or None when nothing does."""
    link = graph.links.get(entry["link"]) if entry.get("link") is not None else None
    if link is None:
        return None
    if link.origin != OUTSIDE_IN:
        return _source_of_output(graph, graph.nodes[link.origin], link.slot, wanted)
    assert graph.outer is not None
    border = graph.body["inputs"][link.slot]
    outside: Mapping[str, Any] = next(
        (i for i in graph.instance.get("inputs") or [] if i["name"] == border["name"]), {}
    )
    source = source_of_input(graph.outer, outside, wanted)
    return source if source is not None else _typed_on_instance(graph, border["name"])


def _typed_on_instance(graph: Graph, name: str) -> Value | None:
    """The value of a sub-graph's own widget, or None: then the inner node's widget keeps its own."""
    values = graph.instance.get("widgets_values") or []
    proxies = graph.instance.get("properties", {}).get("proxyWidgets")
    if proxies is None:
        names = [i["name"] for i in graph.body["inputs"] if i["type"].split(",")[0] in SCALARS]
    else:
        names = [str(proxy[1]) if str(proxy[0]) == "-1" else "" for proxy in proxies]
    return Value(values[names.index(name)]) if name in names and names.index(name) < len(values) else None


def _source_of_output(
    graph: Graph, node: Mapping[str, Any], slot: int, wanted: str
) -> tuple[str, int] | Value | None:
    """What an output slot stands for, through bypassed nodes, reroutes, primitives and sub-graphs."""
    mode, number = node.get("mode", 0), node["id"]
    if mode == MUTED:
        return None
    if mode == BYPASSED:
        through = _bypass(node, slot, wanted)
        return None if through is None else source_of_input(graph, through, str(through["type"]))
    if number in graph.inner:
        inner = graph.inner[number]
        link = next((k for k in inner.links.values() if k.target == INSIDE_OUT and k.target_slot == slot), None)
        return None if link is None else _source_of_output(inner, inner.nodes[link.origin], link.slot, wanted)
    if node["type"] in REROUTES:
        return source_of_input(graph, node["inputs"][0], wanted)
    if node["type"] == "GetNode":
        return _source_by_name(graph, node, wanted)
    if node["type"] == "PrimitiveNode":
        return Value(node["widgets_values"][0])
    return f"{graph.prefix}{number}", slot


def _source_by_name(graph: Graph, node: Mapping[str, Any], wanted: str) -> tuple[str, int] | Value | None:
    """What the Set node of a Get node's name is given, here or in a graph around this one; None without one."""
    name = (node.get("widgets_values") or [None])[0]
    here: Graph | None = graph
    while here is not None:
        for other in here.nodes.values():
            if other["type"] == "SetNode" and (other.get("widgets_values") or [None])[0] == name:
                return None if other.get("mode", 0) == MUTED else source_of_input(here, other["inputs"][0], wanted)
        here = here.outer
    return None


def _bypass(node: Mapping[str, Any], slot: int, wanted: str) -> Mapping[str, Any] | None:
    """The input that a bypassed node hands on for an output: same place if the types agree, else the first to do so."""
    inputs = node.get("inputs") or []
    given = str(node["outputs"][slot]["type"])
    same = inputs[slot] if slot < len(inputs) else None
    if wanted in ("*", ""):
        return same or (inputs[0] if inputs else None)

    def fits(entry: Mapping[str, Any]) -> bool:
        return compatible(str(entry["type"]), given) and compatible(str(entry["type"]), wanted)

    if same is not None and fits(same):
        return same  # type: ignore[no-any-return]
    exact = (i for i in inputs if i["type"] == wanted)
    return next(exact, next((i for i in inputs if fits(i)), None))


def compatible(one: str, other: str) -> bool:
    """The front end's rule for joining slots: any type with "*", or a common name among comma-separated ones."""
    if "*" in (one, other) or "" in (one, other):
        return True
    return not {t.strip().lower() for t in one.split(",")}.isdisjoint(t.strip().lower() for t in other.split(","))
