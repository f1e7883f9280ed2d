"""What a prompt says, as data: entities N(y), their modifiers, and the look and camera of the whole scene."""

from __future__ import annotations

from dataclasses import dataclass

KINDS = ("colour", "size", "material", "count", "negation", "action", "direction", "relation", "attribute")


@dataclass(frozen=True)
class Modifier:
    """One thing said about an entity.

    kind is one of KINDS. text is canonical and lower-case, so that equal texts mean the same: colours and sizes
    without synonyms ("gray", "big"), counts in digits or "several", actions as a lemma ("run"), relations and
    directions with the lemma of their object ("on snow", "toward barn").
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Found:
    """One occurrence of a noun in the tidy text: its name is [first, end), its head noun [head, end).

    owner: (lemma, start, end) of a possessor that the name begins with, which may be an entity elsewhere in the text.
    """

    lemma: str
    first: int
    head: int
    end: int
    modifiers: tuple[Modifier, ...]
    owner: tuple[str, int, int] | None = None


@dataclass(frozen=True)
class Entity:
    """A noun of the prompt. lemma: lower-case head noun; text: with its compounds, as written ("sports car").

    span: the characters of the head noun's first occurrence in Prompt.text. Repeated nouns are one entity that carries
    the modifiers of all its occurrences.
    """

    lemma: str
    text: str
    span: tuple[int, int]
    modifiers: tuple[Modifier, ...] = ()

    def of(self, kind: str) -> tuple[str, ...]:
        """Texts of this entity's modifiers of one kind, in order."""
        return tuple(m.text for m in self.modifiers if m.kind == kind)


@dataclass(frozen=True)
class Prompt:
    """A parsed prompt. raw: as typed; text: what is left when the host's syntax is stripped.

    reason is empty, or says why there are no entities. scene holds what is said of the whole picture: kind
    "attribute" for its look ("oil painting"), "action" for the camera ("zoom in", "pan left", "front view").
    """

    raw: str
    text: str
    entities: tuple[Entity, ...] = ()
    reason: str = ""
    scene: tuple[Modifier, ...] = ()

    @property
    def lemmas(self) -> tuple[str, ...]:
        """N(y): the entities' lemmas, in order of appearance."""
        return tuple(e.lemma for e in self.entities)
