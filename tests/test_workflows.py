"""The templates: sound files, drawn by their script, and graphs that the real host would run."""

from __future__ import annotations

import copy
import itertools
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from carnator.demo.events import Events
from carnator.demo.graph import to_prompt

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / "workflows").glob("*.json"))
NAMES = [
    "carnator_calibrate",
    "carnator_demo",
    "carnator_demo_one_node",
    "carnator_ltx_t2v",
    "carnator_ltx_t2v_stages",
    "carnator_wan21_t2v_1_3b",
    "carnator_wan21_t2v_1_3b_stages",
    "carnator_wan22_t2v_14b",
    "carnator_wan22_t2v_14b_stages",
    "carnator_wan22_t2v_5b",
    "carnator_wan22_t2v_5b_stages",
]
DRAWN_ON = "0.30.0"  # the ComfyUI whose nodes the script asked for
TITLE = 30  # pixels of a node's title, above its place
LATENTS = ("EmptyHunyuanLatentVideo", "EmptyLTXVLatentVideo", "Wan22ImageToVideoLatent")
BOTH_WAYS = "read and remember"
FEW = 14  # steps of a render on the demo weights


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def nodes_of(workflow: dict[str, Any], kind: str) -> list[dict[str, Any]]:
    return [n for n in workflow["nodes"] if n["type"] == kind]


templates = pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
renders = pytest.mark.parametrize("path", [p for p in FILES if p.stem != "carnator_calibrate"], ids=lambda p: p.stem)


def test_all_templates_are_there() -> None:
    assert [p.stem for p in FILES] == NAMES


@templates
def test_a_small_picture_stands_beside_it(path: Path) -> None:
    picture = path.with_suffix(".jpg").read_bytes()
    assert picture.startswith(b"\xff\xd8\xff") and len(picture) < 100_000


@templates
def test_links_and_slots_agree(path: Path) -> None:
    workflow = read(path)
    nodes = {n["id"]: n for n in workflow["nodes"]}
    links = {link[0]: link for link in workflow["links"]}
    assert len(nodes) == len(workflow["nodes"]) and len(links) == len(workflow["links"])
    assert workflow["last_node_id"] == max(nodes) and workflow["last_link_id"] == max(links)
    for number, origin, slot, target, target_slot, kind in workflow["links"]:
        out, into = nodes[origin]["outputs"][slot], nodes[target]["inputs"][target_slot]
        assert number in out["links"] and into["link"] == number
        assert out["type"] == kind and kind in into["type"].split(",")
    claimed = [number for n in nodes.values() for o in n["outputs"] for number in o["links"]]
    assert sorted(claimed) == sorted(links)
    assert {i["link"] for n in nodes.values() for i in n["inputs"]} - {None} == set(links)
    order = {n["id"]: n["order"] for n in nodes.values()}
    assert all(order[link[1]] < order[link[3]] for link in links.values())


@templates
def test_nothing_overlaps_and_groups_hold_their_nodes(path: Path) -> None:
    workflow = read(path)
    boxes = {n["id"]: (n["pos"][0], n["pos"][1] - TITLE, *n["size"]) for n in workflow["nodes"]}
    boxes = {k: (x, y, w, h + TITLE) for k, (x, y, w, h) in boxes.items()}
    for (a, one), (b, other) in itertools.combinations(boxes.items(), 2):
        apart = any(one[i] + one[i + 2] < other[i] or other[i] + other[i + 2] < one[i] for i in (0, 1))
        assert apart, f"nodes {a} and {b} overlap"
    frames = [g["bounding"] for g in workflow["groups"]]
    for n in workflow["nodes"]:
        x, y, w, h = boxes[n["id"]]
        inside = [f for f in frames if f[0] <= x and f[1] <= y and x + w <= f[0] + f[2] and y + h <= f[1] + f[3]]
        touching = [f for f in frames if x < f[0] + f[2] and f[0] < x + w and y < f[1] + f[3] and f[1] < y + h]
        assert touching == inside and len(inside) == (n["type"] != "MarkdownNote")


