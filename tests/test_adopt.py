"""The pack's node gets into workflows that people share, where it belongs, and declines in words where it would not serve."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from carnator.demo.adopt import Adopted, AdoptError, adopt, main, read
from carnator.demo.graph import to_prompt
from carnator.demo.insert import overlap, rectangle
from carnator.demo.lines import OURS, Flow
from carnator.demo.wires import BYPASSED, MUTED
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from wild import CASES, DATA, Case

ROOT = Path(__file__).resolve().parent.parent
cases = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
SAMPLER, SHIFT, LOADER, TEXT, NEGATIVE, LATENT = 3, 48, 37, 6, 7, 40


@pytest.fixture
def workflow() -> dict[str, Any]:
    return CASES[0].read()


def node(body: Mapping[str, Any], number: Any) -> dict[str, Any]:
    return next(n for n in body["nodes"] if n["id"] == number)


def bodies(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [workflow, *(workflow.get("definitions") or {}).get("subgraphs", [])]  # type: ignore[list-item]


def ours(workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [n for b in bodies(workflow) for n in b["nodes"] if n["type"] == OURS]


def changed(result: Adopted) -> dict[str, Any]:
    assert result.workflow is not None, result.declined
    return result.workflow


def field(link: Any, name: str) -> Any:
    names = ("id", "origin_id", "origin_slot", "target_id", "target_slot")
    return link[name] if isinstance(link, dict) else link[names.index(name)]


def check(workflow: Mapping[str, Any]) -> None:
    """Every wire is known at both of its ends; ids are used once and lie under the counters; ours cover nothing."""
    numbers = [n["id"] for b in bodies(workflow) for n in b["nodes"]]
    assert workflow["last_node_id"] >= max(numbers) and all(numbers.count(n["id"]) == 1 for n in ours(workflow))
    for body in bodies(workflow):
        links = {field(k, "id"): k for k in body["links"]}
        assert len(links) == len(body["links"]) and workflow["last_link_id"] >= max(links, default=0)
        if "state" in body:
            assert body["state"]["lastNodeId"] >= max((n["id"] for n in body["nodes"]), default=0)
            assert body["state"]["lastLinkId"] >= max(links, default=0)
        for number, link in links.items():
            target, slot = field(link, "target_id"), field(link, "target_slot")
            if target != -20:
                assert node(body, target)["inputs"][slot]["link"] == number
            origin, out = field(link, "origin_id"), field(link, "origin_slot")
            ends = body["inputs"][out]["linkIds"] if origin == -10 else node(body, origin)["outputs"][out]["links"]
            assert number in ends
        for one in body["nodes"]:
            held = [i["link"] for i in one["inputs"] if i.get("link") is not None]
            assert set(held) <= set(links)
            if one["type"] == OURS:
                assert not [n for n in body["nodes"] if n is not one and overlap(rectangle(one), rectangle(n))]


def model_source(workflow: Mapping[str, Any], key: str) -> str:
    """The type of the node that feeds a node's model, as the front end resolves it."""
    flow = Flow.of_ui(workflow)
    source = flow.source(flow.nodes[key], "model")
    assert source is not None
    return source.kind


@cases
def test_each_shared_file_is_judged_and_changed_where_it_belongs(case: Case) -> None:
    before = case.read()
    given = copy.deepcopy(before)
    result = adopt(given)
    assert given == before, "the given workflow is not touched"
    if case.reason:
        assert result.workflow is None and result.declined and all(case.reason in r for r in result.declined[:1])
        return
    made = changed(result)
    check(made)
    assert len(ours(made)) == len(case.before) == len(result.done) and not result.declined
    flow = Flow.of_ui(made)
    for key in case.before:
        consumer = flow.nodes[key]
        assert model_source(made, key) == OURS
        here, was = flow.source(consumer, "model"), Flow.of_ui(before)
        assert here is not None
        assert here.wire("model") == was.nodes[key].wire("model"), "it stands in the middle of the old wire"


