"""The nodes' outside: frozen ids and inputs, schemas that the oldest supported host takes, words in both languages."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "nodes").glob("*.py"))

# Workflows that people saved name these; they never change. Inputs may be added at the end, and must be optional then.
FROZEN = {
    "CarnatorTextEncode": ("clip", "text"),
    "CarnatorBankLoader": ("name", "budget_gb", "policy", "recall_clip"),
    "CarnatorEarlySignatureProbe": (
        "model", "bank", "positive", "negative", "latent_image", "seed", "steps", "cfg", "sampler_name", "scheduler",
        "probe_steps", "vae", "denoise", "low_noise_model", "switch_step",
    ),
    "CarnatorRiskGate": ("probe", "size", "shape", "colour", "motion", "change", "mode", "profile"),
    "CarnatorEvidenceRegionViewer": ("source", "entity", "vae"),
    "CarnatorJointReuseSampler": (
        "decision", "tolerance", "active_radius", "context_radius", "dense_latent", "resume", "window_start",
        "window_end",
    ),
    "CarnatorDenseFallback": ("probe",),
    "CarnatorReuse": (
        "model", "pace", "noise", "bank", "vae", "probe_steps", "strictness", "mode", "active_radius", "context_radius",
        "window_start", "window_end", "remember", "subject", "profile", "miss_tolerance",
    ),
    "CarnatorCalibrate": (
        "profile", "pairs", "risk", "confidence", "bank", "tolerances", "model", "shape", "mode", "split_seed",
    ),
    "CarnatorDemoTextEncoder": (),
    "CarnatorBankReport": ("bank", "after"),
    "CarnatorDemoVAE": ("model",),
}  # fmt: skip
# What ComfyUI 0.3.64 does not know.
TOO_NEW_KEYWORDS = {"advanced", "search_aliases", "essentials_category", "has_intermediate_output", "price_badge"}
TOO_NEW_NAMES = {"DynamicCombo", "Autogrow", "NodeReplace", "DynamicSlot", "MultiCombo"}
LANGUAGES = ("en", "zh")

nodes = pytest.mark.parametrize("name", FROZEN)
languages = pytest.mark.parametrize("language", LANGUAGES)


@pytest.fixture(scope="session")
def classes(comfy: Any) -> dict[str, Any]:
    from carnator.nodes import NODE_CLASS_MAPPINGS

    return NODE_CLASS_MAPPINGS


def translations(language: str, file: str) -> dict[str, Any]:
    return json.loads((ROOT / "locales" / language / file).read_text(encoding="utf-8"))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    else:
        yield value


def test_the_mapping_is_a_literal_of_the_frozen_ids() -> None:
    tree = ast.parse((ROOT / "nodes" / "__init__.py").read_text(encoding="utf-8"))
    (mapping,) = [
        a.value
        for a in tree.body
        if isinstance(a, ast.Assign) and [getattr(t, "id", "") for t in a.targets] == ["NODE_CLASS_MAPPINGS"]
    ]
    assert isinstance(mapping, ast.Dict)
    assert [k.value for k in mapping.keys if isinstance(k, ast.Constant)] == list(FROZEN)
    assert all(isinstance(v, ast.Name) for v in mapping.values)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_sources_use_what_the_oldest_host_knows(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    keywords = {k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords}
    names = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    assert not keywords & TOO_NEW_KEYWORDS and not names & TOO_NEW_NAMES


@pytest.mark.host
@nodes
def test_schema(name: str, classes: dict[str, Any]) -> None:
    schema = classes[name].GET_SCHEMA()
    assert schema.node_id == name
    assert tuple(i.id for i in schema.inputs) == FROZEN[name]
    assert schema.display_name and schema.description and schema.category.split("/")[0] == "Carnator"
    # 0.3.64 refuses an output whose id is an input's; ids that were not given are numbered "_0_CONDITIONING_".
    assert not {o.id for o in schema.outputs} & {i.id for i in schema.inputs}
    assert all(o.display_name for o in schema.outputs)


@pytest.mark.host
@nodes
def test_the_host_can_publish_it(name: str, classes: dict[str, Any]) -> None:
    info = classes[name].GET_NODE_INFO_V1()
    told = info if isinstance(info, dict) else vars(info)
    shown = [n for section in ("required", "optional") for n in told["input"].get(section, {})]
    assert sorted(shown) == sorted(FROZEN[name])
    json.dumps(told["input"])
    for section in ("required", "optional"):
        for input_name, spec in told["input"].get(section, {}).items():
            options = spec[1] if len(spec) > 1 else {}
            if "options" in options and "default" in options:
                assert options["default"] in options["options"], input_name
            if "min" in options and "default" in options:
                assert options["min"] <= options["default"] <= options["max"], input_name


@pytest.mark.host
def test_every_output_node_shows_something(classes: dict[str, Any]) -> None:
    assert [n for n in FROZEN if classes[n].GET_SCHEMA().is_output_node] == [
        "CarnatorEvidenceRegionViewer", "CarnatorCalibrate", "CarnatorBankReport",
    ]  # fmt: skip


@pytest.mark.host
@nodes
def test_a_node_is_found_under_other_words_where_the_host_has_them(name: str, classes: dict[str, Any]) -> None:
    schema = classes[name].GET_SCHEMA()
    if not hasattr(schema, "search_aliases"):
        pytest.skip("this host has no search aliases")
    assert len(schema.search_aliases) >= 2 and len(set(schema.search_aliases)) == len(schema.search_aliases)


@languages
@nodes
def test_every_input_has_a_name_and_a_tooltip(name: str, language: str) -> None:
    told = translations(language, "nodeDefs.json")[name]
    assert told["display_name"] and told["description"]
    assert set(told.get("inputs", {})) == set(FROZEN[name])
    assert all(entry["name"] and entry["tooltip"] for entry in told.get("inputs", {}).values())
    assert all(entry["name"] and entry["tooltip"] for entry in told["outputs"].values())


@pytest.mark.host
@nodes
def test_every_output_has_a_name(name: str, classes: dict[str, Any]) -> None:
    count = len(classes[name].GET_SCHEMA().outputs)
    for language in LANGUAGES:
        assert list(translations(language, "nodeDefs.json")[name]["outputs"]) == [str(i) for i in range(count)]


@languages
def test_translations_are_whole_and_plain(language: str) -> None:
    assert set(translations(language, "nodeDefs.json")) == set(FROZEN)
    english, here = translations("en", "main.json"), translations(language, "main.json")
    assert {k: set(v) for k, v in here.items()} == {k: set(v) for k, v in english.items()}
    for key, text in here["carnator"].items():
        assert set(re.findall(r"\{\w+\}", text)) == set(re.findall(r"\{\w+\}", english["carnator"][key]))
    # The front end's message format gives these a meaning of their own.
    assert not [s for s in strings(translations(language, "nodeDefs.json")) if re.search(r"[@|{}$]", s)]


@languages
def test_every_setting_is_translated(language: str) -> None:
    """The ids that the page registers, with dots as underscores, as the host looks them up."""
    script = (ROOT / "web" / "settings.js").read_text(encoding="utf-8")
    told = translations(language, "settings.json")
    assert set(told) == {i.replace(".", "_") for i in re.findall(r'id: "(Carnator\.[\w.]+)"', script)} != set()
    assert all(entry["name"] and entry["tooltip"] for entry in told.values())
    choices = {word for found in re.findall(r"choices\((\"[^;]*?)\),\n", script) for word in re.findall(r'"([^"]+)"', found)}
    assert {word for entry in told.values() for word in entry.get("options", {})} == choices != set()
    places = {c for found in re.findall(r"category: \[(.*)\]", script) for c in re.findall(r'"(\w+)"', found)[:2]}
    assert set(translations(language, "main.json")["settingsCategories"]) == places


@languages
def test_every_word_of_the_page_is_there(language: str) -> None:
    """What the scripts look up by a fixed name."""
    scripts = "".join(p.read_text(encoding="utf-8") for p in (ROOT / "web").glob("*.js"))
    wanted = set(re.findall(r"\bwords\.(?!js\b)(\w+)", scripts)) | set(re.findall(r'\bword\("(\w+)"\)', scripts))
    assert wanted and not wanted - set(translations(language, "main.json")["carnator"])


@nodes
def test_every_node_has_a_help_page(name: str) -> None:
    pages = {"en": ROOT / "web" / "docs" / f"{name}.md", "zh": ROOT / "web" / "docs" / name / "zh.md"}
    for language, page in pages.items():
        text, told = page.read_text(encoding="utf-8"), translations(language, "nodeDefs.json")[name]
        assert text.startswith(f"# {told['display_name']}\n")
        missing = [e["name"] for e in told.get("inputs", {}).values() if e["name"] not in text]
        assert not missing, f"{page.name} says nothing of {missing}"


def test_there_is_no_page_of_another_node() -> None:
    folder = ROOT / "web" / "docs"
    assert {p.stem for p in folder.glob("*.md")} == {p.name for p in folder.iterdir() if p.is_dir()} == set(FROZEN)
