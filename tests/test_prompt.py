"""Entities and their modifiers, from all captions of the demo world and from prompts as creators write them."""

from __future__ import annotations

import itertools
import random
import threading

import pytest
from carnator.carnator_core.prompt import Prompt, parse, parse_many, pipeline
from carnator.demo.world import COLOURS, MOTIONS, NOUNS, PLACE_PHRASE, PLACES, Scene, Thing, caption
from hypothesis import given, settings
from hypothesis import strategies as st

Said = dict[str, set[tuple[str, str]]]


def said(prompt: Prompt) -> Said:
    """Lemma -> {(kind, text)}."""
    return {e.lemma: {(m.kind, m.text) for m in e.modifiers} for e in prompt.entities}


def expected(scene: Scene) -> Said:
    """What a caption of the demo world says, by construction."""
    common = {("relation", PLACE_PHRASE[scene.place])}
    if scene.motion != "still":
        common |= {("action", "move"), ("direction", scene.motion)}
    found: Said = {}
    for thing in scene.things:
        found[thing.noun] = common | {("colour", thing.colour)}
        found[thing.noun] |= {("size", thing.size)} if thing.size else set()
        found[thing.noun] |= {("count", "2")} if scene.counted else set()
    return {**found, scene.place: set()}


def check(scenes: list[Scene]) -> None:
    for scene, prompt in zip(scenes, parse_many([caption(s) for s in scenes]), strict=True):
        assert said(prompt) == expected(scene), caption(scene)
        assert list(said(prompt)) == list(expected(scene)), caption(scene)
        assert not prompt.scene and not prompt.reason


def test_every_caption_of_one_kind_of_thing() -> None:
    scenes = []
    for noun, colour, place, motion in itertools.product(NOUNS, COLOURS, PLACES, MOTIONS):
        scenes += [Scene(place, motion, (Thing(noun, colour, size),)) for size in ("", "small", "big")]
        scenes.append(Scene(place, motion, (Thing(noun, colour), Thing(noun, colour)), counted=True))
    assert len(scenes) == 4800
    check(scenes)


def test_captions_of_two_things() -> None:
    """1,000 of the 42,000; `bench/prompts.py` reads them all."""
    pairs = list(itertools.product(itertools.permutations(NOUNS, 2), itertools.permutations(COLOURS, 2), PLACES, MOTIONS))
    check([Scene(place, motion, (Thing(n, c), Thing(m, d)))
           for (n, m), (c, d), place, motion in random.Random(7).sample(pairs, 1000)])


@pytest.mark.parametrize(("text", "lemma", "name", "head"), [
    ("a sports car on a road", "car", "sports car", "car"),
    ("a teddy bear", "teddy bear", "teddy bear", "bear"),
    ("two Hot Dogs", "hot dog", "Hot Dogs", "Dogs"),
    ("the man's hat", "hat", "man's hat", "hat"),
    ("the boys' red ball", "ball", "boys' red ball", "ball"),
    ("a fire hydrant on the right of a bench", "hydrant", "fire hydrant", "hydrant"),
    ("an (old:1.2) phone booth", "booth", "phone booth", "booth"),
    ("the Eiffel Tower at night", "tower", "Eiffel Tower", "Tower"),
    ("a cup of ice cream", "ice cream", "ice cream", "cream"),
])
def test_one_entity_per_thing_with_its_span(text: str, lemma: str, name: str, head: str) -> None:
    prompt = parse(text)
    entity = next(e for e in prompt.entities if e.lemma == lemma)
    assert (entity.text, prompt.text[slice(*entity.span)]) == (name, head)
    assert len(prompt.entities) == {"a sports car on a road": 2, "a fire hydrant on the right of a bench": 2,
                                    "the Eiffel Tower at night": 2, "a cup of ice cream": 2}.get(text, 1)


@pytest.mark.parametrize("word", ["arch", "barn", "glacier", "mars", "clothes", "campsite", "crosswalk", "fountain",
                                  "shower", "staircase", "orange", "Paris", "skis", "scissors"])
def test_bare_nouns(word: str) -> None:
    for text in (word, word.upper(), f"{word}.", f"a photo of {word}", f"{word}, 4k, cinematic"):
        assert parse(text).lemmas == (word.lower(),), text


