"""Noun phrases: which words belong to which thing, what stands in front of a noun, what is named in one breath."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .entities import Mention, verb_lemma
from .types import Modifier
from .words import (
    COLOURS,
    DIRECTIONS,
    GROUPS,
    LEMMAS,
    MATERIALS,
    NEGATIONS,
    NO_COUNT,
    NUMBERS,
    QUALITY,
    SIZES,
)

if TYPE_CHECKING:
    from spacy.tokens import Doc

Said = tuple[int, Modifier]  # index of the mention, what is said of it
_MADE = frozenset("made built carved crafted formed constructed".split())
_IDENTITY = frozenset("other same single lone such own certain one".split())


def classify(word: str, lemma: str) -> Modifier | None:
    """Colour, size, material or count by the word lists; None for any other word."""
    for kind, table in (("colour", COLOURS), ("size", SIZES), ("material", MATERIALS), ("count", NUMBERS)):
        if word in table:
            return Modifier(kind, table[word])
    if word.isdigit() and len(word) < 5 and word != "1":
        return Modifier("count", word)
    for suffix in ("-colored", "-coloured"):
        if word.endswith(suffix):
            return Modifier("colour", word.removesuffix(suffix))
    return classify(lemma, lemma) if lemma != word else None


class Phrases:
    """The noun phrases of one parsed and repaired doc. `owner`: token index -> index of the mention it belongs to."""

    def __init__(self, doc: Doc, mentions: list[Mention]) -> None:
        self.doc, self.mentions = doc, mentions
        self.words = [t.text for t in doc]
        self.owner: dict[int, int] = {}
        for n, mention in enumerate(mentions):
            self.owner.update(dict.fromkeys(range(mention.phrase, mention.head + 1), n))
        self.activity: dict[int, str] = {}
        self.made_of: list[tuple[int, str]] = []
        self._set_predicates_apart()
        self.in_front = [list(self._in_front(n)) for n in range(len(mentions))]

    def _set_predicates_apart(self) -> None:
        """Nouns that are part of a predicate: "made of metal", "is rock climbing"."""
        doc = self.doc
        for n, mention in enumerate(self.mentions):
            before = self.words[max(0, mention.phrase - 2):mention.phrase]
            after = doc[mention.head + 1] if mention.head + 1 < len(doc) else None
            word = doc[mention.head].text
            if word in MATERIALS and len(before) == 2 and before[1] in ("of", "from") and before[0] in _MADE and n:
                mention.thing = False
                self.made_of.append((n, MATERIALS[word]))
            elif (after is not None and after.tag_ == "VBG" and before[-1:] in (["is"], ["are"], ["was"])
                  and mention.thing and doc[mention.phrase].pos_ != "DET"):
                mention.thing = False
                self.activity[after.i] = doc[mention.first:mention.head + 1].text

    def _in_front(self, n: int) -> Iterator[Modifier]:
        """What stands in the noun phrase before its noun. Moves mention.phrase to where the phrase starts."""
        mention = self.mentions[n]
        mention.phrase = self._start(mention)
        self.owner.update(dict.fromkeys(range(mention.phrase, mention.head + 1), n))
        countless = self.doc[mention.head].tag_ not in ("NNS", "NNPS") or mention.lemma in NO_COUNT
        for i in range(mention.phrase, mention.first):
            token = self.doc[i]
            known = classify(token.text, token.lemma_)
            if token.text in NEGATIONS:
                countless = True
                yield Modifier("negation", "no")
            elif known:
                countless = countless or known.kind == "count"
                yield known
            elif token.tag_ == "VBG":
                yield Modifier("action", verb_lemma(token))
            elif token.pos_ in ("ADJ", "VERB") and len(token.text) > 1 and token.text not in QUALITY | _IDENTITY:
                yield Modifier("attribute", token.text)
        yield from self._name(mention)
        word = self.doc[mention.head].text
        if not countless and LEMMAS.get(word) != word:
            yield Modifier("count", "several")

    def _name(self, mention: Mention) -> Iterator[Modifier]:
        """The words of a compound, as what they say of its head."""
        for i in range(mention.first, mention.head):
            word = self.words[i]
            if word in ("'s", "'", "-") or word in mention.lemma.split() or self.doc[i].pos_ == "DET":
                continue
            known = classify(word, word) if i != mention.possessor else None
            if known is None:
                yield Modifier("attribute", word + ("'s" if i == mention.possessor else ""))
            elif known.kind != "count":
                yield known

    def _start(self, mention: Mention) -> int:
        """The first token of the noun phrase, looking left from what the mention already covers."""
        doc, i = self.doc, mention.phrase - 1
        while i >= 0 and i not in self.owner:
            token, word, beside = doc[i], self.words[i], doc[i + 1]
            before = doc[i - 1].pos_ if i else ""
            in_front = token.dep_ in ("amod", "compound", "nmod") and token.head.i > i and before not in (
                "AUX", "NOUN", "PROPN")
            if token.pos_ == "AUX" or token.pos_ == "VERB" and not in_front:
                break
            plain = (token.pos_ in ("DET", "ADJ", "NUM") or token.tag_ in ("PRP$", "VBG", "VBN", "VBD")
                     or word in NEGATIONS or classify(word, word))
            if plain:
                if word in DIRECTIONS and token.pos_ not in ("ADJ", "DET"):
                    break
            elif token.pos_ == "ADV" and beside.pos_ in ("ADJ", "VERB", "ADV"):
                if word in DIRECTIONS:
                    break
            elif not self._links(i, mention):
                break
            elif word == "-":
                i -= 1
            i -= 1
        return i + 1

    def _links(self, i: int, mention: Mention) -> bool:
        """Whether token i ties two adjectives of one noun: "black and white", "big, red", "rock-carved"."""
        doc, word = self.doc, self.words[i]
        if word not in ("and", ",", "-") or i == 0 or i - 1 in self.owner:
            return False
        left, right = doc[i - 1], doc[i + 1]
        if right.pos_ not in ("ADJ", "VERB", "NOUN"):
            return False
        if word == "-":
            return left.pos_ in ("ADJ", "NOUN", "PROPN", "ADV", "NUM", "VERB")
        both = classify(left.text, left.text) and classify(right.text, right.text)
        return bool(both) or left.pos_ == "ADJ" and left.head.i in (mention.head, i + 1)

    def groups(self) -> Iterator[Said]:
        """ "a pair of shoes", "a herd of horses": the number goes to what follows "of"."""
        for n, mention in enumerate(self.mentions[:-1]):
            word = self.doc[mention.head].text
            if word in GROUPS and self.doc[mention.head + 1].text == "of" and self.phrase_at(mention.head + 2) == n + 1:
                if word in ("pair", "couple", "trio", "dozen"):
                    yield n + 1, Modifier("count", NUMBERS[word])

    def phrase_at(self, i: int) -> int | None:
        """The mention whose noun phrase starts at token i."""
        n = self.owner.get(i)
        return n if n is not None and self.mentions[n].phrase == i else None

    def joined(self, n: int, before: int | None = None) -> list[int]:
        """The things that a sentence names in one breath with n ("a cross and a blue cube"), up to token `before`."""
        first = last = n
        while first > 0 and self._conjoined(first - 1, first):
            first -= 1
        while (last + 1 < len(self.mentions) and self.mentions[last + 1].head < (before or 0)
               and self._conjoined(last, last + 1)):
            last += 1
        return list(range(first, last + 1))

    def _conjoined(self, a: int, b: int) -> bool:
        doc, here, there = self.doc, self.mentions[a], self.mentions[b]
        between = self.words[here.head + 1:there.phrase]
        if between not in (["and"], ["or"], [",", "and"]) or not (here.thing and there.thing):
            return False
        # "a cat on a mat and a dog": the mat is no second cat, unless the parser says so.
        inner = here.phrase > 0 and doc[here.phrase - 1].pos_ in ("ADP", "VERB", "AUX")
        return not inner or doc[there.head].dep_ == "conj" and doc[there.head].head.i == here.head

    def listed(self, n: int, words: tuple[str, ...]) -> list[int]:
        """n and what follows it, joined by one of the words."""
        listed = [n]
        while n + 1 < len(self.mentions):
            between = self.words[self.mentions[n].head + 1:self.mentions[n + 1].phrase]
            if len(between) != 1 or between[0] not in words:
                break
            n += 1
            listed.append(n)
        return listed

    def before(self, near: int) -> list[int]:
        """The things right before token `near`, adverbs and auxiliaries aside."""
        while near > 0 and self.doc[near].pos_ in ("ADV", "AUX"):
            near -= 1
        return self.joined(self.owner[near], near + 1) if near in self.owner else []
