"""Clauses: what verbs, predicates, directions and prepositions say about the things of a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .entities import PRONOUNS, verb_lemma
from .phrases import Phrases, Said, classify
from .types import Modifier
from .words import COLOURS, DIRECTIONS, GOING, MOTION, PLACES_IN_FRAME, RELATIONS

if TYPE_CHECKING:
    from spacy.tokens import Token

_ENDS = frozenset(".;:!?")
_EMPTY_VERBS = frozenset("""be have do feature show depict contain include capture see seem appear get create add
start begin continue become""".split())
# Who wears or holds: the person, not the hair named in between.
_OF_PEOPLE = frozenset("wear hold carry smile dress".split())
_RELATIONS = {k: [(list(w), r) for w, r in RELATIONS if w[0] == k] for k in {w[0] for w, _ in RELATIONS}}
_RELATIVE = frozenset(("that", "which", "who"))


class Clauses(Phrases):
    """Everything that a doc says about its mentions."""

    def read(self) -> list[Said]:
        """All modifiers, phrase by phrase and then clause by clause."""
        said = [(n, m) for n, front in enumerate(self.in_front) for m in front]
        for n, front in enumerate(self.in_front):
            if Modifier("negation", "no") in front:
                said += ((m, Modifier("negation", "no")) for m in self.listed(n, ("or",))[1:])
        return [*said, *self.groups(), *self._predicates(), *self._actions(), *self._directions(), *self._relations()]

    def subjects(self, token: Token) -> list[int]:
        """The things that a verb is about; empty for the camera and for nobody."""
        found = self._subjects(token, 6)
        for k, n in enumerate(found):
            mention = self.mentions[n]
            of = self.words[mention.head + 1:mention.head + 2] == ["of"]
            follows = self.phrase_at(mention.head + 2) if of else None
            if not mention.thing and follows is not None:
                found[k] = follows  # "a herd of horses gallops"
            elif n and self.mentions[n - 1].head == mention.phrase - 2 and (
                    self.words[mention.phrase - 1] == "in"
                    or self.words[mention.phrase - 1] == "with" and token.lemma_ in _OF_PEOPLE):
                found[k] = n - 1  # "a woman in a red dress walking", "a girl with long hair wearing a hat"
        return [n for n in found if self.mentions[n].thing]

    def _subjects(self, token: Token, depth: int) -> list[int]:
        if depth == 0:
            return []
        if token.i in self.activity:
            return self.before(self.mentions[self.owner[token.i - 1]].phrase - 1)
        for child in token.children:
            if child.dep_ in ("nsubj", "nsubjpass"):
                if child.i in self.owner:
                    return self.joined(self.owner[child.i], token.i)
                if child.text in PRONOUNS:
                    before = [n for n, m in enumerate(self.mentions) if m.thing and m.head < child.i]
                    return before[:1] if before else []
                if child.text not in _RELATIVE:
                    return []
        if token.dep_ in ("acl", "relcl") and token.head.i in self.owner:
            return self.joined(self.owner[token.head.i], token.i)
        near = self.owner.get(token.i - 1)
        if near is not None and any(n == near for n, _ in self.made_of):
            return [n for n in range(near) if self.mentions[n].thing][-1:]  # "a robot made of metal standing"
        if token.tag_ == "VBG" and near is not None and self.mentions[near].thing:
            return self.joined(near, token.i)
        if token.head.i != token.i and token.head.pos_ in ("VERB", "AUX"):
            return self._subjects(token.head, depth - 1)
        if token.head.i in self.owner and token.head.i < token.i:
            return [self.owner[token.head.i]]
        return self.before(token.i - 1)

    def _verbs(self) -> Iterator[Token]:
        for token in self.doc:
            if token.pos_ == "VERB" and token.i not in self.owner and token.text not in DIRECTIONS:
                yield token

    def _predicates(self) -> Iterator[Said]:
        doc = self.doc
        for n, material in self.made_of:
            yield from ((m, Modifier("material", material)) for m in self._climb(doc[self.mentions[n].head])[-1:])
        for token in doc:
            predicate = token.dep_ in ("acomp", "attr", "oprd") and token.head.pos_ in ("VERB", "AUX")
            if predicate and token.i not in self.owner:
                known = classify(token.text, token.lemma_)
                if token.pos_ == "ADJ" or known:
                    about = known or Modifier("attribute", token.text)
                    if self._negated(token.head):
                        about = Modifier(about.kind, "not " + about.text)
                    yield from ((n, about) for n in self.subjects(token.head))
            elif token.text in COLOURS and token.i not in self.owner or self._colour_noun(token):
                yield from ((n, Modifier("colour", COLOURS[token.text])) for n in self._climb(token)[:1])

    def _actions(self) -> Iterator[Said]:
        for verb in self._verbs():
            if verb.lemma_ in _EMPTY_VERBS or verb.lemma_ in ("make", "build") and verb.tag_ == "VBN":
                continue
            passive = verb.tag_ == "VBN" and not any(c.dep_ == "nsubj" or c.lemma_ == "have" for c in verb.children)
            particle = next((c.text for c in verb.children if c.dep_ == "prt" and c.i == verb.i + 1), "")
            if particle in DIRECTIONS and verb.lemma_ in MOTION:
                particle = ""
            doing = (self.activity.get(verb.i, ""), verb_lemma(verb), particle)
            said = verb.text if passive else " ".join(w for w in doing if w)
            if self._negated(verb):
                said = "not " + said
            known = classify(verb.text, verb.text) if passive else None
            for n in self.subjects(verb):
                yield n, known or Modifier("attribute" if passive else "action", said)

    def _colour_noun(self, token: Token) -> bool:
        """ "dressed in red", "a deep blue", "a shade of red": a colour where a noun stands."""
        n = self.owner.get(token.i)
        if n is None or token.text not in COLOURS:
            return False
        return self.mentions[n].head == token.i and not self.mentions[n].thing

    def _negated(self, verb: Token) -> bool:
        return any(c.dep_ == "neg" or c.text in ("never", "not") for c in verb.children)

    def _climb(self, token: Token) -> list[int]:
        """The things that a dependent word or a preposition is about."""
        start = self.owner.get(token.i)
        at = token
        for _ in range(12):
            if at.head.i == at.i:
                break
            at = at.head
            n = self.owner.get(at.i)
            if n is not None and n != start and self.mentions[n].thing and self.mentions[n].head < token.i:
                return self.joined(n, token.i)
            if at.pos_ in ("VERB", "AUX") and n is None:
                subjects = [s for s in self.subjects(at) if s != start and self.mentions[s].thing]
                if subjects:
                    return subjects
        before = [n for n, m in enumerate(self.mentions) if m.thing and m.head < token.i and n != start]
        clear = [n for n in before if not any(w in ".;!?" for w in self.words[self.mentions[n].head:token.i])]
        return self.joined(clear[-1], token.i) if clear else []

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
                    beside = self.before(i - 3) if i >= 3 else []
                    for n in beside or self._climb(doc[i])[-1:]:
                        yield n, Modifier("relation", f"on the {DIRECTIONS[word]}")
                elif attributive or words[1:2] == ["from"]:
                    pass
                elif verb is not None and (firm or verb.lemma_ in MOTION):
                    yield from ((n, Modifier("direction", DIRECTIONS[word])) for n in self.subjects(verb))
            i += step

    def _relations(self) -> Iterator[Said]:
        doc = self.doc
        i = 0
        while i < len(doc):
            step, word = 1, self.words[i]
            if word == "without":
                n = self.phrase_at(i + 1)
                if n is not None:
                    for m in self.listed(n, ("and", "or")):
                        yield m, Modifier("negation", "no")
            elif word == "not" and self.phrase_at(i + 1) is not None:
                yield self.owner[i + 1], Modifier("negation", "no")
            elif i not in self.owner and word in _RELATIONS:
                match = next((r for r in _RELATIONS[word] if self.words[i:i + len(r[0])] == r[0]), None)
                if match and (len(match[0]) > 1 or doc[i].pos_ in ("ADP", "SCONJ", "ADV", "ADJ", "PART")):
                    step = len(match[0])
                    yield from self._relation(i, i + step, match[1])
            i += step

    def _relation(self, start: int, end: int, relation: str) -> Iterator[Said]:
        target = self.phrase_at(end)
        preposition = self.doc[start]
        if target is None:
            return
        seen = self.mentions[target]
        place = self.doc[seen.head].text
        if not seen.thing and place not in PLACES_IN_FRAME | {"camera", "viewer"}:
            # "on the surface of the water" is on the water.
            onward = self.phrase_at(seen.head + 2) if self.words[seen.head + 1:seen.head + 2] == ["of"] else None
            if onward is None or not self.mentions[onward].thing:
                return
            target, seen = onward, self.mentions[onward]
        if relation == "by" and not seen.thing:
            return  # "side by side"
        name = seen.lemma if seen.thing else place
        verb = self._motion(start)
        kind = "relation"
        if relation in GOING:
            if verb is None or verb.lemma_ not in MOTION and relation in ("toward", "from"):
                return
            kind = "direction"
        about = [n for n in self._climb(preposition) if n != target and self.mentions[n].thing]
        negative = preposition.head.pos_ in ("AUX", "VERB") and self._negated(preposition.head)
        for n in about:
            yield n, Modifier(kind, ("not " if negative else "") + f"{relation} {name}")
