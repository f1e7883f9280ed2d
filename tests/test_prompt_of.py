"""Which text a sampler's positive prompt has, by the graph alone: through nodes whose doings are known, or none."""

from __future__ import annotations

from typing import Any

import pytest
from carnator.carnator_core.hosts.graph import prompt_of

Graph = dict[str, Any]
FOX, TRAIN = "a fox on snow", "a train in a station"


def node(kind: str, **inputs: Any) -> Graph:
    return {"class_type": kind, "inputs": inputs}


def graph(**nodes: Graph) -> Graph:
    """Reuse in front of one KSampler with the fox; `nodes` add to it or replace."""
    return {"reuse": node("CarnatorReuse", model=["loader", 0]), "fox": node("CLIPTextEncode", text=FOX, clip=["clip", 0]),
            "one": node("KSampler", model=["reuse", 0], positive=["fox", 0], negative=["none", 0], latent_image=["empty", 0]),
            "none": node("CLIPTextEncode", text="", clip=["clip", 0]), **nodes}


TRAIN_SAMPLER = {
    "train": node("CarnatorTextEncode", text=TRAIN, clip=["clip", 0]),
    "two": node("KSamplerAdvanced", model=["reuse", 0], positive=["train", 0], negative=["none", 0], latent_image=["empty", 0])}


def test_a_sampler_has_its_own_text() -> None:
    made = graph(**TRAIN_SAMPLER)
    assert prompt_of(made, "reuse", "one") == FOX
    assert prompt_of(made, "reuse", "two") == TRAIN
    for odd in ("loader", "gone", "fox"):
        assert prompt_of(made, "reuse", odd) == "", "what samples is no sampler of this graph (a loop's own copy of one)"


def test_without_the_sampler_s_id_every_sampler_has_to_agree() -> None:
    assert prompt_of(graph(), "reuse") == FOX
    assert prompt_of(graph(**TRAIN_SAMPLER), "reuse") == ""
    same = {**TRAIN_SAMPLER, "train": node("CLIPTextEncode", text=FOX, clip=["clip", 0])}
    assert prompt_of(graph(**same), "reuse") == FOX
    stranger = node("KSampler (Efficient)", model=["reuse", 0], positive=["fox", 0], latent_image=["empty", 0])
    assert prompt_of(graph(two=stranger), "reuse") == "", "what a sampler of another pack does to its text is not known"
    later = node("KSampler", model=["loader", 0], positive=["train", 0], latent_image=["one", 0])
    assert prompt_of(graph(train=TRAIN_SAMPLER["train"], two=later), "reuse") == FOX, "that one has another model"
    assert prompt_of(None, "reuse") == prompt_of({}, "reuse", "one") == prompt_of(graph(), None) == prompt_of(graph(), "one") == ""


def test_past_other_nodes_of_the_model_line_and_the_host_s_guiders() -> None:
    for guider in (node("CFGGuider", model=["shift", 0], positive=["fox", 0], negative=["none", 0], cfg=5.0),
                   node("BasicGuider", model=["shift", 0], conditioning=["fox", 0])):
        made = graph(shift=node("ModelSamplingSD3", model=["reuse", 0], shift=8.0), guider=guider,
                     sigmas=node("BasicScheduler", model=["shift", 0], steps=20),
                     one=node("SamplerCustomAdvanced", guider=["guider", 0], sigmas=["sigmas", 0], latent_image=["empty", 0]))
        assert prompt_of(made, "reuse", "one") == prompt_of(made, "reuse") == FOX
        made["guider"] = {**guider, "class_type": "STGGuider"}
        assert prompt_of(made, "reuse", "one") == prompt_of(made, "reuse") == ""


PASSING: dict[str, Graph] = {
    "a primitive": {"text": node("PrimitiveString", value=FOX)},
    "a primitive of lines": {"text": node("PrimitiveStringMultiline", value=FOX)},
    "a constant": {"text": node("StringConstant", string=FOX)},
    "reroutes": {"text": node("Reroute", **{"": ["r", 0]}), "r": node("ReroutePrimitive|pysssss", value=["p", 0]),
                 "p": node("PrimitiveString", value=FOX)},
    "a concatenation": {"text": node("StringConcatenate", string_a="a fox", string_b=["p", 0], delimiter=" on "),
                        "p": node("PrimitiveString", value="snow")},
}


@pytest.mark.parametrize("nodes", PASSING.values(), ids=PASSING)
def test_what_hands_a_text_on_is_followed(nodes: Graph) -> None:
    made = graph(fox=node("CLIPTextEncode", text=["text", 0], clip=["clip", 0]), **nodes)
    assert prompt_of(made, "reuse", "one") == prompt_of(made, "reuse") == FOX


UNKNOWN: dict[str, Graph] = {
    "StringReplace": node("StringReplace", string="a fox", find="fox", replace="train"),
    "RegexReplace": node("RegexReplace", string="a fox", regex_pattern="f.x", replace="train"),
    "a wildcard": node("ImpactWildcardProcessor", wildcard_text="a __animal__", populated_text="a fox", mode="populate"),
    "a language model": node("TextGenerateLTX2Prompt", clip=["clip", 0], prompt="a fox", text="a fox"),
    "a cut": node("StringSubstring", string="a fox", start=0, end=3),
    "a stranger": node("SomebodysText", text="a fox", value="a fox", string="a fox", prompt="a fox"),
    "half a concatenation": node("StringConcatenate", string_a="a fox", string_b=["x", 0], delimiter=" "),
    "no text": node("PrimitiveString", value=7),
    "itself": node("PrimitiveString", value=["text", 0]),
}


@pytest.mark.parametrize("text", UNKNOWN.values(), ids=UNKNOWN)
def test_what_may_do_anything_to_a_text_hides_it(text: Graph) -> None:
    made = graph(fox=node("CLIPTextEncode", text=["text", 0], clip=["clip", 0]), text=text, x=node("SomebodysText", text="snow"))
    assert prompt_of(made, "reuse", "one") == prompt_of(made, "reuse") == ""
    made["fox"]["inputs"]["text"] = ["text", 1]
    assert prompt_of(made, "reuse", "one") == ""


@pytest.mark.parametrize("kind", ["ConditioningConcat", "ConditioningAverage", "ConditioningCombine", "ConditioningMultiply",
                                  "SomebodysConditioning"])
def test_a_changed_conditioning_has_no_text(kind: str) -> None:
    mixed = node(kind, conditioning_to=["fox", 0], conditioning_from=["none", 0], conditioning_1=["fox", 0],
                 conditioning_2=["none", 0], conditioning=["fox", 0], positive=["fox", 0])
    made = graph(mixed=mixed)
    made["one"]["inputs"]["positive"] = ["mixed", 0]
    assert prompt_of(made, "reuse", "one") == prompt_of(made, "reuse") == ""


def test_a_pair_of_conditionings_is_followed_on_its_own_side() -> None:
    for kind in ("LTXVConditioning", "WanImageToVideo"):
        made = graph(pair=node(kind, positive=["fox", 0], negative=["train", 0]), train=TRAIN_SAMPLER["train"])
        for output, text in ((0, FOX), (1, TRAIN), (2, "")):
            made["one"]["inputs"]["positive"] = ["pair", output]
            assert prompt_of(made, "reuse", "one") == text