@cases
def test_nothing_but_the_wire_is_changed(case: Case) -> None:
    made = adopt(case.read(), anyway=True).workflow
    assert made is not None
    was = case.read()
    for old, new in zip(bodies(was), bodies(made), strict=True):
        kept = {n["id"]: n for n in new["nodes"]}
        for one in old["nodes"]:
            for mine in (one, kept[one["id"]]):
                for slot in [*(mine.get("inputs") or []), *(mine.get("outputs") or [])]:
                    slot.pop("link", None), slot.pop("links", None)
            assert kept[one["id"]] == one | {n: [] for n in ("inputs", "outputs") if not one.get(n)}


@cases
def test_the_api_s_form_gets_the_same_node_in_the_same_place(case: Case) -> None:
    """The prompt of the changed file is the changed prompt of the file, but for the numbers of our nodes."""
    info = known_nodes(case.read())
    given, result = to_prompt(case.read(), info), adopt(case.read())
    from_prompt = adopt(given)
    assert (from_prompt.workflow is None) == (result.workflow is None)
    assert len(from_prompt.declined) == len(result.declined)
    if result.workflow is not None:
        assert stripped(from_prompt.workflow) == stripped(to_prompt(result.workflow, {**info, OURS: REUSE_INFO}))


REUSE_INFO: dict[str, Any] = {"input": {"required": {"model": ["MODEL", {}], "pace": [["balanced"], {}],
                                                     "noise": [["any seed (fastest)"], {}]}}}


def known_nodes(workflow: dict[str, Any]) -> dict[str, Any]:
    """Just as much of /object_info as the file itself tells: the values that the script looks at, and the wires."""
    from carnator.demo.lines import WIDGETS

    info: dict[str, Any] = {}
    for body in bodies(workflow):
        for one in body["nodes"]:
            names = [n for n in WIDGETS.get(one["type"], ()) if n]
            spec = {n: ["INT" if n in ("seed", "noise_seed") else "COMBO", {}] for n in names}
            if one["type"] not in ("Note", "MarkdownNote", "Reroute", "PrimitiveNode"):
                info[one["type"]] = {"input": {"required": spec}}
    for definition in (workflow.get("definitions") or {}).get("subgraphs", []):
        info.pop(definition["id"], None)
    return info


def stripped(prompt: Any) -> Any:
    """A prompt with our nodes replaced by what they say, wherever they are wired to something."""
    shown = {k: v for k, v in prompt.items() if v["class_type"] != OURS}
    mine = {k: v["inputs"] for k, v in prompt.items() if v["class_type"] == OURS}
    return {k: {n: mine[v[0]] if isinstance(v, list) and v[0] in mine else v for n, v in e["inputs"].items()}
            for k, e in shown.items()}


def test_what_would_step_aside_is_put_in_when_it_is_asked_for() -> None:
    for case in CASES:
        result = adopt(case.read(), anyway=True)
        made = changed(result)
        check(made)
        assert ours(made) and bool(result.declined) == bool(case.reason)


def test_a_second_time_there_is_nothing_to_do(workflow: dict[str, Any]) -> None:
    made = changed(adopt(workflow))
    for anyway in (False, True):
        again = adopt(made, anyway=anyway)
        assert again.workflow is None and "is in its MODEL line already" in again.declined[0]


def test_the_encoder_is_swapped_when_it_is_asked_for(workflow: dict[str, Any]) -> None:
    made = changed(adopt(workflow, text=True))
    check(made)
    assert node(made, TEXT)["type"] == "CarnatorTextEncode" and node(made, NEGATIVE)["type"] == "CLIPTextEncode"
    assert node(made, TEXT)["widgets_values"] == node(workflow, TEXT)["widgets_values"]
    assert node(made, TEXT)["outputs"][0]["name"] == "conditioning"
    assert node(made, TEXT)["properties"]["Node name for S&R"] == "CarnatorTextEncode"
    prompt = changed(adopt(json.loads((DATA / "text_to_video_wan.prompt.json").read_text()), text=True))
    assert (prompt["6"]["class_type"], prompt["7"]["class_type"]) == ("CarnatorTextEncode", "CLIPTextEncode")
    assert node(changed(adopt(workflow)), TEXT)["type"] == "CLIPTextEncode"


