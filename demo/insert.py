"""Puts Carnator's nodes into a workflow: wires, ids and places as ComfyUI's front end writes them.

The shape of our nodes is read from the pack's own templates, which a test compares with what the host says of them.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from .lines import OURS, Finding
from .wires import OUTSIDE_IN

TEMPLATE = Path(__file__).resolve().parent.parent / "workflows" / "carnator_wan21_t2v_1_3b.json"
PLAIN_TEXT, OUR_TEXT = "CLIPTextEncode", "CarnatorTextEncode"
TITLE_BAR, GAP, STRIDE = 30, 30, 60  # pixels: a node's title, between nodes, between places that are tried
Rectangle = tuple[float, float, float, float]  # left, top, right, bottom


@cache
def _template() -> Mapping[str, Any]:
    nodes = json.loads(TEMPLATE.read_text(encoding="utf-8"))["nodes"]
    return {n["type"]: n for n in nodes if n["type"] in (OURS, OUR_TEXT)}


def into_prompt(prompt: dict[str, Any], served: Sequence[Finding]) -> list[str]:
    """Put a node before each finding's consumer in a prompt of the API's form; what was done, in sentences."""
    said, made = [], {}
    for finding in served:
        name = finding.consumer.models[0]
        inputs = prompt[finding.consumer.key]["inputs"]
        origin = (str(inputs[name][0]), inputs[name][1])
        if origin not in made:
            taken = [int(part) for key in prompt for part in key.split(":") if part.isdecimal()]
            made[origin] = str(max(taken, default=0) + 1)
            pace, noise = _template()[OURS]["widgets_values"][:2]
            prompt[made[origin]] = {"inputs": {"model": list(inputs[name]), "pace": pace, "noise": noise},
                                    "class_type": OURS, "_meta": {"title": "Carnator Reuse"}}  # fmt: skip
        inputs[name] = [made[origin], 0]
        said.append(f"Carnator Reuse (#{made[origin]}) stands before {finding.consumer}")
    return said


def into_workflow(workflow: dict[str, Any], served: Sequence[Finding]) -> list[str]:
    """The same for the UI's form. Consumers of one output of one graph share a node."""
    said: list[str] = []
    made: dict[tuple[int, Any, Any], dict[str, Any]] = {}
    changed: set[tuple[int, Any]] = set()
    for finding in served:
        assert finding.consumer.graph is not None
        body, number, name = finding.consumer.graph.body, finding.consumer.number, finding.consumer.models[0]
        if (id(body), number) in changed:  # a sub-graph that is used twice is changed once
            continue
        changed.add((id(body), number))
        consumer = _by_id(body, number)
        slot, entry = next((i, e) for i, e in enumerate(consumer["inputs"]) if e["name"] == name and e.get("link") is not None)
        link = next(k for k in body["links"] if _get(k, "id") == entry["link"])
        source = (id(body), _get(link, "origin_id"), _get(link, "origin_slot"))
        if source in made:
            _lead_from(body, link, made[source])
        else:
            made[source] = _insert(workflow, body, link, consumer, slot)
        said.append(f"Carnator Reuse (#{finding.consumer.graph.prefix}{made[source]['id']}) stands before {finding.consumer}")
    return said


def swap_text(served: Sequence[Finding], prompt: dict[str, Any] | None) -> list[str]:
    """Make the positive prompts' CLIP Text Encode nodes Carnator's, which take and give the same. prompt: in the API's form."""
    said: list[str] = []
    for encoder in {e.key: e for f in served for e in f.encoders if e.kind == PLAIN_TEXT}.values():
        if prompt is not None:
            prompt[encoder.key]["class_type"] = OUR_TEXT
        else:
            assert encoder.graph is not None
            node, shape = _by_id(encoder.graph.body, encoder.number), _template()[OUR_TEXT]
            node["type"] = OUR_TEXT
            node["properties"] = {**node.get("properties", {}), **shape["properties"]}
            for output, like in zip(node.get("outputs") or [], shape["outputs"], strict=False):
                output.pop("localized_name", None)
                output["name"] = like["name"]
        said.append(f"{encoder} is a Carnator Text Encode now, which encodes the same")
    return said


def _by_id(body: Mapping[str, Any], number: Any) -> dict[str, Any]:
    return next(n for n in body["nodes"] if n["id"] == number)


_FIELDS = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")


def _get(link: Any, name: str) -> Any:
    return link[name] if isinstance(link, Mapping) else link[_FIELDS.index(name)]


def _set(link: Any, **values: Any) -> None:
    for name, value in values.items():
        link[name if isinstance(link, dict) else _FIELDS.index(name)] = value


