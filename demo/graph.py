"""From the workflow file that a creator drags in (the UI's graph) to the prompt that the host executes.

What the front end does when Run is pressed, for graphs without it: widgets in order, links over widgets, sub-graphs
unfolded, muted nodes dropped and bypassed ones led through. tests/ compare it with the front end itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MUTED, BYPASSED = 2, 4
_COMMENTS = {"Note", "MarkdownNote"}
_WIRES = {"Reroute", "PrimitiveNode"}  # these two exist in the front end only and are resolved away
_SCALARS = {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False, "COMBO": None}
_CHOICE_WITH_INPUTS = "COMFY_DYNAMICCOMBO_V3"
_AFTER_RUN = ("fixed", "increment", "decrement", "randomize")
_OUTSIDE_IN, _INSIDE_OUT = -10, -20  # the pseudo-nodes at a sub-graph's border


class GraphError(ValueError):
    """Why a workflow cannot be turned into a prompt."""


@dataclass(frozen=True)
class _Link:
    origin: int
    slot: int
    target: int
    target_slot: int


@dataclass
class _Graph:
    """The top graph, or one instance of a sub-graph, with the node that stands for it one level up."""

    body: Mapping[str, Any]
    definitions: Mapping[str, Any]
    prefix: str = ""
    outer: _Graph | None = None
    instance: dict[str, Any] = field(default_factory=dict)
    nodes: dict[int, dict[str, Any]] = field(init=False)
    links: dict[int, _Link] = field(init=False)
    inner: dict[int, _Graph] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = {n["id"]: dict(n) for n in self.body["nodes"]}
        self.links = dict(_link(link) for link in self.body.get("links") or [])
        self.inner = {
            number: _Graph(self.definitions[node["type"]], self.definitions, f"{self.prefix}{number}:", self, node)
            for number, node in self.nodes.items()
            if node["type"] in self.definitions
        }


@dataclass(frozen=True)
class _Value:
    """What a wire carries when it ends at a typed-in value instead of a node's output."""

    value: Any