def rewire(workflow: dict[str, Any], new: dict[str, Any], link: int) -> int:
    """Put a node (one input, one output) into a wire; the number of the wire behind it."""
    wire = next(k for k in workflow["links"] if k[0] == link)
    after = workflow["last_link_id"] = workflow["last_link_id"] + 1
    workflow["nodes"].append(new)
    workflow["links"].append([after, new["id"], 0, wire[3], wire[4], wire[5]])
    node(workflow, wire[3])["inputs"][wire[4]]["link"] = after
    wire[3:5] = [new["id"], 0]
    new["inputs"][0]["link"], new["outputs"][0]["links"] = link, [after]
    return after


def made_node(number: int, kind: str, slot: str = "MODEL", name: str = "model", **more: Any) -> dict[str, Any]:
    return {"id": number, "type": kind, "pos": [500, -200], "size": [200, 60], "mode": 0, "order": 0, "properties": {},
            "inputs": [{"name": name, "type": slot, "link": None}],
            "outputs": [{"name": slot, "type": slot, "links": []}], **more}


MODEL_WIRE, LATENT_WIRE = 95, 91


def test_reroutes_and_named_wires_are_followed(workflow: dict[str, Any]) -> None:
    rewire(workflow, made_node(60, "Reroute", "*", ""), MODEL_WIRE)
    rewire(workflow, made_node(61, "SetNode", "MODEL", "MODEL", widgets_values=["shifted"]), MODEL_WIRE)
    getter = made_node(62, "GetNode", widgets_values=["shifted"])
    getter["inputs"] = []
    link = node(workflow, 60)["inputs"][0]["link"]
    wire = next(k for k in workflow["links"] if k[0] == link)  # from the Set node to the reroute: now from the Get node
    wire[1] = 62
    node(workflow, 61)["outputs"][0]["links"], getter["outputs"][0]["links"] = [], [link]
    workflow["nodes"].append(getter)
    workflow["last_node_id"] = 62
    made = changed(adopt(workflow))
    check(made)
    assert model_source(made, "3") == OURS
    assert model_source(made, str(ours(made)[0]["id"])) == "ModelSamplingSD3"
    assert field(next(k for k in made["links"] if field(k, "target_id") == ours(made)[0]["id"]), "origin_id") == 60


def test_a_cache_behind_a_named_wire_is_seen(workflow: dict[str, Any]) -> None:
    rewire(workflow, made_node(60, "EasyCache"), MODEL_WIRE)
    assert "EasyCache (#60) is in its MODEL line" in adopt(workflow).declined[0]
    node(workflow, 60)["mode"] = BYPASSED
    check(changed(adopt(workflow)))


def second_sampler(workflow: dict[str, Any], number: int = 60, latent: int | None = None, **changes: Any) -> dict[str, Any]:
    """Another KSampler on the same model, conditioning and (unless `latent` gives a node) empty latent."""
    new = copy.deepcopy(node(workflow, SAMPLER)) | {"id": number, "pos": [1600, 900]} | changes
    workflow["nodes"].append(new)
    workflow["last_node_id"] = max(workflow["last_node_id"], number)
    for slot, entry in enumerate(new["inputs"]):
        wire = next(k for k in workflow["links"] if k[0] == entry["link"])
        source, out = (latent, 0) if latent is not None and entry["name"] == "latent_image" else (wire[1], wire[2])
        workflow["last_link_id"] += 1
        workflow["links"].append([workflow["last_link_id"], source, out, number, slot, wire[5]])
        entry["link"] = workflow["last_link_id"]
        node(workflow, source)["outputs"][out]["links"].append(entry["link"])
    new["outputs"][0]["links"] = []
    return new


def test_samplers_on_one_model_share_a_node(workflow: dict[str, Any]) -> None:
    second_sampler(workflow)
    result = adopt(workflow)
    made = changed(result)
    check(made)
    assert len(ours(made)) == 1 and len(result.done) == 2 and len(ours(made)[0]["outputs"][0]["links"]) == 2
    assert model_source(made, "3") == model_source(made, "60") == OURS


