"""From a parsed sentence to its things: one mention per head noun, with its compounds and possessors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .words import (
    ABSTRACT,
    ATTRIBUTIVE_ING,
    CAMERA,
    COLOUR_OR_THING,
    COLOURS,
    DIRECTIONS,
    FIXED_COMPOUNDS,
    GROUPS,
    ING_THINGS,
    LEMMAS,
    LOOK,
    MATERIALS,
    MOTION,
    NEVER_NOUNS,
    NUMBERS,
    PLACES_IN_FRAME,
    QUALITY,
)

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token

NOUNS = ("NOUN", "PROPN")
_DETERMINERS = frozenset("a an the this that these those his her its their my your our no some two three".split())
PRONOUNS = frozenset("""i you he she it we they me him her us them who what this that these those there someone
everyone""".split())
STOPS = frozenset(",.;:!?")
_SCENE = CAMERA | QUALITY | LOOK | {"-"}


@dataclass
class Mention:
    """One occurrence of a noun, by token index: noun phrase [phrase, head], its name [first, head].

    thing is False for what is no object of the scene ("view", "a group of"); such mentions only pass relations on.
    """

    lemma: str
    head: int
    first: int
    phrase: int
    thing: bool
    possessor: int | None = None


def verb_lemma(token: Token) -> str:
    """The lemma of a verb; "riding" is of "ride" and not of "rid", for that would double its consonant."""
    lemma, word = token.lemma_, token.text
    if word == lemma + "ing" and re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", lemma):
        return lemma + "e"
    return lemma


def _retag(token: Token, nlp: Language, tag: str) -> None:
    lemmatizer: Any = nlp.get_pipe("lemmatizer")
    token.tag_, token.pos_ = tag, "VERB" if tag.startswith("V") else "NOUN"
    token.lemma_ = lemmatizer.rule_lemmatize(token)[0] if tag.startswith("V") else token.text


def repair(doc: Doc, nlp: Language) -> None:
    """Mend in place what the tagger gets wrong on captions: verbs taken for nouns, and nouns for verbs."""
    for i, token in enumerate(doc):
        word = token.text
        before = doc[i - 1] if i else None
        after = doc[i + 1] if i + 1 < len(doc) else None
        if word in DIRECTIONS and word not in ("ahead", "away"):
            continue
        if before is not None and f"{before.text} {word}" in FIXED_COMPOUNDS and token.pos_ not in NOUNS:
            _retag(token, nlp, "NN")
            continue
        if word.endswith("ing") and len(word) > 4 and token.pos_ in NOUNS and word not in ING_THINGS:
            kind = after is not None and after.pos_ in NOUNS and word in ATTRIBUTIVE_ING
            if before is not None and before.pos_ in (*NOUNS, "PRON") and not kind and before.tag_ != "PRP$":
                _retag(token, nlp, "VBG")
        elif before is not None and token.pos_ == "ADJ" and _misread(token, before, after):
            _retag(token, nlp, "NN")
        elif i and _finite(doc, i):
            _retag(token, nlp, "VBZ")
        elif (token.pos_ not in (*NOUNS, "NUM", "PUNCT", "PRON", "DET") and before is not None
              and word not in NEVER_NOUNS and word not in COLOURS and word.isalpha()
              and (before.text in ("a", "an", "the") or before.text in COLOURS and i > 1 and doc[i - 2].pos_ == "DET")
              and (after is None or after.text in STOPS or after.text in ("and", "on", "in", "is", "at", "with"))
              and not (token.pos_ == "ADJ" and after is not None and after.text in ("and", ","))):
            _retag(token, nlp, "NN")


def _misread(token: Token, before: Token, after: Token | None) -> bool:
    """Whether an "adjective" is a rare noun: "an ant gradually grows", "a streetlight changes"."""
    if before.text not in ("a", "an") or token.text in NEVER_NOUNS or token.text in COLOURS or after is None:
        return False
    if after.text == "and":
        return after.i + 1 < len(token.doc) and token.doc[after.i + 1].pos_ == "DET"
    return token.dep_ == "nsubj" or after.tag_ == "NNS" and after.lemma_ != after.text


def _finite(doc: Doc, i: int) -> bool:
    """Whether a "plural noun" is what its subject does: "a train runs from left to right"."""
    token, before = doc[i], doc[i - 1]
    if i == 0 or token.tag_ != "NNS" or token.lemma_ == token.text or before.tag_ not in ("NN", "NNP"):
        return False
    if before.text in COLOURS or before.text in NUMBERS:
        return False
    after = doc[i + 1] if i + 1 < len(doc) else None
    if after is not None and after.text not in DIRECTIONS and (
            after.pos_ in (*NOUNS, "VERB", "AUX") or after.text == "of"):
        return False
    start = i - 1
    while start and doc[start - 1].pos_ in ("ADJ", "NOUN", "PROPN"):
        start -= 1
    article = doc[start - 1].text if start else ""
    if any(t.pos_ in ("VERB", "AUX") and t.tag_ in ("VBZ", "VBD", "VBP", "MD") for t in token.sent):
        return False
    return article in ("a", "an", "one", "another") or token.lemma_ in MOTION


def doubtful(doc: Doc) -> list[int]:
    """Tokens to ask about again: the last of short pieces without any noun ("arch", "old barn"), and what looks like an
    adjective after its noun ("a fire hydrant on")."""
    found, start = [], 0
    for i in range(1, len(doc)):
        follows = doc[i + 1].pos_ if i + 1 < len(doc) else "PUNCT"
        if (doc[i].tag_ == "JJ" and doc[i - 1].tag_ == "NN" and follows in ("ADP", "PUNCT", "AUX", "CCONJ")
                and doc[i].text not in NEVER_NOUNS and doc[i].text not in COLOURS and doc[i].text.isalpha()):
            found.append(i)
    for i in range(len(doc) + 1):
        if i == len(doc) or doc[i].text in STOPS:
            piece = doc[start:i]
            last = piece[-1].text if len(piece) else ""
            named = any(t.pos_ in (*NOUNS, "AUX") or t.text in PRONOUNS for t in piece)
            if (0 < len(piece) <= 3 and not named and last.isalpha() and len(last) > 2
                    and last not in NEVER_NOUNS and last not in DIRECTIONS
                    and not last.endswith(("ing", "ly", "ed")) and (last not in COLOURS or last in COLOUR_OR_THING)):
                found.append(i - 1)
            start = i + 1
    return found


def ask_again(doc: Doc, nlp: Language) -> None:
    """Ask the tagger again with an article in front; in place."""
    places = doubtful(doc)
    if not places:
        return
    for i, again in zip(places, nlp.pipe([f"there is the {doc[i].text}." for i in places]), strict=True):
        if again[3].pos_ in NOUNS or not any(t.pos_ in NOUNS for t in doc):
            _retag(doc[i], nlp, again[3].tag_ if again[3].tag_ in ("NNS", "NNP") else "NN")


def noun_lemma(token: Token) -> str:
    """The lower-case singular of a noun, the same whether it was tagged as a name or not."""
    word = token.text
    if word in LEMMAS:
        return LEMMAS[word]
    if token.tag_ in ("NNS", "NNPS") or (word.endswith(("es", "s")) and token.lemma_ != word and token.pos_ == "NOUN"):
        lemma = token.lemma_ if token.pos_ == "NOUN" else ""
        if not lemma or lemma == word:
            lemma = word[:-1] if word.endswith("s") and not word.endswith("ss") else word
        return LEMMAS.get(lemma, lemma)
    return word


def _joins(doc: Doc, i: int) -> bool:
    """Whether noun i is part of the name of the noun after it."""
    a, b = doc[i], doc[i + 1]
    if f"{a.text} {noun_lemma(b)}" in FIXED_COMPOUNDS:
        return True
    if a.dep_ in ("compound", "nmod", "amod", "poss") and a.head.i > i:
        return True
    if a.tag_ in ("NNS", "NNPS"):
        return False
    # Two singular nouns side by side are one name, but for "give the dog food".
    return not (a.dep_ in ("dobj", "dative") and b.dep_ == "dobj")


def _is_thing(doc: Doc, head: int, first: int, lemma: str) -> bool:
    """Whether a noun is an object of the scene, by the word lists and the words beside it."""
    word = doc[head].text
    front = doc[head - 1].text if head else ""
    follows = doc[head + 1].text if head + 1 < len(doc) else ""
    if not word[0].isalpha() or len(word) < 2 or max(word) >= "\u2e80":  # Chinese in an English prompt
        return False
    if " " in lemma:
        return True
    if word in DIRECTIONS or word in NEVER_NOUNS or lemma in NEVER_NOUNS:
        return False
    if word in CAMERA and front in CAMERA or "camera" in (doc[i].text for i in range(first, head)):
        return False
    if word.endswith("ing") and word not in ING_THINGS and doc[head].pos_ != "PROPN":
        return False
    if lemma in ("light", "lamp") and first < head:
        return True
    known = front in MATERIALS or front in COLOURS or front in ("a", "an", "picture", "photo", "window", "door", "bed")
    if word in ("top", "tops", "frame", "frames") and known:
        return follows != "of"
    if word in COLOURS or lemma in COLOURS:
        article = doc[first - 1].text in _DETERMINERS if first else True
        return word in COLOUR_OR_THING and (article or doc[head].dep_ in ("ROOT", "conj") and first == head)
    if follows == "of" and (word in GROUPS or lemma in GROUPS) or word in ("hundreds", "thousands", "dozens"):
        return False
    return not (word in ABSTRACT or lemma in ABSTRACT or word in PLACES_IN_FRAME)


def mentions(doc: Doc) -> list[Mention]:
    """All nouns of a repaired doc, in order. Compounds and possessors belong to the noun that they lead to."""
    found: list[Mention] = []
    i = 0
    while i < len(doc):
        if doc[i].pos_ not in NOUNS or doc[i].text in STOPS or doc[i].text in DIRECTIONS and doc[i].text in NEVER_NOUNS:
            i += 1
            continue
        if doc[i].text in NUMBERS and doc[i].dep_ in ("nummod", "compound", "nmod", "quantmod") and doc[i].head.i > i:
            i += 1
            continue
        head = i
        while head + 1 < len(doc):
            if doc[head + 1].pos_ in NOUNS and doc[head + 1].text not in DIRECTIONS and _joins(doc, head):
                head += 1
            elif (doc[head + 1].text == "-" and head + 2 < len(doc) and doc[head + 2].pos_ in NOUNS
                  and doc[head + 1].idx == doc[head].idx + len(doc[head])):
                head += 2
            else:
                break
        end = head + 1
        if end + 1 < len(doc) and doc[end].text == "-" and doc[end].idx == doc[head].idx + len(doc[head]):
            i = end + 1  # "rock-carved": part of an adjective
            continue
        first = i
        # Colours and materials in front are modifiers, not part of the name: "glass bottle", "orange cat".
        while first < head and (doc[first].text in COLOURS or doc[first].text in MATERIALS):
            first += 1
        lemma = noun_lemma(doc[head])
        if head > first and f"{doc[head - 1].text} {lemma}" in FIXED_COMPOUNDS:
            lemma = f"{doc[head - 1].text} {lemma}"
        elif head and f"{doc[head - 1].text} {lemma}" in FIXED_COMPOUNDS:
            first, lemma = head - 1, f"{doc[head - 1].text} {lemma}"
        thing = _is_thing(doc, head, first, lemma)
        while not thing and head > first and doc[head - 1].text not in _SCENE:
            head -= 1  # "a church interior", "mountain view": the church, the mountain
            lemma = noun_lemma(doc[head])
            thing = _is_thing(doc, head, first, lemma)
        found.append(Mention(lemma, head, first, i, thing))
        i = end
    return _with_possessors(doc, found)


def _with_possessors(doc: Doc, found: list[Mention]) -> list[Mention]:
    """Merge "the man's" into "hat"; a possessor of no thing ("the dog's movement") stays itself."""
    kept: list[Mention] = []
    for mention in found:
        owner = kept[-1] if kept else None
        if owner is not None and owner.head + 1 < mention.phrase and doc[owner.head + 1].tag_ == "POS":
            between = doc[owner.head + 2:mention.phrase]
            if mention.thing and all(t.pos_ in ("ADJ", "NUM", "ADV", "VERB", *NOUNS) or t.text == "-" for t in between):
                kept.pop()
                kept.append(Mention(mention.lemma, mention.head, owner.first, owner.phrase, True, owner.head))
                continue
        kept.append(mention)
    return kept
