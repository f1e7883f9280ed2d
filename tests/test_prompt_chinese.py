"""Chinese prompts: a reason without spaCy's Chinese model, and the reading of its parse (hand-made: no model here)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import spacy
from carnator.carnator_core.prompt import parse, pipeline
from carnator.carnator_core.prompt.pipeline import PipelineMissing
from spacy.tokens import Doc

# "two red cars drive on the road, front view"
WORDS = ["\u4e24", "\u8f86", "\u7ea2\u8272", "\u6c7d\u8f66", "\u5728", "\u9053\u8def", "\u4e0a", "\u884c\u9a76", ",",
         "\u6b63\u89c6\u56fe"]
POS = ["NUM", "NOUN", "ADJ", "NOUN", "ADP", "NOUN", "PART", "VERB", "PUNCT", "NOUN"]
HEADS = [3, 0, 3, 7, 5, 7, 5, 7, 7, 7]
DEPS = ["nummod", "mark:clf", "amod", "nsubj", "case", "nmod:prep", "case", "ROOT", "punct", "dep"]


class Parsed:
    """A pipeline that knows one sentence."""

    def pipe(self, texts: Iterable[str], batch_size: int = 1) -> Iterator[Any]:
        for _ in texts:
            doc = Doc(spacy.blank("en").vocab, WORDS, spaces=[False] * 8 + [True, False], pos=POS, heads=HEADS, deps=DEPS)
            doc[1].pos_ = "NUM"
            yield doc


def missing() -> bool:
    try:
        pipeline.pipeline("zh")
    except PipelineMissing:
        return True
    return False


@pytest.mark.skipif(not missing(), reason="the Chinese model is installed here")
def test_without_the_model_the_reason_says_what_to_do() -> None:
    prompt = parse("\u4e24\u53ea\u732b\u5728\u96ea\u5730\u4e0a")
    assert prompt.entities == ()
    assert prompt.reason == ("the prompt is Chinese and spaCy's Chinese model is not installed "
                             "(python -m spacy download zh_core_web_sm)")


def test_nouns_and_modifiers_of_a_chinese_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pipeline._loaded, "zh", Parsed())
    prompt = parse("".join(WORDS[:8]) + "\uff0c" + WORDS[9] + "\u3002")
    assert prompt.lemmas == ("\u6c7d\u8f66", "\u9053\u8def")
    car = prompt.entities[0]
    assert [(m.kind, m.text) for m in car.modifiers] == [("count", "2"), ("colour", "red"), ("action", "\u884c\u9a76")]
    assert prompt.text[slice(*car.span)] == "\u6c7d\u8f66"


def test_a_few_chinese_words_in_an_english_prompt_are_no_entities() -> None:
    assert parse("a red lantern \u798f hangs on a wooden door").lemmas == ("lantern", "door")