@pytest.mark.parametrize(("text", "found"), [
    ("a close-up of a cat, 4k, highly detailed, cinematic, shallow depth of field", ("cat",)),
    ("A cat, oil painting style, front view, camera pan left", ("cat",)),
    ("drone footage of a beach, best quality, masterpiece", ("beach",)),
    ("the left side of the scene shows a dog", ("dog",)),
    ("view from the top of a tower", ("tower",)),
    ("a herd of sheep", ("sheep",)),
    ("a church interior", ("church",)),
    ("cat, dog, red car", ("cat", "dog", "car")),
    ("a dog and another dog", ("dog",)),
    ("a robot made of metal", ("robot",)),
    ("a person is rock climbing", ("person",)),
    ("flying through fantasy landscapes", ("landscape",)),
])
def test_what_is_an_entity_and_what_is_none(text: str, found: tuple[str, ...]) -> None:
    assert parse(text).lemmas == found


@pytest.mark.parametrize(("text", "lemma", "modifiers"), [
    ("a big, red, shiny apple", "apple", {("size", "big"), ("colour", "red"), ("attribute", "shiny")}),
    ("a large grey cat", "cat", {("size", "big"), ("colour", "gray")}),
    ("a black and white cat", "cat", {("colour", "black"), ("colour", "white")}),
    ("the ball is red", "ball", {("colour", "red")}),
    ("the ball is not red", "ball", {("colour", "not red")}),
    ("a woman in red", "woman", {("colour", "red")}),
    ("the barn was painted a warm shade of red", "barn", {("colour", "red"), ("attribute", "painted")}),
    ("a wooden table", "table", {("material", "wood")}),
    ("a robot made of metal standing", "robot", {("material", "metal"), ("action", "stand")}),
    ("a glass bottle", "bottle", {("material", "glass")}),
    ("two cats", "cat", {("count", "2")}),
    ("cats", "cat", {("count", "several")}),
    ("a dozen eggs", "egg", {("count", "12")}),
    ("a pair of shoes", "shoe", {("count", "2")}),
    ("no cats", "cat", {("negation", "no")}),
    ("a dog without a collar", "collar", {("negation", "no")}),
    ("no cats or dogs", "dog", {("negation", "no")}),
    ("a person petting an animal (not a cat)", "cat", {("negation", "no")}),
    ("a man is not smiling", "man", {("action", "not smile")}),
    ("a balloon ascends", "balloon", {("action", "ascend")}),
    ("a person waking up", "person", {("action", "wake up")}),
    ("a running dog", "dog", {("action", "run")}),
    ("a train runs from left to right", "train", {("action", "run"), ("direction", "right")}),
    ("the train runs from right to left", "train", {("action", "run"), ("direction", "left")}),
    ("a car drives away from the house towards the city", "car",
     {("action", "drive"), ("direction", "away from house"), ("direction", "toward city")}),
    ("a fox running through snow toward the barn", "fox",
     {("action", "run"), ("relation", "through snow"), ("direction", "toward barn")}),
    ("a herd of horses gallops to the right", "horse", {("count", "several"), ("action", "gallop"), ("direction", "right")}),
    ("a cat on the left of a dog", "cat", {("relation", "left of dog")}),
    ("skis on the top of a board, front view", "skis", {("relation", "above board")}),
    ("a ball on the left and a cube on the right", "cube", {("relation", "on the right")}),
    ("a cat is not on the table", "cat", {("relation", "not on table")}),
    ("a woman in a red dress walking", "woman", {("relation", "in dress"), ("action", "walk")}),
    ("a girl with long hair wearing a hat", "girl", {("action", "wear")}),
    ("a cat on a mat and a dog in a box", "mat", set()),
    ("a kite and a balloon flying side by side", "kite", {("action", "fly")}),
    ("a potted plant", "plant", {("attribute", "potted")}),
    ("a sports car", "car", {("attribute", "sports")}),
    ("the man's hat", "hat", {("attribute", "man's")}),
    ("a person riding a horse", "person", {("action", "ride")}),
    ("an orange chair", "chair", {("colour", "orange")}),
])
def test_modifiers(text: str, lemma: str, modifiers: set[tuple[str, str]]) -> None:
    assert said(parse(text))[lemma] == modifiers


