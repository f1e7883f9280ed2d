"""What is said about each thing: the words in front of its noun, and what predicates and prepositions tie to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .entities import Mention
from .types import Modifier
from .words import (
    COLOURS,
    DIRECTIONS,
    GOING,
    GROUPS,
    LEMMAS,
    MATERIALS,
    MOTION,
    NEGATIONS,
    NO_COUNT,
    NUMBERS,
    PLACES_IN_FRAME,
    QUALITY,
    RELATIONS,
    SIZES,
)

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

Said = tuple[int, Modifier]  # index of the mention, what is said
_ENDS = frozenset(".;:!?")
_EMPTY_VERBS = frozenset("be have do feature show depict contain include capture see seem appear get create add".split())
_MADE = frozenset("made built carved crafted formed constructed".split())
# Who wears or holds: the person, not the hair or the coat named in between.
_OF_PEOPLE = frozenset("wear hold carry smile dress".split())
_RELATIONS = {k: [(list(w), r) for w, r in RELATIONS if w[0] == k] for k in {w[0] for w, _ in RELATIONS}}
_RELATIVE = frozenset(("that", "which", "who"))
_PRONOUNS = frozenset(("it", "they", "he", "she", "him", "her", "them"))


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


class Reader:
    """One parsed and repaired doc with its mentions; `said` collects the modifiers in order of appearance."""

    def __init__(self, doc: Doc, mentions: list[Mention]) -> None:
        self.doc, self.mentions = doc, mentions
        self.words = [t.text for t in doc]
        self.owner: dict[int, int] = {}
        for n, mention in enumerate(mentions):
            self.owner.update({i: n for i in range(mention.phrase, mention.head + 1)})
        self.activity: dict[int, str] = {}
        self.made_of: list[tuple[int, str]] = []
        self._no_things()

    def _no_things(self) -> None:
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
                  and mention.phrase == mention.first and doc[mention.first].pos_ != "DET"):
                mention.thing = False
                self.activity[after.i] = doc[mention.first:mention.head + 1].text

    def read(self) -> list[Said]:
        """All modifiers of all mentions."""
        said: list[Said] = []
        for n in range(len(self.mentions)):
            said += ((n, m) for m in self._in_front(n))
        said += self._groups()
        said += self._predicates()
        said += self._directions()
        said += self._relations()
        return said

    def _in_front(self, n: int) -> Iterator[Modifier]:
        """Words between the start of the noun phrase and the noun. Moves mention.phrase to that start."""
        doc, mention = self.doc, self.mentions[n]
        words: list[int] = []
        i = mention.phrase - 1
        while i >= 0 and i not in self.owner:
            token = doc[i]
            word = token.text
            beside = doc[i + 1]
            if token.pos_ == "VERB" and not (token.dep_ in ("amod", "compound", "nmod") and token.head.i > i):
                break
            if (token.pos_ in ("DET", "ADJ", "NUM") or token.tag_ in ("PRP$", "VBG", "VBN", "VBD")
                    or classify(word, word) or word in NEGATIONS):
                if word in DIRECTIONS and token.pos_ not in ("ADJ", "DET") or token.pos_ == "AUX":
                    break
                words.append(i)
            elif token.pos_ == "ADV" and beside.pos_ in ("ADJ", "VERB", "ADV") and word not in DIRECTIONS:
                words.append(i)
            elif word in ("and", ",", "-") and i and beside.pos_ in ("ADJ", "VERB", "NOUN") and i - 1 not in self.owner and (
                    classify(beside.text, beside.text) and classify(doc[i - 1].text, doc[i - 1].text)
                    or doc[i - 1].pos_ == "ADJ" and doc[i - 1].head.i in (mention.head, i + 1)
                    or word == "-" and doc[i - 1].pos_ in ("ADJ", "NOUN", "ADV", "NUM", "VERB")):
                words.append(i)
                if word == "-":
                    words.append(i - 1)
                    i -= 1
            else:
                break
            i -= 1
        if words:
            mention.phrase = min(words)
        self.owner.update({i: n for i in range(mention.phrase, mention.head + 1)})
        counted = denied = False
        for i in range(mention.phrase, mention.first):
            token = doc[i]
            word = token.text
            known = classify(word, token.lemma_)
            if word in NEGATIONS:
                denied = True
                yield Modifier("negation", "no")
            elif known and known.kind == "count":
                counted = True
                yield known
            elif known:
                yield known
            elif token.pos_ in ("ADJ", "VERB") and word not in QUALITY and len(word) > 1 and word not in NUMBERS:
                if token.tag_ == "VBG" and i + 1 != mention.first - 1:
                    yield Modifier("action", token.lemma_)
                elif word not in ("other", "same", "single", "lone", "such", "own", "certain", "one"):
                    yield Modifier("attribute", word)
        for i in range(mention.first, mention.head):
            word = doc[i].text
            if word in mention.lemma.split():
                continue
            if word not in ("'s", "'", "-") and doc[i].pos_ != "DET" and i not in words:
                known = classify(word, word) if i != mention.possessor else None
                if known is None or known.kind != "count":
                    yield known or Modifier("attribute", word + ("'s" if i == mention.possessor else ""))
        if (not counted and not denied and doc[mention.head].tag_ in ("NNS", "NNPS") and mention.lemma not in NO_COUNT
                and doc[mention.head].text != LEMMAS.get(doc[mention.head].text)):
            yield Modifier("count", "several")

    def _groups(self) -> Iterator[Said]:
        """ "a pair of shoes", "a herd of horses": the number goes to what follows "of"."""
        for n, mention in enumerate(self.mentions[:-1]):
            word = self.doc[mention.head].text
            if word in GROUPS and self.doc[mention.head + 1].text == "of" and self._phrase_at(mention.head + 2) == n + 1:
                if word in ("pair", "couple", "trio", "dozen"):
                    yield n + 1, Modifier("count", NUMBERS[word])

    def _phrase_at(self, i: int) -> int | None:
        """The mention whose noun phrase starts at token i."""
        n = self.owner.get(i)
        return n if n is not None and self.mentions[n].phrase == i else None

    def _joined(self, n: int, before: int | None = None) -> list[int]:
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

    def subjects(self, token: Token) -> list[int]:
        """The things that a verb is about; empty for the camera and for nobody."""
        found = self._subjects(token, 6)
        for k, n in enumerate(found):
            mention = self.mentions[n]
            follows = self._phrase_at(mention.head + 2) if self.words[mention.head + 1:mention.head + 2] == ["of"] else None
            if not mention.thing and follows is not None:
                found[k] = follows  # "a herd of horses gallops"
            elif n and token.lemma_ in _OF_PEOPLE and self.words[mention.phrase - 1] in ("with", "in") and (
                    self.mentions[n - 1].head == mention.phrase - 2):
                found[k] = n - 1
        return [n for n in found if self.mentions[n].thing]

    def _subjects(self, token: Token, depth: int) -> list[int]:
        if depth == 0:
            return []
        for child in token.children:
            if child.dep_ in ("nsubj", "nsubjpass") and child.i not in (token.i,):
                if child.i in self.owner:
                    return self._joined(self.owner[child.i], token.i)
                if child.text in _PRONOUNS:
                    before = [n for n, m in enumerate(self.mentions) if m.thing and m.head < child.i]
                    return before[:1] if before else []
                if child.text not in _RELATIVE:
                    return []
        if token.dep_ in ("acl", "relcl") and token.head.i in self.owner:
            return self._joined(self.owner[token.head.i], token.i)
        if token.i in self.activity:
            auxiliary = self.doc[self.mentions[self.owner[token.i - 1]].phrase - 1]
            return self._subjects(auxiliary, depth - 1)
        if token.i and token.tag_ == "VBG" and token.i - 1 in self.owner and self.mentions[self.owner[token.i - 1]].thing:
            return self._joined(self.owner[token.i - 1], token.i)
        if token.head is not token and token.head.pos_ in ("VERB", "AUX"):
            return self._subjects(token.head, depth - 1)
        if token.head.i in self.owner and token.head.i < token.i:
            return [self.owner[token.head.i]]
        near = token.i - 1
        while near > 0 and self.doc[near].pos_ in ("ADV", "AUX"):
            near -= 1
        return self._joined(self.owner[near]) if near in self.owner and near < token.i else []

    def _verbs(self) -> Iterator[Token]:
        for token in self.doc:
            if token.pos_ == "VERB" and token.i not in self.owner and token.text not in DIRECTIONS:
                yield token

    def _predicates(self) -> Iterator[Said]:
        doc = self.doc
        for n, material in self.made_of:
            yield from ((m, Modifier("material", material)) for m in self._climb(doc[self.mentions[n].head])[-1:])
        for token in doc:
            if token.dep_ in ("acomp", "attr", "oprd") and token.head.pos_ in ("VERB", "AUX") and token.i not in self.owner:
                known = classify(token.text, token.lemma_)
                if token.pos_ == "ADJ" or known:
                    said = known or Modifier("attribute", token.text)
                    if self._negated(token.head):
                        said = Modifier(said.kind, "not " + said.text)
                    yield from ((n, said) for n in self.subjects(token.head))
            elif token.text in COLOURS and token.i not in self.owner or self._colour_noun(token):
                yield from ((n, Modifier("colour", COLOURS[token.text])) for n in self._climb(token)[:1])
        for verb in self._verbs():
            subjects = self.subjects(verb)
            if verb.lemma_ in _EMPTY_VERBS or verb.lemma_ in ("make", "build") and verb.tag_ == "VBN":
                continue
            passive = verb.tag_ == "VBN" and not any(c.dep_ == "nsubj" or c.lemma_ == "have" for c in verb.children)
            particle = next((c.text for c in verb.children if c.dep_ == "prt" and c.i == verb.i + 1), "")
            if particle in DIRECTIONS and verb.lemma_ in MOTION:
                particle = ""
            doing = (self.activity.get(verb.i, ""), verb.lemma_, particle)
            said = verb.text if passive else " ".join(w for w in doing if w)
            if self._negated(verb):
                said = "not " + said
            known = classify(verb.text, verb.text) if passive else None
            for n in subjects:
                yield n, known or Modifier("attribute" if passive else "action", said)

    def _colour_noun(self, token: Token) -> bool:
        """ "dressed in red", "a deep blue", "a shade of red": a colour where a noun stands."""
        n = self.owner.get(token.i)
        return n is not None and token.text in COLOURS and self.mentions[n].head == token.i and not self.mentions[n].thing

    def _negated(self, verb: Token) -> bool:
        return any(c.dep_ == "neg" or c.text in ("never", "not") for c in verb.children)

    def _climb(self, token: Token) -> list[int]:
        """The things that a dependent word or a preposition is about."""
        start = self.owner.get(token.i)
        at = token
        for _ in range(12):
            if at.head is at:
                break
            at = at.head
            n = self.owner.get(at.i)
            if n is not None and n != start and self.mentions[n].thing and self.mentions[n].head < token.i:
                return self._joined(n, token.i)
            if at.pos_ in ("VERB", "AUX") and n is None:
                subjects = [s for s in self.subjects(at) if s != start and self.mentions[s].thing]
                if subjects:
                    return subjects
        before = [n for n, m in enumerate(self.mentions) if m.thing and m.head < token.i and n != start]
        clear = [n for n in before if not any(w in ".;!?" for w in self.words[self.mentions[n].head:token.i])]
        return self._joined(clear[-1], token.i) if clear else []

    def _motion(self, i: int) -> Token | None:
        """The verb of motion that a direction at token i belongs to."""
        for k in range(i - 1, max(-1, i - 9), -1):
            if self.words[k] in _ENDS:
                return None
            if self.words[k] not in DIRECTIONS and self.doc[k].pos_ == "VERB":
                return self.doc[k]
        return None

    def _directions(self) -> Iterator[Said]:
        doc = self.doc
        i = 0
        while i < len(doc):
            word = self.words[i]
            verb = self._motion(i) if word == "from" or word in DIRECTIONS else None
            words = self.words[i:i + 4]
            step = 1
            if word == "from" and len(words) == 4 and words[1] in DIRECTIONS and words[3] in DIRECTIONS:
                if words[2] == "to" or words[2] == "through":
                    for n in self.subjects(verb) if verb is not None else self._climb(doc[i]):
                        yield n, Modifier("direction", DIRECTIONS[words[3]])
                    step = 4
            elif word in DIRECTIONS and words[1:2] != ["of"] and words[1:3] != ["side", "of"]:
                inside = self.owner.get(i)
                attributive = (inside is not None and self.mentions[inside].thing
                               and doc[i].pos_ in ("ADJ", "NOUN", "VERB") and i < self.mentions[inside].head)
                standing = i >= 2 and doc[i - 1].text == "the" and doc[i - 2].text in ("on", "at", "in")
                firm = word in ("left", "right") or DIRECTIONS[word] not in ("up", "down", "away")
                if standing:
                    yield from ((n, Modifier("relation", f"on the {DIRECTIONS[word]}")) for n in self._climb(doc[i])[-1:])
                elif verb is not None and not attributive and (firm or verb.lemma_ in MOTION) and words[1:2] != ["from"]:
                    yield from ((n, Modifier("direction", DIRECTIONS[word])) for n in self.subjects(verb))
            i += step

    def _relations(self) -> Iterator[Said]:
        doc = self.doc
        i = 0
        while i < len(doc):
            step, word = 1, self.words[i]
            if word == "without":
                n = self._phrase_at(i + 1)
                if n is not None:
                    for m in self._listed(n):
                        yield m, Modifier("negation", "no")
            elif word == "not" and self._phrase_at(i + 1) is not None:
                yield self.owner[i + 1], Modifier("negation", "no")
            elif i not in self.owner and word in _RELATIONS:
                match = next((r for r in _RELATIONS[word] if self.words[i:i + len(r[0])] == r[0]), None)
                if match and (len(match[0]) > 1 or doc[i].pos_ in ("ADP", "SCONJ", "ADV", "ADJ", "PART")):
                    step = len(match[0])
                    yield from self._relation(i, i + step, match[1])
            i += step

    def _listed(self, n: int) -> list[int]:
        """n and what is joined to it by "and" or "or" after it."""
        listed = [n]
        while n + 1 < len(self.mentions):
            between = self.words[self.mentions[n].head + 1:self.mentions[n + 1].phrase]
            if between not in (["and"], ["or"]):
                break
            n += 1
            listed.append(n)
        return listed

    def _relation(self, start: int, end: int, relation: str) -> Iterator[Said]:
        target = self._phrase_at(end)
        preposition = self.doc[start]
        if target is None:
            return
        seen = self.mentions[target]
        place = self.doc[seen.head].text
        if not seen.thing and place not in PLACES_IN_FRAME | {"camera", "viewer"}:
            # "on the surface of the water" is on the water.
            onward = self._phrase_at(seen.head + 2) if self.words[seen.head + 1:seen.head + 2] == ["of"] else None
            if onward is None or not self.mentions[onward].thing:
                return
            target, seen = onward, self.mentions[onward]
        name = seen.lemma if seen.thing else place
        verb = self._motion(start)
        kind = "relation"
        if relation in GOING:
            if verb is None or verb.lemma_ not in MOTION and relation in ("toward", "from"):
                return
            kind = "direction"
        about = [n for n in self._climb(preposition) if n != target and self.mentions[n].thing]
        for n in about:
            yield n, Modifier(kind, f"{relation} {name}")


