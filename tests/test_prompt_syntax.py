"""The host's prompt syntax: what is stripped, and that it is stripped exactly as the host does it."""

from __future__ import annotations

import random
from typing import Any

import pytest
from carnator.carnator_core.prompt import strip_host_syntax
from carnator.carnator_core.prompt.syntax import segments
from carnator.carnator_core.prompt.tidy import tidy


@pytest.mark.parametrize(("typed", "meant"), [
    ("a (car:1.3) here", "a car here"),
    ("((cat:1.3):1.1)", "cat"),
    ("(a (red:1.2) fox:0.8)", "a red fox"),
    (r"a \(fate\) poster", "a (fate) poster"),
    (r"(a \(small\) cat:1.2)", "a (small) cat"),
    ("(ratio 16:9)", "ratio 16"),
    ("(time: noon)", "time: noon"),
    ("an open (bracket", "an open (bracket"),
    ("closed) first (then:1.2)", "closed) first (then:1.2)"),
    ("(red:1.2)(car:1.1)", "red car"),
    ("(car)s", "cars"),
    ("<lora:add detail_v2:0.8> a dog", "a dog"),
    ("a dog<lora:x:1:0.5>, running", "a dog, running"),
    ("[cat:dog:0.5]", "cat, dog"),
    ("[cat:0.5] on a mat", "cat on a mat"),
    ("[cat::0.5]", "cat"),
    ("[cat|dog]", "cat, dog"),
    ("[[blue]:0.4] sky", "blue sky"),
    ("a cat | a dog", "a cat, a dog"),
    ("{red|{dark|light} blue} car", "red, dark, light blue car"),
    ("{2$$fox|wolf}", "fox, wolf"),
    ("a cat, embedding:EasyNegative, by a river", "a cat, by a river"),
    ("embedding:style.pt a cat", "a cat"),
    ("a __colour/warm__ cat", "a cat"),
    ("a cat BREAK a dog", "a cat, a dog"),
    ("two   spaces\tand tabs ", "two spaces and tabs"),
    ("", ""),
    ("()", ""),
])
def test_stripped(typed: str, meant: str) -> None:
    assert strip_host_syntax(typed) == meant


def test_plain_text_is_left_alone() -> None:
    text = "A cat, 3:2, at 24 fps; it's \"here\" - and e-mail_box <3 [sic?"
    assert strip_host_syntax(text) == text


def test_nesting_beyond_what_the_host_can_recurse_into_is_still_read() -> None:
    assert strip_host_syntax("(" * 3000 + "cat" + ":1.1)" * 3000).startswith("cat")


@pytest.mark.parametrize(("typed", "form"), [
    ("A  Big\u200b RED ball .", "a big red ball"),
    ("\u201cA cat\u201d, it\u2019s the dogs\u2019 house", "a cat, it's the dogs' house"),
    ("'a cat' on the man's mat", "a cat on the man's mat"),
    ("cat,dog;  bird.Fish", "cat, dog; bird. fish"),
    ("1.5 m, 3:2", "1.5 m, 3:2"),
    ("caf\u0065\u0301 \uff21", "caf\u00e9 a"),
    ("a cat \U0001f431 sits\n\non a mat!!!", "a cat sits on a mat"),
    ("red_car", "red car"),
    ("...", ""),
])
def test_tidy_form(typed: str, form: str) -> None:
    found = tidy(typed)
    assert found.text == form
    assert len(found.origin) == len(found.text)


def test_tidy_spans_point_into_the_original() -> None:
    typed = "  A\u200b  \u201cRED\u201d  Ball ."
    found = tidy(typed)
    start, end = found.span(found.text.index("ball"), found.text.index("ball") + 4)
    assert typed[start:end] == "Ball"


@pytest.mark.host
def test_weights_are_stripped_as_the_host_does(comfy: Any) -> None:
    from comfy.sd1_clip import escape_important, token_weights, unescape_important

    rng = random.Random(1)
    parts = ["(", ")", "\\(", "\\)", ":1.2", ":", "a", " b", "c", "1", ".5", "nan", ":)"]
    for _ in range(20_000):
        text = "".join(rng.choice(parts) for _ in range(rng.randint(0, 14)))
        host = [unescape_important(part) for part, _ in token_weights(escape_important(text), 1.0)]
        assert segments(text) == host, text