@templates
def test_our_nodes_say_where_they_come_from(path: Path) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    ours = [n for n in read(path)["nodes"] if n["type"].startswith("Carnator")]
    assert len(ours) >= 2
    assert all(n["properties"]["cnr_id"] == "carnator" and n["properties"]["ver"] == version for n in ours)


@renders
def test_seeds_are_fixed(path: Path) -> None:
    values = [v for n in read(path)["nodes"] for v in n.get("widgets_values", [])]
    assert "fixed" in values and not {"randomize", "increment", "decrement"} & {v for v in values if isinstance(v, str)}


@renders
def test_model_files_have_an_address(path: Path) -> None:
    loaders = [n for n in read(path)["nodes"] if re.match("(?!Carnator).*Loader", n["type"])]
    assert loaders
    for n in loaders:
        file = n["widgets_values"][0]
        if file.startswith("carnator_demo_"):  # ships with the pack
            continue
        (model,) = n["properties"]["models"]
        assert model["name"] == file and model["directory"]
        assert model["url"].startswith("https://huggingface.co/") and model["url"].endswith("/" + file)


@templates
def test_a_note_tells_what_to_do(path: Path) -> None:
    (guide,) = [n for n in nodes_of(read(path), "MarkdownNote") if n["title"] == "Start here"]
    heading, *sentences = guide["widgets_values"][0].split("\n\n")
    assert heading.startswith("## ") and len(sentences) == 3 and "**Run**" in guide["widgets_values"][0]


def test_the_demo_renders_what_the_demo_model_was_trained_for() -> None:
    for path in (p for p in FILES if p.stem.startswith("carnator_demo")):
        (latent,) = nodes_of(read(path), "EmptyHunyuanLatentVideo")
        assert latent["widgets_values"] == [128, 128, 9, 1]
        (shift,) = nodes_of(read(path), "ModelSamplingSD3")
        assert shift["widgets_values"] == [3.0]


@pytest.mark.host
@templates
def test_the_file_is_what_the_script_draws(path: Path, host: Any) -> None:
    if host.get("/system_stats")["system"]["comfyui_version"] != DRAWN_ON:
        pytest.skip(f"another ComfyUI than {DRAWN_ON} may have other slots")
    from carnator.demo.make_workflows import build, text_of

    assert text_of(build(host.object_info())[path.name]) == path.read_text(encoding="utf-8")


@pytest.mark.host
@templates
def test_the_host_would_run_it(path: Path, host: Any) -> None:
    known = host.object_info()
    prompt = to_prompt(read(path), known)
    assert any(known[n["class_type"]]["output_node"] for n in prompt.values())
    for number, n in prompt.items():
        sections = known[n["class_type"]]["input"]
        specs = {**sections["required"], **sections.get("optional", {})}
        where = f"{n['class_type']} #{number}"
        assert set(n["inputs"]) <= set(specs), where
        assert set(sections["required"]) <= set(n["inputs"]), where
        for name, value in n["inputs"].items():
            check(value, specs[name], prompt, known, f"{where} {name}")


def on_demo_weights(prompt: dict[str, Any], text: str, bank: str) -> dict[str, Any]:
    """The prompt with the model that ships with the pack in place of the real one, its text encoder, VAE and size."""
    unet = {"class_type": "UNETLoader", "inputs": {"unet_name": "carnator_demo_wan_dit.safetensors", "weight_dtype": "default"}}
    vae = {"class_type": "VAELoader", "inputs": {"vae_name": "carnator_demo_wan_vae.safetensors"}}
    size = {"width": 128, "height": 128, "length": 9, "batch_size": 1}
    instead = {
        "UNETLoader": unet, "CheckpointLoaderSimple": unet, "VAELoader": vae,
        "CLIPLoader": {"class_type": "CarnatorDemoTextEncoder", "inputs": {}},
        **dict.fromkeys(LATENTS, {"class_type": "EmptyHunyuanLatentVideo", "inputs": size}),
    }  # fmt: skip
    made = {number: copy.deepcopy(instead.get(n["class_type"], n)) for number, n in prompt.items()}
    made["own bank"] = {"class_type": "CarnatorBankLoader", "inputs": {"name": bank, "budget_gb": 1.0, "policy": BOTH_WAYS}}
    checkpoints = {number for number, n in prompt.items() if n["class_type"] == "CheckpointLoaderSimple"}
    if checkpoints:
        made["vae"] = vae
    for number, n in made.items():
        inputs = n["inputs"]
        for name, value in inputs.items():
            if isinstance(value, list) and value[0] in checkpoints and value[1] == 2:
                inputs[name] = ["vae", 0]
        if n["class_type"] == "CarnatorTextEncode" and prompt[number]["_meta"]["title"] == "Positive prompt":
            inputs["text"] = text
        if "bank" in inputs or n["class_type"] == "CarnatorReuse":
            inputs["bank"] = ["own bank", 0]
        if "steps" in inputs and inputs["steps"] > FEW:
            inputs["steps"] = FEW
        if n["class_type"] == "CarnatorRiskGate":  # at so few steps of another model's schedule colours are not settled
            inputs |= {"colour": 100.0, "motion": 1.0}
    return made


