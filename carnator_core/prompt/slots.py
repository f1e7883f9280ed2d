"""Which conditioning slots hold an entity's noun: decoded tokenizer pieces aligned with the prompt's characters."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from .parse import mention_spans
from .syntax import strip_host_syntax
from .types import Entity

# What tokenizers put around text: start, end, padding, unknown, sentinels and raw bytes.
_SPECIAL = re.compile(r"</?s>|<pad>|<unk>|<mask>|<bos>|<eos>|<cls>|<sep>|\[(?:CLS|SEP|PAD|UNK|MASK)\]|<\|[^|<>]*\|>|"
                      r"<extra_id_\d+>|<0x[0-9A-Fa-f]{2}>|<(?:start|end)_of_\w+>")
_SPACE_MARKS = "\u2581\u0120\u010a"


def _letters(text: str) -> list[tuple[str, int]]:
    """Case-folded NFKC characters that are neither space nor invisible, each with its place in the text."""
    found = []
    for at, char in enumerate(text):
        for c in unicodedata.normalize("NFKC", char).casefold():
            if not c.isspace() and unicodedata.category(c) not in ("Cf", "Cc"):
                found.append((c, at))
    return found


def _plain(piece: str) -> str:
    for mark in _SPACE_MARKS:
        piece = piece.replace(mark, " ")
    piece = _SPECIAL.sub("", piece.removesuffix("</w>"))
    return piece.removeprefix("##") if len(piece) > 2 else piece


def _align(text: str, pieces: Sequence[str]) -> dict[int, set[int]]:
    """Place in the text -> the slots whose piece covers that character."""
    letters = _letters(text)
    spelled = [(c, slot) for slot, piece in enumerate(pieces) for c, _ in _letters(_plain(piece))]
    a, b = "".join(c for c, _ in letters), "".join(c for c, _ in spelled)
    where: dict[int, set[int]] = {}
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    blocks = [(0, 0, same)]
    if same < len(a) and same < len(b):
        matcher = SequenceMatcher(None, a[same:], b[same:], autojunk=False)
        # Shorter agreements than two letters are chance.
        blocks += [(m.a + same, m.b + same, m.size) for m in matcher.get_matching_blocks() if m.size > 1]
    for start, other, size in blocks:
        for k in range(size):
            where.setdefault(letters[start + k][1], set()).add(spelled[other + k][1])
    return where


def _occurrences(text: str, entity: Entity) -> list[tuple[int, int]]:
    """Head-noun spans of every occurrence of the entity in a text in which its own span is right."""
    spans = set(mention_spans(text).get(entity.lemma, ()))
    return sorted(spans | {entity.span})


def _fits(text: str, entities: Sequence[Entity]) -> bool:
    """Whether the entities' spans are spans of this very text."""
    return all(e.span[0] < e.span[1] <= len(text) and e.text.endswith(text[e.span[0]:e.span[1]]) for e in entities)


def token_slots(text: str, pieces: Sequence[str], entities: Iterable[Entity]) -> dict[str, tuple[int, ...]]:
    """Lemma -> the slots whose token covers a character of the entity's head noun, at every occurrence.

    text: the prompt as typed or stripped; pieces: the decoded text of each conditioning slot, in order, as the
    tokenizer spells it ("\\u2581car", "car</w>", "</s>", "" for padding). Pieces that are not in the text (templates,
    tags, start tokens) and a text that was cut short are fine. An entity without a slot has an empty tuple.
    """
    wanted = list(entities)
    if not _fits(text, wanted):
        text = strip_host_syntax(text)
    if not _fits(text, wanted):
        return {e.lemma: () for e in wanted}
    where = _align(text, pieces)
    return {e.lemma: tuple(sorted({slot for start, end in _occurrences(text, e)
                                   for at in range(start, end) for slot in where.get(at, ())})) for e in wanted}