@pytest.mark.parametrize(("text", "kind", "phrase"), [
    ("a shark swims, zoom in", "action", "zoom in"),
    ("a shark swims, camera zooming in", "action", "zoom in"),
    ("The camera slowly pans left over a city", "action", "pan left"),
    ("a close up shot of a fly", "action", "close-up"),
    ("aerial view of a beach", "action", "aerial"),
    ("a shark swims in super slow motion", "action", "super slow motion"),
    ("a shark swims, pixel art", "attribute", "pixel art"),
    ("a shark swims, in cyberpunk style", "attribute", "cyberpunk"),
    ("a shark swims, black and white", "attribute", "black and white"),
    ("an oil painting of a couple", "attribute", "oil painting"),
    ("a cat by Hokusai", "attribute", "hokusai"),
])
def test_camera_and_look_are_the_scenes(text: str, kind: str, phrase: str) -> None:
    assert [(m.kind, m.text) for m in parse(text).scene] == [(kind, phrase)]


@pytest.mark.parametrize(("text", "reason"), [
    ("", "the prompt is empty"),
    ("  \n\u200b ", "the prompt is empty"),
    ("()", "the prompt is empty"),
    ("?!", "the prompt names no object"),
    ("beautiful", "the prompt names no object"),
    ("4k, cinematic", "the prompt names no object"),
    ("\u0434\u0432\u0435 \u043a\u043e\u0448\u043a\u0438", "the prompt is not in English or Chinese"),
    ("\u4e8c\u5339\u306e\u732b\u304c\u3044\u308b", "the prompt is not in English or Chinese"),
    ("cat " * 6000, "the prompt is longer than 20000 characters"),
])
def test_reasons_for_no_entities(text: str, reason: str) -> None:
    prompt = parse(text)
    assert (prompt.entities, prompt.reason, prompt.raw) == ((), reason, text)


def test_parts_of_a_prompt() -> None:
    prompt = parse("a (Red:1.3) Fox, 4k")
    assert (prompt.raw, prompt.text, prompt.reason) == ("a (Red:1.3) Fox, 4k", "a Red Fox, 4k", "")
    assert prompt.entities[0].of("colour") == ("red",)


def test_repeated_nouns_are_one_entity_with_all_that_is_said() -> None:
    prompt = parse("A red ball rolls on snow. The ball is big.")
    assert said(prompt)["ball"] == {("colour", "red"), ("action", "roll"), ("relation", "on snow"), ("size", "big")}
    assert prompt.text[slice(*prompt.entities[0].span)] == "ball"


def test_without_spacy_there_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "_loaded", {"en": "spaCy is not installed"})
    prompt = parse("a green parrot that no other test mentions")
    assert (prompt.entities, prompt.reason) == ((), "spaCy is not installed")


def test_a_parser_that_fails_does_not_stop_a_render(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> str:
        raise RuntimeError(text)

    monkeypatch.setitem(pipeline._loaded, "en", broken)
    assert parse("a blue parrot that no other test mentions").reason == "the prompt could not be parsed (AttributeError)"


def test_threads_share_one_pipeline() -> None:
    found: dict[int, tuple[str, ...]] = {}

    def work(n: int) -> None:
        found[n] = parse(f"{n} cats, barn").lemmas

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(2, 10), ("cat", "barn"))


_WORDS = st.sampled_from(["a", "red", "ball", "(", ")", ":1.2", "[", "|", "]", "{", "}", ",", ".", "and", "no", "two", "of", "'s",
                          "is", "running", "left", "on", "-", "to", "the", "from", "made", "metal", "not", "camera", "right", "\\(",
                          "<lora:", ">", "\u732b", "\u200b", "\U0001f431", "\ud800", "orange", "light", "which", "it", "__", "0.5"])


@settings(max_examples=150, deadline=None)
@given(st.lists(_WORDS, max_size=14).map(" ".join) | st.text(max_size=40))
def test_any_text_can_be_parsed(text: str) -> None:
    prompt = parse(text)
    assert prompt.raw == text and bool(prompt.reason) == (not prompt.entities)
    assert "could not be parsed" not in prompt.reason, text
    for entity in prompt.entities:
        start, end = entity.span
        assert 0 <= start < end <= len(prompt.text)
        assert entity.text.endswith(prompt.text[start:end])