@pytest.mark.host
@renders
def test_it_runs_on_the_demo_weights(path: Path, host: Any) -> None:
    """Remembered, then reused for another word; the two experts' pair of nodes is one render."""
    prompt = to_prompt(read(path), host.object_info())
    told = []
    with Events(host.url) as events:
        for text in ("a red ball moving right on snow", "a blue ball moving right on snow"):
            mark = len(events.seen)
            done = host.run(on_demo_weights(prompt, text, path.stem))
            assert any(str(f.get("filename", "")).endswith(".mp4") for f in files_of(done)), "a clip was written"
            told.append([s for s in events.since(mark, "carnator.summary") if s["node"] in finishing(prompt)])
    decisions = [[s["decision"] for s in summaries] for summaries in told]
    assert decisions == [["miss"], ["hit"]], [[s["reason"] for s in summaries] for summaries in told]


def files_of(done: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [group for out in done["outputs"].values() for group in out.values() if isinstance(group, list)]
    return [f for group in groups for f in group if isinstance(f, dict)]


def finishing(prompt: dict[str, Any]) -> set[str]:
    """The nodes that speak of a whole render."""
    return {i for i, n in prompt.items() if n["class_type"] in ("CarnatorReuse", "CarnatorJointReuseSampler")}


@pytest.mark.host
def test_calibration_runs_as_it_stands(host: Any) -> None:
    prompt = to_prompt(read(ROOT / "workflows" / "carnator_calibrate.json"), host.object_info())
    (report,) = [out["text"][0] for out in host.run(prompt)["outputs"].values() if "text" in out]
    assert "saved as example.json" in report and "accepted pairs are needed" in report, report


def check(value: Any, spec: list[Any], prompt: dict[str, Any], known: dict[str, Any], where: str) -> None:
    """A wire carries the right type; a typed-in value has its type, lies in its range, or is one of the choices."""
    kind, options = spec[0], spec[1] if len(spec) > 1 else {}
    if isinstance(value, list):
        source, slot = value
        assert known[prompt[source]["class_type"]]["output"][slot] in kind.split(","), where
    elif isinstance(kind, list) or kind == "COMBO":
        choices = kind if isinstance(kind, list) else options["options"]
        assert value in choices or str(value).endswith(".safetensors"), where
    elif kind in ("INT", "FLOAT"):
        assert isinstance(value, int if kind == "INT" else (int, float)), where
        assert options["min"] <= value <= options["max"], where
        if kind == "INT" and "step" in options and name_is_size(where):
            assert (value - options["min"]) % options["step"] == 0, where
    elif kind == "COMFY_DYNAMICCOMBO_V3":
        assert value in [o["key"] for o in options["options"]], where
    else:
        assert isinstance(value, {"STRING": str, "BOOLEAN": bool}[kind]), where


def name_is_size(where: str) -> bool:
    return where.endswith((" width", " height", " length"))


@pytest.mark.host
def test_the_host_lists_the_templates(host: Any) -> None:
    assert sorted(host.get("/workflow_templates")["carnator"]) == NAMES
    for name in NAMES:
        assert json.loads(host.request(f"/api/workflow_templates/carnator/{name}.json"))["nodes"]