def test_a_second_pass_is_left_alone(workflow: dict[str, Any]) -> None:
    second_sampler(workflow, latent=SAMPLER)
    result = adopt(workflow)
    check(changed(result))
    assert model_source(changed(result), "3") == OURS and model_source(changed(result), "60") == "ModelSamplingSD3"
    assert len(result.declined) == 1 and "a second pass" in result.declined[0]


@pytest.mark.parametrize("mode", [MUTED, BYPASSED])
def test_what_does_not_run_is_not_looked_at(mode: int, workflow: dict[str, Any]) -> None:
    second_sampler(workflow, mode=mode)
    assert len(adopt(workflow).done) == 1
    node(workflow, SAMPLER)["mode"] = mode
    assert "SamplerCustomAdvanced runs in it" in adopt(workflow).declined[0]


def test_one_half_of_a_pair_is_never_changed_alone() -> None:
    workflow = CASES[4].read()
    wire = next(k for k in workflow["links"] if k[3] == 58 and k[5] == "MODEL")
    rewire(workflow, made_node(70, "TeaCache"), wire[0])
    workflow["last_node_id"] = 70
    result = adopt(workflow)
    assert result.workflow is None and len(result.declined) == 2
    assert sorted("is the other half of its render" in r for r in result.declined) == [False, True]


def latent_of(kind: str, values: list[Any] | None = None) -> Callable[[dict[str, Any]], None]:
    def change(workflow: dict[str, Any]) -> None:
        node(workflow, LATENT).update(type=kind, widgets_values=values or [832, 480, 33, 1])
    return change


def between(kind: str, link: int, slot: str) -> Callable[[dict[str, Any]], None]:
    def change(workflow: dict[str, Any]) -> None:
        rewire(workflow, made_node(90, kind, slot, {"LATENT": "samples", "CONDITIONING": "conditioning"}.get(slot, "model")), link)
    return change


def values(number: int, values: list[Any]) -> Callable[[dict[str, Any]], None]:
    return lambda workflow: node(workflow, number).update(widgets_values=values)


def unwired(name: str) -> Callable[[dict[str, Any]], None]:
    def change(workflow: dict[str, Any]) -> None:
        entry = next(i for i in node(workflow, SAMPLER)["inputs"] if i["name"] == name)
        entry["link"] = None
    return change


DECLINED: dict[str, tuple[Callable[[dict[str, Any]], None], str]] = {
    "a picture's latent": (latent_of("EmptyLatentImage"), "no latent of Wan or LTX-Video"),
    "another video model": (latent_of("EmptyMochiLatentVideo"), "no latent of Wan or LTX-Video"),
    "a latent nobody knows": (latent_of("MyLatent"), "cannot be told from the file"),
    "pictures": (latent_of("WanFirstLastFrameToVideo"), "image-to-video"),
    "a mask": (between("SetLatentNoiseMask", LATENT_WIRE, "LATENT"), "noise mask"),
    "a larger latent": (between("LatentUpscale", LATENT_WIRE, "LATENT"), "second pass"),
    "two videos": (values(LATENT, [832, 480, 33, 2]), "a batch of 2 videos"),
    "a part of the noise": (values(SAMPLER, [7, "fixed", 30, 6, "uni_pc", "simple", 0.6]), "its denoise is 0.6"),
    "another encoder": (values(38, ["x.safetensors", "flux", "default"]), "the text encoder of flux"),
    "mixed families": (values(38, ["x.safetensors", "ltxv", "default"]), "another model's latent"),
    "several prompts": (between("ConditioningSetTimestepRange", 46, "CONDITIONING"), "more than one plain prompt"),
    "windows": (between("WanContextWindowsManual", MODEL_WIRE, "MODEL"), "renders in windows"),
    "no model": (unwired("model"), "no model is wired"),
    "no prompt": (unwired("positive"), "no positive conditioning is wired"),
    "no latent": (unwired("latent_image"), "no latent is wired"),
}


@pytest.mark.parametrize("name", DECLINED)
def test_a_reason_for_each_kind_that_it_does_not_serve(name: str, workflow: dict[str, Any]) -> None:
    change, words = DECLINED[name]
    change(workflow)
    result = adopt(workflow)
    assert result.workflow is None and len(result.declined) == 1 and words in result.declined[0]


