"""The stage "prompt" of the method: text to N(y), the entities, with what is said about each."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from .chinese import chinese_entities
from .clauses import Clauses
from .entities import ask_again, mentions, noun_lemma, repair
from .look import take_scene
from .pipeline import LOCK, PipelineMissing, docs, pipeline
from .syntax import strip_host_syntax
from .tidy import Tidy, tidy
from .types import Entity, Found, Modifier, Prompt

if TYPE_CHECKING:
    from spacy.tokens import Doc

logger = logging.getLogger("carnator")
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
    return replace(_safely(_stripped(text))[0], raw=text)


def parse_many(texts: Sequence[str]) -> list[Prompt]:
    """parse for many prompts, several times as fast."""
    read = _parse_all([_stripped(text) for text in texts])
    return [replace(prompt, raw=text) for text, (prompt, _) in zip(texts, read, strict=True)]


def mention_spans(stripped: str) -> Spans:
    """Lemma -> the head-noun spans of all its occurrences in a prompt without host syntax (Prompt.text)."""
    return _safely(stripped)[1]


def _stripped(text: str) -> str:
    return strip_host_syntax(text) if len(text) <= LONGEST else text


def _safely(stripped: str) -> tuple[Prompt, Spans]:
    try:
        return _parsed(stripped)
    except Exception as error:  # whatever a parser does to an odd text, the render goes on, densely
        logger.exception("a prompt could not be parsed")
        return Prompt(stripped, stripped, (), f"the prompt could not be parsed ({type(error).__name__})"), {}


@lru_cache(maxsize=512)
def _parsed(stripped: str) -> tuple[Prompt, Spans]:
    return _parse_all([stripped])[0]


def _parse_all(texts: Sequence[str]) -> list[tuple[Prompt, Spans]]:
    """Prompts and spans of stripped texts. Texts that are alike once tidied are parsed once."""
    results: list[tuple[Prompt, Spans]] = []
    waiting: dict[str, list[tuple[int, Tidy]]] = {"en": [], "zh": []}
    for text in texts:
        form = tidy(text[:LONGEST])
        spoken, reason = language(form.text), ""
        scene: tuple[Modifier, ...] = ()
        if len(text) > LONGEST:
            reason = f"the prompt is longer than {LONGEST} characters"
        elif not form.text:
            seen = any(not c.isspace() and unicodedata.category(c) != "Cf" for c in text)
            reason = "the prompt names no object" if seen else "the prompt is empty"
        elif spoken == "other":
            reason = "the prompt is not in English or Chinese"
        elif spoken == "en":
            form, scene = take_scene(form)
        if not reason:
            waiting[spoken].append((len(results), form))
        results.append((Prompt(text, text, (), reason, scene), {}))
    for spoken, jobs in waiting.items():
        forms = list(dict.fromkeys(form.text for _, form in jobs))
        found: dict[str, list[Found]] = {}
        reason = "the prompt names no object"
        try:
            with LOCK:
                found = dict(zip(forms, map(_READ[spoken], docs(spoken, forms) if forms else ()), strict=True))
        except PipelineMissing as error:
            reason = ("the prompt is Chinese and " if spoken == "zh" else "") + str(error)
        for at, form in jobs:
            prompt = results[at][0]
            entities, spans = _merge(found.get(form.text, []), form, prompt.text)
            results[at] = replace(prompt, entities=entities, reason="" if entities else reason), spans
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
            possessor = None if mention.possessor is None else doc[mention.possessor]
            owner = None if possessor is None else (
                noun_lemma(possessor), possessor.idx, possessor.idx + len(possessor))
            found.append(Found(mention.lemma, first.idx, head.idx, head.idx + len(head), modifiers, owner))
    return found


_READ = {"en": _english, "zh": chinese_entities}


def _settled(modifiers: Iterable[Modifier]) -> tuple[Modifier, ...]:
    """Each once; "several" gives way to a number or to none."""
    once = dict.fromkeys(modifiers)
    counted = sum(m.kind in ("count", "negation") for m in once)
    return tuple(m for m in once if m != Modifier("count", "several") or counted == 1)


def _merge(found: Sequence[Found], form: Tidy, text: str) -> tuple[tuple[Entity, ...], Spans]:
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
    for one in found:
        if one.owner is not None and one.owner[0] in spans:
            lemma, start, end = one.owner
            spans[lemma] = (*spans[lemma], form.span(start, end))
    return tuple(entities.values()), spans
