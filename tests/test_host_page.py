"""What nodes tell the page, on a running host: of the prompt that is rendered now, and to the page that queued it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carnator.demo.events import Events
from carnator.demo.graph import to_prompt

pytestmark = pytest.mark.host

ROOT = Path(__file__).resolve().parent.parent
FIRST, SECOND = "a red ball moving right on snow", "a blue ball moving right on snow"


@pytest.fixture(scope="module")
def queued(host: Any) -> Iterator[Events]:
    """The page that queues."""
    with Events(host.url) as events:
        yield events


@pytest.fixture(scope="module")
def plain(host: Any) -> dict[str, Any]:
    """The demo's graph with the host's own CLIP Text Encode, with few steps."""
    workflow = json.loads((ROOT / "workflows" / "carnator_demo_one_node.json").read_text(encoding="utf-8"))
    graph = to_prompt(workflow, host.object_info())
    for node in graph.values():
        if node["class_type"] == "CarnatorTextEncode":
            node["class_type"] = "CLIPTextEncode"
        if node["class_type"] == "KSampler":
            node["inputs"] |= {"steps": 12, "cfg": 4.1}
    return graph


def with_prompt(graph: dict[str, Any], text: str) -> dict[str, Any]:
    made = copy.deepcopy(graph)
    (sampler,) = [n for n in made.values() if n["class_type"] == "KSampler"]
    made[sampler["inputs"]["positive"][0]]["inputs"]["text"] = text
    return made


def executed(host: Any, graph: dict[str, Any]) -> set[str]:
    """Types of the nodes that ran when `graph` was queued."""
    messages = dict(host.run(graph)["status"]["messages"])
    return {n["class_type"] for i, n in graph.items() if i not in messages["execution_cached"]["nodes"]}


def test_a_plain_prompt_that_changes_is_read_anew_though_the_node_is_cached(host: Any, plain: dict[str, Any],
                                                                            queued: Events) -> None:
    host.run(with_prompt(plain, FIRST))
    mark = len(queued.seen)
    ran = executed(host, with_prompt(plain, SECOND))
    assert "KSampler" in ran and "CarnatorReuse" not in ran, "the host keeps the patched model: only the prompt changed"
    (summary,) = queued.since(mark, "carnator.summary")
    assert summary["prompt"] == SECOND
    assert executed(host, with_prompt(plain, SECOND)) == set(), "the same graph once more runs nothing"


def test_only_the_page_that_queued_hears_of_it(host: Any, plain: dict[str, Any], queued: Events) -> None:
    with Events(host.url, client="another") as other:
        mark = len(queued.seen)
        host.run(with_prompt(plain, "a green star on grass"))
        lines = [m["text"] for m in queued.since(mark, "carnator.status")]
        assert any(line.startswith("probing ") for line in lines)
        assert len(queued.since(mark, "carnator.summary")) == 1
    assert not [m for m in other.seen if m[1].startswith("carnator")]
