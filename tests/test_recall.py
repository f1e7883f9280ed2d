"""Text-level recall: pooling, top-K, correspondence, and the verdict in words; by class on 257 labelled pairs."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from carnator.carnator_core.explain import explain
from carnator.carnator_core.prompt import Modifier, Prompt, parse, parse_many
from carnator.carnator_core.recall import (
    Correspondence,
    Refusal,
    TextVerdict,
    correspond,
    text_vector,
    top_k,
    verdict,
)
from hosting import ANYTHING, Ask, Page, entries, ksampler, reuse

pytest_plugins = ["hosting_fixtures"]
PAIRS = [json.loads(line) for line in
         (Path(__file__).parent / "data/prompts/pairs.jsonl").read_text(encoding="utf-8").splitlines()]


@cache
def by_class() -> dict[str, list[tuple[Prompt, Prompt, TextVerdict]]]:
    """Class -> (remembered prompt a, new prompt b, verdict)."""
    read = parse_many([p["a"] for p in PAIRS] + [p["b"] for p in PAIRS])
    found: dict[str, list[tuple[Prompt, Prompt, TextVerdict]]] = {}
    for pair, a, b in zip(PAIRS, read[:len(PAIRS)], read[len(PAIRS):], strict=True):
        found.setdefault(pair["class"], []).append((a, b, verdict(b, a)))
    return found


def kinds(name: str) -> Counter[str]:
    return Counter(said.kind for _, _, said in by_class()[name])


def told(a: str, b: str) -> str:
    """The verdict on the new prompt b, a being remembered."""
    return str(verdict(parse(b), parse(a)))


def differences(a: str, b: str) -> set[tuple[str, str, str, str]]:
    """(entity, kind, there, here) of two prompts that correspond."""
    found = correspond(parse(b), parse(a))
    assert isinstance(found, Correspondence), found
    return {(name, (ours or theirs or Modifier("", "")).kind, theirs.text if theirs else "", ours.text if ours else "")
            for name, ours, theirs in found.modifiers}


def test_text_vector_is_the_unit_mean_over_used_slots() -> None:
    conditioning = torch.tensor([[[3.0, 0.0], [0.0, 4.0], [0.0, 0.0]]])
    assert torch.allclose(text_vector(conditioning), torch.tensor([0.6, 0.8]))
    assert torch.equal(text_vector(conditioning[0]), text_vector(conditioning))
    assert torch.equal(text_vector(torch.zeros(1, 2, 3)), torch.zeros(3))
    assert text_vector(conditioning.half()).dtype == torch.float32


def test_a_difference_in_a_late_slot_counts() -> None:
    one = torch.ones(1, 200, 8)
    other = one.clone()
    other[0, 150] = torch.arange(8.0)
    assert float(text_vector(one) @ text_vector(other)) < 1 - 1e-6


@pytest.mark.parametrize("wrong", [torch.ones(2, 3, 4), torch.ones(4), torch.full((1, 2, 3), torch.nan)])
def test_text_vector_refuses(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="the conditioning"):
        text_vector(wrong)


def test_top_k_is_exact_and_in_order() -> None:
    torch.manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(500, 16), dim=1)
    query = vectors[123]
    found = top_k(query, vectors, 10)
    brute = sorted(range(500), key=lambda i: -float(vectors[i] @ query))[:10]
    assert [i for i, _ in found] == brute
    assert found[0] == (123, pytest.approx(1.0, abs=1e-6))


def test_top_k_of_few_of_none_and_of_equals() -> None:
    vectors = torch.eye(3)[[0, 1, 1]]
    assert [i for i, _ in top_k(torch.eye(3)[1], vectors)] == [1, 2, 0]
    assert top_k(torch.ones(3), torch.empty(0, 3)) == []
    assert top_k(torch.ones(3), vectors, 0) == []


def test_identical_sets_correspond_whatever_their_order() -> None:
    assert correspond(parse("a dog and a cat"), parse("a cat and a dog")) == Correspondence(
        (("dog", "dog"), ("cat", "cat")), None, ())


def test_one_substitution_comes_last_with_its_differences() -> None:
    found = correspond(parse("a white wolf running through snow"), parse("a red fox running through snow"))
    assert found == Correspondence((("snow", "snow"), ("wolf", "fox")), ("wolf", "fox"),
                                   (("wolf", Modifier("colour", "white"), Modifier("colour", "red")),))


@pytest.mark.parametrize(("a", "b"), [
    ("a dog in a park", "a cat on a beach"),
    ("a dog", "a dog and a cat"),
    ("a beach", "a castle"),
    ("a red bus", "a red chair"),
    ("two dogs", "two castles"),
    ("a beach, oil painting", "a castle, oil painting"),
    ("a dog", ""),
    ("4k, cinematic", "a dog"),
])
def test_no_correspondence(a: str, b: str) -> None:
    found = correspond(parse(b), parse(a))
    assert isinstance(found, Refusal) and found.reason


@pytest.mark.parametrize(("a", "b"), [
    ("a dog running", "a wolf running"),
    ("a train moving left", "a bus moving left"),
    ("a big red ball", "a big red cube"),
    ("a red ball moving left on snow", "a red cube moving left on snow"),
])
def test_one_entity_each_but_more_in_common(a: str, b: str) -> None:
    assert isinstance(correspond(parse(b), parse(a)), Correspondence)


@pytest.mark.parametrize(("a", "b", "difference"), [
    ("a red ball on snow", "a blue ball on snow", ("ball", "colour", "red", "blue")),
    ("a small ball on snow", "a big ball on snow", ("ball", "size", "small", "big")),
    ("a ball on snow", "a big ball on snow", ("ball", "size", "", "big")),
    ("a ball moving left on snow", "a ball moving right on snow", ("ball", "direction", "left", "right")),
    ("a train runs from left to right", "a train runs from right to left", ("train", "direction", "right", "left")),
    ("a red ball on snow", "two red balls on snow", ("ball", "count", "", "2")),
    ("two cats", "no cats", ("cat", "negation", "", "no")),
    ("a balloon ascends", "a balloon descends", ("balloon", "action", "ascend", "descend")),
    ("a wooden table", "a glass table", ("table", "material", "wood", "glass")),
    ("a cat on a mat", "a cat under a mat", ("cat", "relation", "on mat", "under mat")),
    ("a sports car", "a police car", ("car", "attribute", "sports", "police")),
    ("a cat, oil painting", "a cat, pixel art", ("", "attribute", "oil painting", "pixel art")),
    ("a cat, zoom in", "a cat, zoom out", ("", "action", "zoom in", "zoom out")),
])
def test_a_modifier_conflict_is_handed_on(a: str, b: str, difference: tuple[str, str, str, str]) -> None:
    assert difference in differences(a, b)
    entity, kind, there, here = difference
    assert (entity, kind, here, there) in differences(b, a)
    assert not told(a, b).startswith("reuse-candidate")


def test_colours_swapped_between_things_are_two_differences() -> None:
    assert differences("a black suit and a red car", "a red suit and a black car") == {
        ("suit", "colour", "black", "red"), ("car", "colour", "red", "black")}


@pytest.mark.parametrize(("a", "b"), [
    ("a red ball on snow", "a red ball on sand"),
    ("a fox running toward the barn", "a fox running toward the house"),
    ("a cat on the left of a dog", "a dog on the right of a cat"),
    ("a cat on the left of a dog", "a cat on the left of a horse"),
    ("a dog on the left of a horse", "a horse on the right of a sheep"),
    ("a bird over the sea", "a bird above the sea"),
    ("a large grey cat", "a big gray cat"),
    ("a teddy bear and a bus", "a traffic light and a bus"),
])
def test_what_only_says_the_same_otherwise_is_no_difference(a: str, b: str) -> None:
    assert differences(a, b) == set()


@pytest.mark.parametrize(("a", "b", "said"), [
    ("a red ball on snow", "A RED  ball, on snow.", "reuse-candidate"),
    ("a red fox running through snow", "a white wolf running through snow",
     "recompute: fox -> wolf, wolf: colour red -> white"),
    ("a red ball on snow", "a blue ball on snow", "recompute: ball: colour red -> blue"),
    ("a dog sleeping in a park", "a dog running in a park", "recompute: dog: action sleep -> run"),
    ("a motorcycle and a bus", "a bus and a traffic light", "recompute: motorcycle -> traffic light"),
    ("two cats", "no cats", "refuse: cat must be absent in one of them: cat: negation none -> no"),
    ("a balloon ascends", "a balloon descends", "refuse: nothing is sure to stay: balloon: action ascend -> descend"),
    ("a cat on the left of a dog", "a cat on the right of a dog",
     "refuse: the layout differs: cat: relation left of dog -> right of dog"),
    ("a cat, zoom in", "a cat, zoom out", "refuse: the whole picture differs: camera zoom in -> zoom out"),
    ("a beach", "a castle", "refuse: castle and beach share nothing that would make the scenes alike"),
    ("a dog", "a dog and a cat", "refuse: they show different things: cat only here"),
    ("a dog", "", "refuse: this prompt names nothing to compare (the prompt is empty)"),
    ("a cat on a mat", "a cat near a mat", "recompute (same seed): cat: relation on mat -> near mat"),
    ("\u4e00\u53ea\u732b", " \u4e00\u53ea\u732b", "reuse-candidate"),
    ("4k, cinematic", "4k,  cinematic", "reuse-candidate"),
    ("", "", "refuse: this prompt names nothing to compare (the prompt is empty)"),
])
def test_verdict_in_words(a: str, b: str, said: str) -> None:
    assert told(a, b) == said


def test_a_refusal_has_no_correspondence_and_everything_else_has_one() -> None:
    assert verdict(parse("a cat, zoom in"), parse("a cat, zoom out")).correspondence is None
    found = verdict(parse("a blue ball on snow"), parse("a red ball on snow"))
    assert found.correspondence == correspond(parse("a blue ball on snow"), parse("a red ball on snow"))
    assert not found.same_seed


def test_what_is_recomputed_are_the_targets_entities() -> None:
    said = verdict(parse("a white wolf and a big dog on snow"), parse("a white fox and a dog on snow"))
    assert (said.kind, said.recompute) == ("recompute", ("dog", "wolf"))


def test_class_colour_swap_corresponds_and_names_the_colour() -> None:
    assert kinds("colour_swap_same_noun") == {"recompute": 33}
    for a, b, said in by_class()["colour_swap_same_noun"]:
        found = correspond(b, a)
        assert isinstance(found, Correspondence) and found.substituted is None
        assert [ours.kind for _, ours, _ in found.modifiers if ours] == ["colour"] and "colour" in said.reason


def test_class_two_objects_one_shared_is_one_substitution() -> None:
    assert kinds("two_objects_one_shared") == {"recompute": 28, "refuse": 3}
    for a, b, said in by_class()["two_objects_one_shared"]:
        # Three pairs only look alike: a bear and a teddy bear, a dog and a hot dog, a bat and a glove of baseball.
        shared = set(a.lemmas) & set(b.lemmas)
        assert (said.kind == "recompute") == bool(shared), (a.raw, b.raw)


@pytest.mark.parametrize(("name", "size"), [
    ("action_change_person_only", 23), ("style_change_same_scene", 35), ("camera_motion_change_same_scene", 29),
    ("single_noun_object", 22), ("single_noun_scene", 20), ("short_vs_wan_extended", 20), ("english_vs_chinese", 18)])
def test_class_that_must_not_match(name: str, size: int) -> None:
    assert kinds(name) == {"refuse": size}
    assert all(said.reason for _, _, said in by_class()[name])


def test_class_spatial_relation_change_keeps_only_true_layouts() -> None:
    assert kinds("spatial_relation_change") == {"refuse": 24, "recompute": 2}
    kept = [(a.raw, str(said)) for a, _, said in by_class()["spatial_relation_change"] if said.kind == "recompute"]
    # In these the shared animal stands where it stood: only its neighbour is another.
    assert kept == [("a horse on the right of a sheep, front view", "recompute: horse -> cow"),
                    ("a dog on the left of a horse, front view", "recompute: dog -> sheep")]


def test_style_and_camera_classes_name_the_same_things() -> None:
    for name in ("style_change_same_scene", "camera_motion_change_same_scene"):
        for a, b, said in by_class()[name]:
            assert set(a.lemmas) == set(b.lemmas), (a.raw, b.raw)
            assert said.reason.startswith("the whole picture differs"), said


def test_a_long_prompt_is_advised_to_give_its_subject() -> None:
    assert all("short subject text" in said.reason for _, _, said in by_class()["short_vs_wan_extended"])


def long_prompt(start: str, things: str) -> str:
    """A prompt as language models extend them: more than 60 words, most of them of other things."""
    return start + ", while far behind it " + " and ".join(f"a {w} stands near a {w} house" for w in things.split()) + "."


@pytest.mark.host
def test_the_node_says_what_explain_says(wan_model: Any, bank: Any, page: Page) -> None:
    model = reuse(wan_model, bank, strictness=ANYTHING, remember=False)
    ksampler(reuse(wan_model, bank), Ask("a red ball on snow"))
    entries(bank)
    for text in ("a blue ball on snow", "a red ball and a star on snow", "no red ball on snow", "a red ball on snow, pixel art"):
        ksampler(model, Ask(text))
        said = explain([("a red ball on snow", text)])[0]
        if said["kind"] == "refuse":
            assert (page.last["decision"], page.last["reason"]) == ("miss", f'"a red ball on snow": {said["reason"]}')
        else:
            assert page.last["decision"] == "hit"
            assert any(line.endswith("; " + said["verdict"]) for line in page.last["report"])


@pytest.mark.host
def test_a_subject_lets_long_prompts_match_and_its_words_are_found_in_them(wan_model: Any, bank: Any, page: Page) -> None:
    one = long_prompt("a red ball on snow", "grocer baker miller tailor smith cooper mason fisher")
    other = long_prompt("a blue ball on snow", "wizard knight archer squire friar monk abbot prior")
    ksampler(reuse(wan_model, bank, subject="a red ball on snow"), Ask(one))
    (entry,) = entries(bank)
    assert (entry.prompt, entry.facts["subject"]) == (one, "a red ball on snow")
    ksampler(reuse(wan_model, bank, strictness=ANYTHING, remember=False), Ask(other))
    assert page.last["decision"] == "miss" and "a short subject text would let a long prompt match" in page.last["reason"]
    ksampler(reuse(wan_model, bank, strictness=ANYTHING, remember=False, subject="a blue ball on snow"), Ask(other))
    assert page.last["decision"] == "hit", page.last["reason"]
    assert any(line.endswith("; recompute: ball: colour red -> blue") for line in page.last["report"])
    assert set(page.last["regions"]) == {"ball", "snow"}
    assert page.last["prompt"] == other
