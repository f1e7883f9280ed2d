"""From the workflow file that a creator drags in (the UI's graph) to the prompt that the host executes.

What the front end does when Run is pressed, for graphs without it: widgets in order, links over widgets, sub-graphs
unfolded, muted nodes dropped and bypassed ones led through. tests/ compare it with the front end itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .wires import SCALARS, WIRES, Graph, GraphError, Value, running, source_of_input

_COMMENTS = {"Note", "MarkdownNote"}
_CHOICE_WITH_INPUTS = "COMFY_DYNAMICCOMBO_V3"
_AFTER_RUN = ("fixed", "increment", "decrement", "randomize")


def to_prompt(workflow: Mapping[str, Any], object_info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A UI workflow (nodes, links, widgets_values) as an API prompt {id: {class_type, inputs, _meta}}.

    object_info is the host's /object_info. Inner nodes of sub-graphs get ids "outer:inner".
    Raises GraphError naming the node types that the host does not have.
    """
    definitions = {d["id"]: d for d in (workflow.get("definitions") or {}).get("subgraphs") or []}
    prompt: dict[str, dict[str, Any]] = {}
    missing: set[str] = set()
    for graph, node in running(Graph(workflow, definitions)):
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


def _front_end_only(node: Mapping[str, Any]) -> bool:
    """Comments, wires, and helpers that no wire reaches (switches that mute a group, say)."""
    wired = any(i.get("link") is not None for i in node.get("inputs") or [])
    wired = wired or any(o.get("links") for o in node.get("outputs") or [])
    return node["type"] in _COMMENTS | WIRES or not wired


def _inputs(graph: Graph, node: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """A node's inputs by name: typed-in values first, wires over them."""
    found = {name: _guarded(value) for name, value in _widgets(node, info["input"]).items()}
    for entry in node.get("inputs") or []:
        source = source_of_input(graph, entry, str(entry["type"]))
        if isinstance(source, Value):
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
    known = isinstance(spec[0], list) or spec[0] in SCALARS or spec[0] == _CHOICE_WITH_INPUTS
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
    return SCALARS.get(spec[0]) if isinstance(spec[0], str) else None