def test_a_guider_with_passes_of_its_own() -> None:
    workflow = CASES[13].read()
    node(workflow, 135)["type"] = "STGGuiderAdvanced"
    assert "STGGuiderAdvanced guides with passes of its own" in adopt(workflow).declined[0]


def test_names_of_model_files_decide_nothing(workflow: dict[str, Any]) -> None:
    node(workflow, LOADER)["widgets_values"] = ["flux1-dev-image-to-video-hunyuan.safetensors", "default"]
    check(changed(adopt(workflow)))
    node(workflow, 38)["type"] = "SomeOtherTextLoader"
    result = adopt(workflow)
    assert changed(result) and "cannot be told from the file" in result.notes[0]


def test_a_picture_that_is_bypassed_is_none() -> None:
    workflow = CASES[10].read()
    assert node(workflow, 56)["mode"] == BYPASSED and changed(adopt(workflow))
    node(workflow, 56)["mode"] = 0
    latent = node(workflow, 55)
    entry = next(i for i in latent["inputs"] if i["name"] == "start_image")
    if entry["link"] is None:
        workflow["last_link_id"] += 1
        entry["link"] = workflow["last_link_id"]
        workflow["links"].append([entry["link"], 56, 0, 55, latent["inputs"].index(entry), "IMAGE"])
        node(workflow, 56)["outputs"][0]["links"] = [entry["link"]]
    assert "starts from a picture (start_image)" in adopt(workflow).declined[0]


def test_a_prompt_as_it_is_posted_stays_wrapped() -> None:
    prompt = json.loads((DATA / "text_to_video_wan.prompt.json").read_text())
    made = changed(adopt({"prompt": prompt, "client_id": "x"}))
    assert made["client_id"] == "x" and made["prompt"]["3"]["inputs"]["model"] == ["51", 0]
    assert made["prompt"]["51"] == {"class_type": OURS, "_meta": {"title": "Carnator Reuse"},
                                    "inputs": {"model": ["48", 0], "pace": "balanced", "noise": "any seed (fastest)"}}


def damaged() -> Iterator[tuple[str, str, str]]:
    """(name, text, words of the sentence)"""
    yield "empty", "", "not JSON"
    yield "a page", "<!doctype html><html></html>", "not JSON"
    yield "cut", '{"nodes": [', "not JSON"
    yield "a list", "[1, 2]", "a list, not a workflow"
    yield "a number", "7", "a number, not a workflow"
    yield "nothing", "{}", "neither a workflow of the UI"
    yield "not a number", '{"nodes": [NaN]}', "NaN, which is not JSON"
    yield "deep", '{"nodes": ' + "[" * 200_000, "nested too deeply"
    yield "digits", '{"nodes": ' + "1" * 10_000 + "}", "not JSON"
    yield "nodes of text", '{"nodes": ["x"], "links": []}', "a node has no id"
    yield "no type", '{"nodes": [{"id": 1}], "links": []}', "a node has no id or no type"
    yield "ids", '{"nodes": [{"id": 1, "type": "A"}, {"id": 1, "type": "B"}]}', "two nodes have the same id"
    yield "a wire from nowhere", '{"nodes": [{"id": 1, "type": "A"}], "links": [[1, 9, 0, 1, 0, "X"]]}', "not there"
    yield "a wire of text", '{"nodes": [], "links": ["x"]}', "a wire is not written"
    yield "no list", '{"nodes": [], "links": 5}', "links is not a list"
    yield "sub-graphs", '{"nodes": [], "definitions": {"subgraphs": [5]}}', "sub-graphs are not a list"
    yield "inputs", '{"1": {"class_type": "A", "inputs": [1]}}', "inputs of node 1 are not an object"
    inside = {"id": 5, "type": "me", "outputs": []}
    whole = {"nodes": [inside], "definitions": {"subgraphs": [{"id": "me", "nodes": [inside], "inputs": [], "outputs": []}]}}
    yield "itself", json.dumps(whole), "holds itself"
    circle = [{"id": i, "type": "Reroute", "inputs": [{"name": "", "type": "*", "link": i}],
               "outputs": [{"name": "", "type": "*", "links": [3 - i]}]} for i in (1, 2)]
    sampler = {"id": 3, "type": "KSampler", "inputs": [{"name": "model", "type": "MODEL", "link": 3}]}
    links = [[1, 2, 0, 1, 0, "*"], [2, 1, 0, 2, 0, "*"], [3, 1, 0, 3, 0, "*"]]
    yield "a circle", json.dumps({"nodes": [*circle, sampler], "links": links}), "run in a circle"


