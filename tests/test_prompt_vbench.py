"""VBench's 944 prompts: harmless edits change no entity set, and what is no object appears in none."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from carnator.carnator_core.prompt import Prompt, parse_many

PROMPTS = (Path(__file__).parent / "data/prompts/vbench.txt").read_text(encoding="utf-8").splitlines()
LONG = (Path(__file__).parent / "data/prompts/long.txt").read_text(encoding="utf-8").splitlines()

EDITS: dict[str, Callable[[str], str]] = {
    "upper": str.upper,
    "lower": str.lower,
    "title": str.title,
    "capital": lambda text: text[:1].upper() + text[1:],
    "double spaces": lambda text: text.replace(" ", "  "),
    "tabs and line ends": lambda text: "\t" + text.replace(" ", "\n") + "\r\n",
    "final stop": lambda text: text.rstrip(". ") + ".",
    "no final stop": lambda text: text.rstrip(". "),
    "quotes": lambda text: f'"{text}"',
    "curly quotes": lambda text: f"\u201c{text}\u201d",
    "single quotes": lambda text: f"'{text}'",
    "curly apostrophes": lambda text: text.replace("'", "\u2019"),
    "zero width space": lambda text: text.replace(" ", " \u200b") + "\u200b",
    "byte order mark": lambda text: "\ufeff" + text,
    "no-break spaces": lambda text: text.replace(" ", "\u00a0"),
    "full width": lambda text: "".join(chr(ord(c) + 0xFEE0) if c.isascii() and c.isalpha() else c for c in text),
    "weight": lambda text: f"({text}:1.2)" if not set("()") & set(text) else text,
    "tag": lambda text: f"<lora:style:0.8> {text}",
    "quality": lambda text: text.rstrip(". ") + ", 4k, highly detailed, masterpiece",
}
# field-notes' boilerplate, and more of its kind.
NO_OBJECTS = frozenset("""close-up closeup close up 4k 8k hd view style camera footage left right top bottom front shot zoom pan
tilt focus perspective quality detail lighting cinematic masterpiece background foreground frame tableau motion effect
style scene video photo image angle time art cgi animation side middle back in out down""".split())


@cache
def parsed() -> dict[str, list[Prompt]]:
    """The prompts as they are ("") and after each edit. In one call, so that alike texts are parsed once."""
    edits = {"": lambda text: text, **EDITS}
    read = parse_many([edit(text) for edit in edits.values() for text in PROMPTS])
    return {name: read[i * len(PROMPTS):(i + 1) * len(PROMPTS)] for i, name in enumerate(edits)}


def plain() -> list[Prompt]:
    return parsed()[""]


def test_the_fixture_is_the_whole_list() -> None:
    assert len(PROMPTS) == len(set(PROMPTS)) == 944


@pytest.mark.parametrize("edit", EDITS)
def test_harmless_edits_change_no_entity_set(edit: str) -> None:
    changed = [(a.raw, set(a.lemmas) ^ set(b.lemmas)) for a, b in zip(plain(), parsed()[edit], strict=True)
               if set(a.lemmas) != set(b.lemmas)]
    assert len(changed) <= len(PROMPTS) // 100, changed[:20]


def test_no_objects_appear_in_none() -> None:
    wrong = [(p.raw, bad) for p in plain() if (bad := NO_OBJECTS & set(p.lemmas))]
    assert wrong == []


def test_every_prompt_names_something() -> None:
    assert [p.raw for p in plain() if p.reason] == []


@pytest.mark.parametrize(("text", "lemmas"), [
    ("A tranquil tableau of a bowl on the kitchen counter", ("bowl", "counter")),
    ("In a still frame, phone booth", ("booth",)),
    ("A person is petting animal (not cat)", ("person", "animal", "cat")),
    ("a fire hydrant and a stop sign", ("hydrant", "sign")),
    ("a remote and a keyboard", ("remote", "keyboard")),
    ("A cute happy Corgi playing in park, sunset by Hokusai, in the style of Ukiyo", ("corgi", "park", "sunset")),
    ("A panda drinking coffee in a cafe in Paris, in super slow motion", ("panda", "coffee", "cafe", "paris")),
    ("A boat sailing leisurely along the Seine River with the Eiffel Tower in background, zoom in",
     ("boat", "river", "tower")),
    ("a dog drinking water", ("dog", "water")),
    ("a donut on the top of broccoli, front view", ("donut", "broccoli")),
    ("Close up of grapes on a rotating table.", ("grape", "table")),
])
def test_known_prompts(text: str, lemmas: tuple[str, ...]) -> None:
    assert text in PROMPTS
    assert plain()[PROMPTS.index(text)].lemmas == lemmas


def test_prompts_of_more_than_two_hundred_words() -> None:
    for prompt in parse_many(LONG):
        assert len(prompt.text.split()) > 200
        assert len(prompt.entities) > 10 and not prompt.reason
        assert not NO_OBJECTS & set(prompt.lemmas)
        assert all(prompt.text[slice(*e.span)].isalpha() for e in prompt.entities if "-" not in e.text)