def to_prompt(workflow: Mapping[str, Any], object_info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A UI workflow (nodes, links, widgets_values) as an API prompt {id: {class_type, inputs, _meta}}.

    object_info is the host's /object_info. Inner nodes of sub-graphs get ids "outer:inner".
    Raises GraphError naming the node types that the host does not have.
    """
    definitions = {d["id"]: d for d in (workflow.get("definitions") or {}).get("subgraphs") or []}
    prompt: dict[str, dict[str, Any]] = {}
    missing: set[str] = set()
    for graph, node in _running(_Graph(workflow, definitions)):
        kind = node["type"]
        if kind in object_info:
            title = node.get("title") or object_info[kind].get("display_name") or kind
            inputs = _inputs(graph, node, object_info[kind])
            prompt[f"{graph.prefix}{node['id']}"] = {"inputs": inputs, "class_type": kind, "_meta": {"title": title}}
        elif not _front_end_only(node):
            missing.add(kind)
    if missing:
        raise GraphError(f"this ComfyUI has no node called {', '.join(sorted(missing))}")
    for entry in prompt.values():
        entry["inputs"] = {k: v for k, v in entry["inputs"].items() if not isinstance(v, list) or v[0] in prompt}
    return prompt


def _link(link: Any) -> tuple[int, _Link]:
    if isinstance(link, dict):
        return link["id"], _Link(link["origin_id"], link["origin_slot"], link["target_id"], link["target_slot"])
    return link[0], _Link(*link[1:5])


def _running(graph: _Graph) -> Iterator[tuple[_Graph, dict[str, Any]]]:
    """Every node that is neither muted nor bypassed, inner ones in place of the sub-graph that holds them."""
    for number, node in graph.nodes.items():
        if node.get("mode", 0) in (MUTED, BYPASSED):
            continue
        if number in graph.inner:
            yield from _running(graph.inner[number])
        else:
            yield graph, node


def _front_end_only(node: Mapping[str, Any]) -> bool:
    """Comments, wires, and helpers that no wire reaches (switches that mute a group, say)."""
    wired = any(i.get("link") is not None for i in node.get("inputs") or [])
    wired = wired or any(o.get("links") for o in node.get("outputs") or [])
    return node["type"] in _COMMENTS | _WIRES or not wired


def _inputs(graph: _Graph, node: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """A node's inputs by name: typed-in values first, wires over them."""
    found = {name: _guarded(value) for name, value in _widgets(node, info["input"]).items()}
    for entry in node.get("inputs") or []:
        source = _source_of_input(graph, entry, str(entry["type"]))
        if isinstance(source, _Value):
            found[entry["name"]] = _guarded(source.value)
        elif source is not None:
            found[entry["name"]] = list(source)
    return found


def _guarded(value: Any) -> Any:
    """A list typed into a widget, wrapped so that the host does not take it for a wire."""
    return {"__value__": value} if isinstance(value, list) else value


def _widgets(node: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """Widget values by name; the file lists them in the order in which the node type declares its widgets."""
    values = node.get("widgets_values") or []
    if isinstance(values, Mapping):
        return {name: values.get(name, _default(spec)) for name, spec in _specs(sections) if _is_widget(spec)}
    found: dict[str, Any] = {}
    _take(list(values), list(_specs(sections)), "", found)
    return found


def _specs(sections: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    for section in ("required", "optional"):
        yield from (sections.get(section) or {}).items()


def _take(values: list[Any], specs: Sequence[tuple[str, Sequence[Any]]], prefix: str, found: dict[str, Any]) -> None:
    """Move values off the front of the list into `found`, one for each widget among `specs`."""
    for name, spec in specs:
        if not _is_widget(spec):
            continue
        value = found[prefix + name] = values.pop(0) if values else _default(spec)
        if _has_control(name, spec) and values and values[0] in _AFTER_RUN:
            values.pop(0)
        if spec[0] == _CHOICE_WITH_INPUTS:
            chosen: Mapping[str, Any] = next((o["inputs"] for o in spec[1]["options"] if o["key"] == value), {})
            _take(values, list(_specs(chosen)), f"{prefix}{name}.", found)


def _options(spec: Sequence[Any]) -> Mapping[str, Any]:
    return spec[1] if len(spec) > 1 else {}


def _is_widget(spec: Sequence[Any]) -> bool:
    options = _options(spec)
    if options.get("forceInput"):
        return False
    known = isinstance(spec[0], list) or spec[0] in _SCALARS or spec[0] == _CHOICE_WITH_INPUTS
    return known or "default" in options or "widgetType" in options


def _has_control(name: str, spec: Sequence[Any]) -> bool:
    """Whether the front end puts a "control after generate" widget behind this one."""
    declared = _options(spec).get("control_after_generate")
    return bool(declared) or (declared is None and spec[0] == "INT" and name in ("seed", "noise_seed"))


def _default(spec: Sequence[Any]) -> Any:
    options = _options(spec)
    if "default" in options:
        return options["default"]
    choices = spec[0] if isinstance(spec[0], list) else options.get("options", [])
    if choices:
        return choices[0]["key"] if isinstance(choices[0], Mapping) else choices[0]
    return _SCALARS.get(spec[0]) if isinstance(spec[0], str) else None


def _source_of_input(graph: _Graph, entry: Mapping[str, Any], wanted: str) -> tuple[str, int] | _Value | None:
    """What feeds an input slot: (prompt id, output index), a value, or None when nothing does."""
    link = graph.links.get(entry["link"]) if entry.get("link") is not None else None
    if link is None:
        return None
    if link.origin != _OUTSIDE_IN:
        return _source_of_output(graph, graph.nodes[link.origin], link.slot, wanted)
    assert graph.outer is not None
    border = graph.body["inputs"][link.slot]
    outside: Mapping[str, Any] = next(
        (i for i in graph.instance.get("inputs") or [] if i["name"] == border["name"]), {}
    )
    source = _source_of_input(graph.outer, outside, wanted)
    return source if source is not None else _typed_on_instance(graph, border["name"])


def _typed_on_instance(graph: _Graph, name: str) -> _Value | None:
    """The value of a sub-graph's own widget, or None: then the inner node's widget keeps its own."""
    values = graph.instance.get("widgets_values") or []
    proxies = graph.instance.get("properties", {}).get("proxyWidgets")
    if proxies is None:
        names = [i["name"] for i in graph.body["inputs"] if i["type"].split(",")[0] in _SCALARS]
    else:
        names = [widget if str(node) == "-1" else "" for node, widget, *_ in proxies]
    return _Value(values[names.index(name)]) if name in names and names.index(name) < len(values) else None


def _source_of_output(
    graph: _Graph, node: Mapping[str, Any], slot: int, wanted: str
) -> tuple[str, int] | _Value | None:
    """What an output slot stands for, through bypassed nodes, reroutes, primitives and sub-graphs."""
    mode, number = node.get("mode", 0), node["id"]
    if mode == MUTED:
        return None
    if mode == BYPASSED:
        through = _bypass(node, slot, wanted)
        return None if through is None else _source_of_input(graph, through, str(through["type"]))
    if number in graph.inner:
        inner = graph.inner[number]
        link = next((k for k in inner.links.values() if k.target == _INSIDE_OUT and k.target_slot == slot), None)
        return None if link is None else _source_of_output(inner, inner.nodes[link.origin], link.slot, wanted)
    if node["type"] == "Reroute":
        return _source_of_input(graph, node["inputs"][0], wanted)
    if node["type"] == "PrimitiveNode":
        return _Value(node["widgets_values"][0])
    return f"{graph.prefix}{number}", slot


def _bypass(node: Mapping[str, Any], slot: int, wanted: str) -> Mapping[str, Any] | None:
    """The input that a bypassed node hands on for an output: same place if the types agree, else the first to do so."""
    inputs = node.get("inputs") or []
    given = str(node["outputs"][slot]["type"])
    same = inputs[slot] if slot < len(inputs) else None
    if wanted in ("*", ""):
        return same or (inputs[0] if inputs else None)

    def fits(entry: Mapping[str, Any]) -> bool:
        return _compatible(str(entry["type"]), given) and _compatible(str(entry["type"]), wanted)

    if same is not None and fits(same):
        return same  # type: ignore[no-any-return]
    exact = (i for i in inputs if i["type"] == wanted)
    return next(exact, next((i for i in inputs if fits(i)), None))


def _compatible(one: str, other: str) -> bool:
    """The front end's rule for joining slots: any type with "*", or a common name among comma-separated ones."""
    if "*" in (one, other) or "" in (one, other):
        return True
    return not {t.strip().lower() for t in one.split(",")}.isdisjoint(t.strip().lower() for t in other.split(","))