@pytest.mark.parametrize(("name", "text", "words"), damaged(), ids=lambda v: v if len(str(v)) < 25 else "")
def test_a_broken_file_gets_one_sentence(name: str, text: str, words: str, tmp_path: Path,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.json"
    file.write_text(text)
    assert main([str(file)]) == 2
    shown = capsys.readouterr()
    assert words in shown.err and shown.err.count("\n") == 1 and shown.out == ""
    assert list(tmp_path.iterdir()) == [file]


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from parts(inner, (*path, key))


WHOLE = {name: CASES[index].read() for name, index in (("flat", 0), ("nested", 1))}
PLACES = {name: list(parts(whole))[1:] for name, whole in WHOLE.items()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow],
          phases=[Phase.explicit, Phase.reuse, Phase.generate])  # shrinking a whole file takes minutes
@given(st.data())
def test_whatever_is_broken_in_a_file_it_is_changed_or_refused_in_words(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(WHOLE)))
    workflow = copy.deepcopy(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 3))):
        *way, last = data.draw(st.sampled_from(PLACES[name]))
        here = workflow
        try:
            for step in way:
                here = here[step]
            here[last] = data.draw(st.sampled_from([None, -1, 10**9, "", "x", [], {}, [0, 0], {"id": 3}, True, 0.5]))
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        result = adopt(workflow, text=True)
    except AdoptError as error:
        assert str(error) and "\n" not in str(error)
    else:
        assert result.workflow is not None or result.declined
        json.dumps(result.workflow)


def test_the_command_writes_beside_the_file_and_says_what_it_did(tmp_path: Path, workflow: dict[str, Any]) -> None:
    file = tmp_path / "fox \u96ea.json"
    file.write_text("\ufeff" + json.dumps(workflow), encoding="utf-8")
    command = [sys.executable, str(ROOT / "run.py"), "adopt"]
    done = subprocess.run([*command, file.name, "--text"], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr
    assert "Carnator Reuse (#51) stands before KSampler (#3)" in done.stdout and "Carnator Text Encode now" in done.stdout
    written = read((tmp_path / "fox \u96ea_carnator.json").read_text(encoding="utf-8"))
    assert written == changed(adopt(workflow, text=True))
    assert read(file.read_text(encoding="utf-8-sig")) == workflow
    elsewhere = subprocess.run([*command, file.name, "--out", "there.json"], cwd=tmp_path, check=False, capture_output=True)
    assert elsewhere.returncode == 0 and (tmp_path / "there.json").is_file()


def test_the_command_writes_nothing_when_it_declines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "i2v.json"
    file.write_text(json.dumps(CASES[7].read()))
    assert main([str(file)]) == 1
    shown = capsys.readouterr().out
    assert "Not put in: KSampler (#3)" in shown and "image-to-video" in shown and "Nothing was written" in shown
    assert list(tmp_path.iterdir()) == [file]
    assert main([str(file), "--anyway"]) == 0
    assert "Carnator will step aside: KSampler (#3)" in capsys.readouterr().out


def test_files_that_cannot_be_read_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "w.json"
    assert main([str(file)]) == 2 and "cannot be read" in capsys.readouterr().err
    file.write_bytes(b"\xff\xfe\x00{")
    assert main([str(file)]) == 2 and "not UTF-8" in capsys.readouterr().err
    file.write_text(json.dumps(CASES[0].read()))
    assert main([str(file), "--out", str(tmp_path / "no" / "such" / "x.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err
