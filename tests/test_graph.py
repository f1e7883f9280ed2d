"""A workflow file becomes the prompt that ComfyUI's front end would send, whatever stands in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carnator.demo.graph import to_prompt
from carnator.demo.wires import BYPASSED, MUTED, GraphError

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).parent / "data" / "workflows"
OFFICIAL = ("text_to_video_wan", "video_wan2_2_14B_t2v")
SAMPLER, SHIFT, LOADER, DECODE, VAE, CREATE, SAVE = 3, 48, 37, 8, 39, 49, 50


def read(name: str) -> Any:
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture
def workflow() -> dict[str, Any]:
    return copy.deepcopy(read("text_to_video_wan"))


def node(workflow: dict[str, Any], number: int) -> dict[str, Any]:
    return next(n for n in workflow["nodes"] if n["id"] == number)


def prompt(workflow: dict[str, Any]) -> dict[str, Any]:
    return to_prompt(workflow, read("object_info"))


def insert(workflow: dict[str, Any], link: int, new: dict[str, Any]) -> None:
    """Put a node with one input and one output into the middle of a wire."""
    wire = next(k for k in workflow["links"] if k[0] == link)
    after = workflow["last_link_id"] = workflow["last_link_id"] + 1
    workflow["nodes"].append(new)
    workflow["links"].append([after, new["id"], 0, wire[3], wire[4], wire[5]])
    node(workflow, wire[3])["inputs"][wire[4]]["link"] = after
    wire[3:5] = [new["id"], 0]
    new["inputs"][0]["link"] = link
    new["outputs"][0]["links"] = [after]


def reroute(number: int, kind: str) -> dict[str, Any]:
    ends: dict[str, Any] = {"inputs": [{"name": "", "type": "*", "link": None}]}
    ends["outputs"] = [{"name": kind, "type": kind, "links": []}]
    return {"id": number, "type": "Reroute", "pos": [0, 0], "size": [75, 26], "mode": 0, **ends, "properties": {}}


def give_steps(workflow: dict[str, Any], value: int) -> None:
    """Turn the sampler's `steps` into an input and feed it from a primitive, as the UI's files write that."""
    node(workflow, SAMPLER)["inputs"].append({"name": "steps", "type": "INT", "widget": {"name": "steps"}, "link": 200})
    output = {"name": "INT", "type": "INT", "links": [200], "widget": {"name": "steps"}}
    primitive = {"id": 60, "type": "PrimitiveNode", "pos": [0, 0], "size": [210, 80], "mode": 0, "inputs": []}
    workflow["nodes"].append(primitive | {"outputs": [output], "properties": {}, "widgets_values": [value, "fixed"]})
    workflow["links"].append([200, 60, 0, SAMPLER, 4, "INT"])


def test_official_files_become_what_the_front_end_sends() -> None:
    for name in OFFICIAL:
        made, sent = prompt(read(name)), read(f"{name}.prompt")
        assert made.keys() == sent.keys(), name
        for number, entry in sent.items():
            assert made[number]["class_type"] == entry["class_type"]
            assert made[number]["inputs"] == entry["inputs"], (name, number, entry["class_type"])


def test_the_control_after_a_seed_is_no_input(workflow: dict[str, Any]) -> None:
    inputs = prompt(workflow)[str(SAMPLER)]["inputs"]
    assert (inputs["seed"], inputs["steps"], inputs["cfg"]) == (82628696717253, 30, 6)
    assert "randomize" not in inputs.values()
    node(workflow, SAMPLER)["widgets_values"].remove("randomize")  # files of the time before that widget
    assert prompt(workflow)[str(SAMPLER)]["inputs"] == inputs


def test_a_bypassed_node_hands_its_input_on(workflow: dict[str, Any]) -> None:
    node(workflow, SHIFT)["mode"] = BYPASSED
    made = prompt(workflow)
    assert str(SHIFT) not in made
    assert made[str(SAMPLER)]["inputs"]["model"] == [str(LOADER), 0]


def test_a_bypassed_node_hands_on_only_what_fits(workflow: dict[str, Any]) -> None:
    node(workflow, DECODE)["mode"] = BYPASSED
    assert "images" not in prompt(workflow)[str(CREATE)]["inputs"], "neither a latent nor a VAE is an image"


def test_a_muted_node_takes_its_wires_with_it(workflow: dict[str, Any]) -> None:
    node(workflow, SHIFT)["mode"] = MUTED
    made = prompt(workflow)
    assert str(SHIFT) not in made
    assert "model" not in made[str(SAMPLER)]["inputs"]
    assert made[str(SAMPLER)]["inputs"]["positive"] == ["6", 0]


def test_reroutes_vanish(workflow: dict[str, Any]) -> None:
    plain = prompt(workflow)
    insert(workflow, 76, reroute(61, "VAE"))
    insert(workflow, 76, reroute(62, "VAE"))
    assert prompt(workflow) == plain


def test_a_primitive_gives_its_value(workflow: dict[str, Any]) -> None:
    give_steps(workflow, 12)
    made = prompt(workflow)
    assert made[str(SAMPLER)]["inputs"]["steps"] == 12
    assert "60" not in made


def test_comments_and_unwired_helpers_are_left_out(workflow: dict[str, Any]) -> None:
    plain = prompt(workflow)
    empty: dict[str, Any] = {"mode": 0, "inputs": [], "outputs": [], "properties": {}, "widgets_values": ["look here"]}
    for number, kind in enumerate(("Note", "MarkdownNote", "Fast Groups Bypasser (rgthree)"), 70):
        workflow["nodes"].append({"id": number, "type": kind, **empty})
    assert prompt(workflow) == plain


def test_a_missing_node_is_named(workflow: dict[str, Any]) -> None:
    node(workflow, SHIFT)["type"] = "TeaCache"
    with pytest.raises(GraphError, match="TeaCache"):
        prompt(workflow)
    node(workflow, SHIFT)["mode"] = BYPASSED
    assert prompt(workflow)[str(SAMPLER)]["inputs"]["model"] == [str(LOADER), 0], "bypassed, it need not exist"


def test_values_that_a_file_lacks_are_the_nodes_defaults(workflow: dict[str, Any]) -> None:
    node(workflow, SAVE)["widgets_values"] = ["clips/fox"]
    inputs = prompt(workflow)[str(SAVE)]["inputs"]
    assert inputs == {"filename_prefix": "clips/fox", "format": "auto", "codec": "auto", "video": [str(CREATE), 0]}


def test_a_choice_brings_its_own_widgets(workflow: dict[str, Any]) -> None:
    node(workflow, SAVE)["widgets_values"] = ["clips/fox", "mp4", "h264", "re-encode", 31]
    inputs = prompt(workflow)[str(SAVE)]["inputs"]
    assert inputs["codec"] == "h264"
    assert inputs["codec.encoding"] == "re-encode"
    assert inputs["codec.encoding.crf"] == 31


def test_values_by_name_and_lists_are_understood(workflow: dict[str, Any]) -> None:
    node(workflow, SHIFT)["widgets_values"] = {"shift": 5}
    assert prompt(workflow)[str(SHIFT)]["inputs"]["shift"] == 5
    node(workflow, SHIFT)["widgets_values"] = [["48", 0]]
    assert prompt(workflow)[str(SHIFT)]["inputs"]["shift"] == {"__value__": ["48", 0]}, (
        "a list must not look like a wire"
    )


@pytest.fixture(scope="module")
def page(host: Any, chromium: Path) -> Iterator[Any]:
    """ComfyUI's own front end, open in a browser."""
    from playwright.sync_api import sync_playwright

    flags = ["--headless=new", "--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        opened = browser.new_page()
        opened.goto(host.url)
        opened.wait_for_function("window.app?.extensionManager && window.app.canvas?.graph", timeout=180_000)
        yield opened
        browser.close()


def _variants() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in OFFICIAL:
        yield name, read(name)
    for path in sorted((ROOT / "workflows").glob("*.json")):
        yield path.stem, json.loads(path.read_text(encoding="utf-8"))
    changed = read("text_to_video_wan")
    node(changed, SHIFT)["mode"] = BYPASSED
    insert(changed, 76, reroute(61, "VAE"))
    give_steps(changed, 12)
    yield "bypassed, rerouted, primitive", changed
    muted = read("text_to_video_wan")
    node(muted, SHIFT)["mode"] = MUTED
    yield "muted", muted


@pytest.mark.host
@pytest.mark.browser
def test_the_front_end_agrees(page: Any, host: Any) -> None:
    ask = "async (w) => { await window.app.loadGraphData(w); return (await window.app.graphToPrompt()).output }"
    for name, workflow in _variants():
        sent = page.evaluate(ask, workflow)
        made = to_prompt(workflow, host.object_info())
        assert {k: (v["class_type"], v["inputs"]) for k, v in made.items()} == {
            k: (v["class_type"], v["inputs"]) for k, v in sent.items()
        }, name
