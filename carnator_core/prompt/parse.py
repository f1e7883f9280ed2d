"""The stage "prompt" of the method: text to N(y), the entities, with what is said about each."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from .chinese import chinese_entities
from .clauses import Clauses
from .entities import ask_again, mentions, repair
from .look import take_scene
from .pipeline import PipelineMissing, docs, pipeline
from .syntax import strip_host_syntax
from .tidy import Tidy, tidy
from .types import Entity, Found, Modifier, Prompt

if TYPE_CHECKING:
    from spacy.tokens import Doc

# Longer texts are no prompts; the parser would take seconds and much memory.
LONGEST = 20_000
Spans = dict[str, tuple[tuple[int, int], ...]]


def language(text: str) -> str:
    """ "en", "zh", or "other": by script alone, for languages in Latin letters cannot be told apart in a few words."""
    counts = {"latin": 0, "han": 0, "kana": 0, "other": 0}
    for char in text:
        if char.isalpha():
            name = unicodedata.name(char, "")
            script = ("latin" if name.startswith(("LATIN", "FULLWIDTH LATIN")) else "han" if name.startswith("CJK")
                      else "kana" if name.startswith(("HIRAGANA", "KATAKANA")) else "other")
            counts[script] += 1
    if counts["kana"] > 0.1 * sum(counts.values()):
        return "other"
    # A Chinese character says about as much as an English word of four letters.
    if counts["han"] * 4 > counts["latin"]:
        return "zh"
    return "other" if counts["other"] > counts["latin"] else "en"


def parse(text: str) -> Prompt:
    """Entities of a prompt as a creator typed it. Never raises for a text; without entities, `reason` says why.

    Case, spacing, quotes, invisible characters and a final stop make no difference to the entities.
    """
    return _parsed(text)[0]


def mention_spans(text: str) -> Spans:
    """Lemma -> the head-noun spans of all its occurrences in parse(text).text."""
    return _parsed(text)[1]


def parse_many(texts: Sequence[str]) -> list[Prompt]:
    """parse for many prompts, several times as fast."""
    return [prompt for prompt, _ in _parse_all(texts)]


@lru_cache(maxsize=512)
def _parsed(text: str) -> tuple[Prompt, Spans]:
    return _parse_all([text])[0]


def _parse_all(texts: Iterable[str]) -> list[tuple[Prompt, Spans]]:
    results: list[tuple[Prompt, Spans]] = []
    waiting: dict[str, list[tuple[int, str, str, Tidy, tuple[Modifier, ...]]]] = {"en": [], "zh": []}
    for raw in texts:
        stripped = strip_host_syntax(raw) if len(raw) <= LONGEST else ""
        form = tidy(stripped)
        reason, spoken = "", language(form.text)
        if len(raw) > LONGEST:
            reason = f"the prompt is longer than {LONGEST} characters"
        elif not form.text:
            reason = "the prompt names no object" if stripped.strip() else "the prompt is empty"
        elif spoken == "other":
            reason = "the prompt is not in English or Chinese"
        results.append((Prompt(raw, stripped, (), reason), {}))
        if not reason:
            kept, scene = take_scene(form) if spoken == "en" else (form, ())
            waiting[spoken].append((len(results) - 1, raw, stripped, kept, scene))
    for spoken, jobs in waiting.items():
        if not jobs:
            continue
        texts_once = list(dict.fromkeys(job[3].text for job in jobs))
        read = _english if spoken == "en" else chinese_entities
        try:
            parsed = dict(zip(texts_once, [read(doc) for doc in docs(spoken, texts_once)], strict=True))
        except PipelineMissing as error:
            about = "the prompt is Chinese and " if spoken == "zh" else ""
            for at, raw, stripped, _, scene in jobs:
                results[at] = Prompt(raw, stripped, (), about + str(error), scene), {}
            continue
        for at, raw, stripped, form, scene in jobs:
            entities, spans = _merge(parsed[form.text], form, stripped)
            reason = "" if entities else "the prompt names no object"
            results[at] = Prompt(raw, stripped, entities, reason, scene), spans
    return results


def _english(doc: Doc) -> list[Found]:
    nlp = pipeline("en")
    repair(doc, nlp)
    ask_again(doc, nlp)
    here = mentions(doc)
    said = Clauses(doc, here).read()
    found: list[Found] = []
    for n, mention in enumerate(here):
        if mention.thing:
            head, first = doc[mention.head], doc[mention.first]
            modifiers = _settled(m for at, m in said if at == n)
            found.append(Found(mention.lemma, first.idx, head.idx, head.idx + len(head), modifiers))
    return found


def _settled(modifiers: Iterable[Modifier]) -> tuple[Modifier, ...]:
    """Each once; "several" gives way to a number or to none."""
    once = dict.fromkeys(modifiers)
    counted = sum(m.kind in ("count", "negation") for m in once)
    return tuple(m for m in once if m != Modifier("count", "several") or counted == 1)


def _merge(found: Iterable[Found], form: Tidy, text: str) -> tuple[tuple[Entity, ...], Spans]:
    """Repeated nouns are one entity, at the first occurrence, with all modifiers."""
    entities: dict[str, Entity] = {}
    spans: Spans = {}
    for one in found:
        span = form.span(one.head, one.end)
        known = entities.get(one.lemma)
        if known is None:
            start, end = form.span(one.first, one.end)
            entities[one.lemma] = Entity(one.lemma, text[start:end], span, one.modifiers)
        else:
            modifiers = _settled((*known.modifiers, *one.modifiers))
            entities[one.lemma] = Entity(one.lemma, known.text, known.span, modifiers)
        spans[one.lemma] = (*spans.get(one.lemma, ()), span)
    return tuple(entities.values()), spans
