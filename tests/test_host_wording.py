"""On the real host: the text that renders are compared by is the text that was encoded, or it counts as unknown."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from executing import Studio
from hosting import Ask, Page, encode, entries, granular, ksampler, reuse

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
FOX, TRAIN = "a red ball on snow", "two green rings at night"


def mixed(kind: str, *values: Any, **named: Any) -> Any:
    """What one of the host's conditioning nodes makes."""
    import nodes

    made = nodes.NODE_CLASS_MAPPINGS[kind]()
    return getattr(made, made.FUNCTION)(*values, **named)[0]


def test_the_encoder_says_which_conditioning_its_words_are_of(comfy: Any) -> None:
    from carnator.carnator_core.hosts.identity import conditioning_digest

    for text in (FOX, ""):
        ((tensor, extra),) = encode(text)
        assert extra["carnator"]["digest"] == conditioning_digest([{"cross_attn": tensor}])


@pytest.mark.parametrize("kind", ["ConditioningConcat", "ConditioningAverage", "ConditioningMultiply"])
def test_words_beside_another_conditioning_are_unknown(kind: str, wan_model: Any, bank: Any, page: Page) -> None:
    positive = mixed(kind, encode(FOX), *([0.7] if kind == "ConditioningMultiply" else [encode(TRAIN)]),
                     **({"conditioning_to_strength": 0.5} if kind == "ConditioningAverage" else {}))
    assert positive[0][1]["carnator"]["text"] == FOX, "the host copies it along"
    dense = ksampler(wan_model, Ask(FOX), positive=positive)
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask(FOX), positive=positive), dense)
    (kept,) = entries(bank)
    assert kept.prompt == "" and page.last["prompt"] == "" and page.last["regions"] == {}, "no text, and no columns of it"
    # The first half's own render is not the same one, nor one in which "nothing differs by name".
    ksampler(reuse(wan_model, bank, remember=False), Ask(FOX))
    assert "nothing differs" not in page.last["reason"] and page.last["computed"] > 0
    assert any("the prompt's text is not known" in line for line in page.last["report"])
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask(FOX), positive=positive), dense) and page.last["computed"] == 0


def test_an_average_that_is_all_of_one_keeps_its_words(wan_model: Any, bank: Any, page: Page) -> None:
    whole = mixed("ConditioningAverage", encode(FOX), encode(TRAIN), conditioning_to_strength=1.0)
    ksampler(reuse(wan_model, bank), Ask(FOX), positive=whole)
    assert page.last["prompt"] == FOX and set(page.last["regions"]) == {"ball", "snow"}


def test_the_probe_knows_no_text_of_a_mix_either(wan_model: Any, bank: Any, page: Page) -> None:
    class Mixed(Ask):
        def inputs(self) -> dict[str, Any]:
            return {**super().inputs(), "positive": mixed("ConditioningConcat", encode(FOX), encode(TRAIN))}

    granular(wan_model, bank, Mixed(FOX))
    (kept,) = entries(bank)
    assert kept.prompt == ""


@pytest.fixture
def studio(comfy: Any, page: Page, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Studio:
    return Studio(tmp_path_factory.getbasetemp() / "studio", page, monkeypatch)


def queue_of_two(told: bool, studio: Studio, bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One Carnator Reuse, two samplers, each with a prompt by the host's own encoder. told: the host says which one samples."""
    import comfy_execution.utils
    from carnator.nodes import banks

    if not told:
        monkeypatch.delattr(comfy_execution.utils, "get_executing_context", raising=False)
    monkeypatch.setattr(banks, "open_bank", lambda *_: bank.bank)

    def node(kind: str, **inputs: Any) -> dict[str, Any]:
        return {"class_type": kind, "inputs": inputs}

    def sampler(text: str) -> dict[str, Any]:
        return node("KSampler", model=["6", 0], positive=[text, 0], negative=["5", 0], latent_image=["8", 0], seed=7, steps=8,
                    cfg=5.0, sampler_name="euler", scheduler="simple", denoise=1.0)

    studio.run(studio.prepared({
        "1": node("UNETLoader", unet_name="wan.safetensors", weight_dtype="default"),
        "2": node("CLIPLoader", clip_name="t5.safetensors", type="wan"),
        "3": node("CLIPTextEncode", text=FOX, clip=["2", 0]), "4": node("CLIPTextEncode", text=TRAIN, clip=["2", 0]),
        "5": node("CLIPTextEncode", text="", clip=["2", 0]),
        "6": node("CarnatorReuse", model=["1", 0], pace="balanced", noise="any seed (fastest)", strictness=0.1),
        "7": sampler("3"), "9": sampler("4"), "8": node("EmptyHunyuanLatentVideo", width=80, height=64, length=5, batch_size=1)}))


def test_two_samplers_of_one_node_have_a_text_each(studio: Studio, bank: Any, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    queue_of_two(True, studio, bank, monkeypatch)
    assert {s["prompt"] for s in page.summaries} == {FOX, TRAIN} and len(page.summaries) == 2
    assert {card.prompt for card in entries(bank)} == {FOX, TRAIN}


def test_on_a_host_that_does_not_tell_both_texts_are_unknown(studio: Studio, bank: Any, page: Page,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    queue_of_two(False, studio, bank, monkeypatch)
    assert [s["prompt"] for s in page.summaries] == ["", ""]
    assert "nothing differs" not in page.last["reason"]


def test_which_node_is_executed_is_asked_of_the_host(comfy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.nodes.running import executing

    assert executing() == "", "nothing is executed"
    utils: Any = ModuleType("comfy_execution.utils")
    monkeypatch.setitem(sys.modules, "comfy_execution.utils", utils)
    assert executing() == "", "a host that has not the function"
    utils.get_executing_context = lambda: SimpleNamespace(prompt_id="p", node_id="5:7", list_index=0)
    assert executing() == "5:7"
