"""Draws a workflow file: nodes in columns, wires by name, in the format of ComfyUI's front end.

Slots, widgets and their order come from the host's /object_info; places come from the heights that the front end gives
the nodes (measured in both of its renderers), so that nothing overlaps.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERSION = "0.1.0"  # the pack's, as its nodes in the file carry it
CORE = {"cnr_id": "comfy-core", "ver": "0.3.64"}
OURS = {"cnr_id": "carnator", "ver": VERSION}
TEAL, GREEN, RED = ({"color": c, "bgcolor": b} for c, b in (("#233", "#355"), ("#232", "#353"), ("#322", "#533")))
NOTE = "MarkdownNote"
WIDGETS = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COMFY_DYNAMICCOMBO_V3")

# Pixels: between nodes, of a node's and a group's title, around a group's nodes, between groups.
GAP, TITLE, HEADING, MARGIN, APART = 24, 30, 44, 16, 24


@dataclass
class Box:
    """A node to be drawn. name: how wires refer to it; wires: input -> (name, output); values: widget -> value."""

    name: str
    kind: str
    height: int
    wires: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    models: Sequence[Mapping[str, str]] = ()
    title: str = ""
    colour: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Section:
    """Nodes under each other, in a titled frame (no frame without a title)."""

    title: str
    boxes: Sequence[Box]


@dataclass
class Column:
    """Sections under each other, all equally wide."""

    width: int
    sections: Sequence[Section]


def draw(name: str, columns: Sequence[Column], object_info: Mapping[str, Any]) -> dict[str, Any]:
    """The workflow as a dict to be written as JSON. Raises KeyError for a node, slot or widget that there is not."""
    boxes = [box for column in columns for section in column.sections for box in section.boxes]
    numbers = {box.name: index + 1 for index, box in enumerate(boxes)}
    kinds = {box.name: box.kind for box in boxes}
    links: list[list[Any]] = []
    nodes: dict[str, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    x = 0
    for column in columns:
        y = 0
        for section in column.sections:
            top = y
            y += HEADING if section.title else 0
            for box in section.boxes:
                place, size = [x, y + TITLE], [column.width, box.height]
                nodes[box.name] = _node(box, numbers[box.name], place, size, object_info)
                y += TITLE + box.height + GAP
            if section.title:
                y += MARGIN - GAP
                groups.append(
                    _group(section.title, len(groups) + 1, [x - MARGIN, top, column.width + 2 * MARGIN, y - top])
                )
                y += GAP
        x += column.width + 2 * MARGIN + APART
    for box in boxes:
        for entry in nodes[box.name]["inputs"]:
            source, output = box.wires[entry["name"]] if entry["name"] in box.wires else ("", "")
            if not source:
                continue
            slot = [o.lower() for o in object_info[kinds[source]]["output_name"]].index(output.lower())
            links.append(
                [
                    len(links) + 1,
                    numbers[source],
                    slot,
                    numbers[box.name],
                    nodes[box.name]["inputs"].index(entry),
                    object_info[kinds[source]]["output"][slot],
                ]
            )
            entry["link"] = links[-1][0]
            nodes[source]["outputs"][slot]["links"].append(links[-1][0])
    for order, node in enumerate(_in_order(list(nodes.values()), links)):
        node["order"] = order
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"carnator/{name}")),
        "revision": 0,
        "last_node_id": len(boxes),
        "last_link_id": len(links),
        "nodes": list(nodes.values()),
        "links": links,
        "groups": groups,
        "config": {},
        "extra": {"ds": {"scale": 0.6, "offset": [60, 120]}},
        "version": 0.4,
    }


def _group(title: str, number: int, bounds: list[int]) -> dict[str, Any]:
    return {"id": number, "title": title, "bounding": bounds, "color": "#3f789e", "font_size": 24, "flags": {}}


def _node(box: Box, number: int, place: list[int], size: list[int], object_info: Mapping[str, Any]) -> dict[str, Any]:
    node: dict[str, Any] = {
        "id": number,
        "type": box.kind,
        "pos": place,
        "size": size,
        "flags": {},
        "order": 0,
        "mode": 0,
    }
    if box.kind == NOTE:
        return node | {
            "inputs": [],
            "outputs": [],
            "title": box.title,
            "properties": {},
            "widgets_values": [box.values["text"]],
            "color": "#432",
            "bgcolor": "#653",
        }
    info = object_info[box.kind]
    specs = [(n, s, section) for section in ("required", "optional") for n, s in info["input"].get(section, {}).items()]
    unknown = (set(box.wires) | set(box.values)) - {n for n, _, _ in specs}
    if unknown:
        raise KeyError(f"{box.kind} has no input called {', '.join(sorted(unknown))}")
    node["inputs"] = [
        {"name": n, "type": _type(s), "link": None} | ({"shape": 7} if section == "optional" else {})
        for n, s, section in specs
        if not _is_widget(s)
    ]
    node["outputs"] = [
        {"name": n, "type": t, "links": []} for n, t in zip(info["output_name"], info["output"], strict=True)
    ]
    node["properties"] = {"Node name for S&R": box.kind} | (OURS if box.kind.startswith("Carnator") else CORE)
    if box.models:
        node["properties"]["models"] = [dict(m) for m in box.models]
    node["widgets_values"] = _values(box.values, [(n, s) for n, s, _ in specs if _is_widget(s)])
    if box.title:
        node["title"] = box.title
    return node | dict(box.colour or (TEAL if box.kind.startswith("Carnator") else {}))


def _type(spec: Sequence[Any]) -> str:
    return spec[0] if isinstance(spec[0], str) else "COMBO"


def _is_widget(spec: Sequence[Any]) -> bool:
    return _type(spec) in WIDGETS


def _values(given: Mapping[str, Any], widgets: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
    """Widget values in order, up to the last that is given; the host's defaults stand for the rest."""
    values: list[Any] = []
    wanted = len(given)
    for name, spec in widgets:
        if not wanted:
            break
        options = spec[1] if len(spec) > 1 else {}
        choices = spec[0] if isinstance(spec[0], list) else options.get("options") or [None]
        values.append(given[name] if name in given else options.get("default", choices[0]))
        wanted -= name in given
        if options.get("control_after_generate"):
            values.append("fixed")
    return values


def _in_order(nodes: list[dict[str, Any]], links: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    """Nodes in an order in which each comes after those that feed it."""
    needs = {n["id"]: {link[1] for link in links if link[3] == n["id"]} for n in nodes}
    done: list[dict[str, Any]] = []
    while len(done) < len(nodes):
        ready = {n["id"] for n in done}
        done += [n for n in nodes if n["id"] not in ready and needs[n["id"]] <= ready]
    return done