def _bodies(workflow: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield workflow  # type: ignore[misc]
    yield from (workflow.get("definitions") or {}).get("subgraphs") or []


def _new_number(workflow: dict[str, Any], body: dict[str, Any], things: str, last: str) -> int:
    """A node's or link's id that nothing in the file has; the counters of the file and of the graph are moved on."""
    state = "lastNodeId" if things == "nodes" else "lastLinkId"
    taken = [_get(t, "id") for b in _bodies(workflow) for t in b.get(things) or []]
    taken += [workflow.get(last)] + [(b.get("state") or {}).get(state) for b in _bodies(workflow)]
    number = max((t for t in taken if isinstance(t, int)), default=0) + 1
    for one in _bodies(workflow):
        if isinstance(one.get("state"), dict):
            one["state"][state] = number
    if last in workflow or "state" not in workflow:
        workflow[last] = number
    return number


def _insert(workflow: dict[str, Any], body: dict[str, Any], link: Any, consumer: dict[str, Any], slot: int) -> dict[str, Any]:
    """A new node in the middle of a wire; the wire keeps its id, and its bends, on the way to our node."""
    node = copy.deepcopy(_template()[OURS])
    node["id"] = _new_number(workflow, body, "nodes", "last_node_id")
    after = _new_number(workflow, body, "links", "last_link_id")
    node["order"] = consumer.get("order", 0)
    node["inputs"][0]["link"], node["outputs"][0]["links"] = _get(link, "id"), [after]
    new = copy.deepcopy(link)
    _set(new, id=after, origin_id=node["id"], origin_slot=0, target_id=consumer["id"], target_slot=slot, type="MODEL")
    if isinstance(new, dict):
        new.pop("parentId", None)
    _set(link, target_id=node["id"], target_slot=0)
    consumer["inputs"][slot]["link"] = after
    body["links"].append(new)
    node["pos"] = _free_place(body, consumer, *node["size"])
    body["nodes"].append(node)
    return node


def _lead_from(body: dict[str, Any], link: Any, node: dict[str, Any]) -> None:
    """Let an existing wire begin at our node instead of at what feeds our node."""
    number, origin, slot = _get(link, "id"), _get(link, "origin_id"), _get(link, "origin_slot")
    ends = body["inputs"][slot]["linkIds"] if origin == OUTSIDE_IN else _by_id(body, origin)["outputs"][slot]["links"]
    if number in (ends or []):
        ends.remove(number)
    _set(link, origin_id=node["id"], origin_slot=0)
    node["outputs"][0]["links"].append(number)


def pair(value: Any) -> tuple[float, float]:
    """A place or size as the UI writes it: a list, or an object with the keys "0" and "1"."""
    if isinstance(value, Mapping):
        value = [value.get("0"), value.get("1")]
    given = [v if isinstance(v, int | float) else 0.0 for v in value] if isinstance(value, list) else []
    return (float(given[0]), float(given[1])) if len(given) >= 2 else (0.0, 0.0)


def rectangle(node: Mapping[str, Any]) -> Rectangle:
    """What a node covers, its title bar with it."""
    (x, y), (width, height) = pair(node.get("pos")), pair(node.get("size"))
    return x, y - TITLE_BAR, x + width, y + height


def overlap(one: Rectangle, other: Rectangle) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _free_place(body: Mapping[str, Any], consumer: Mapping[str, Any], width: float, height: float) -> list[float]:
    """Where nothing else lies, near the left of the node that it feeds; in no group that this node is not in."""
    taken = [rectangle(node) for node in body["nodes"]]
    taken += [_bounds(body[border]) for border in ("inputNode", "outputNode") if isinstance(body.get(border), Mapping)]
    x, y = pair(consumer.get("pos"))
    for group in body.get("groups") or []:
        bounds = _bounds(group)
        if not overlap(bounds, (x, y, x + 1, y + 1)):
            taken.append(bounds)
    left, top = x - width - GAP, y
    for ring in range(200):
        for across in range(-ring, ring + 1):
            for down in (-ring, ring) if abs(across) < ring else range(-ring, ring + 1):
                place = left + across * STRIDE, top + down * STRIDE
                covered = place[0] - GAP, place[1] - TITLE_BAR - GAP, place[0] + width + GAP, place[1] + height + GAP
                if not any(overlap(covered, t) for t in taken):
                    return [round(place[0]), round(place[1])]
    return [round(min(t[0] for t in taken)), round(max(t[3] for t in taken)) + TITLE_BAR + GAP]


def _bounds(thing: Mapping[str, Any]) -> Rectangle:
    given = thing.get("bounding")
    x, y, width, height = given if isinstance(given, list) and len(given) == 4 else (0, 0, 0, 0)
    return x, y, x + width, y + height
