"""A prompt in the one form that is parsed, so that case, spacing, quotes and a final stop make no difference.

Every character of the tidy text remembers the characters it came from, and spans are given in the original.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

_QUOTES = frozenset('"\u201c\u201d\u201e\u201f\u00ab\u00bb\u2039\u203a`\u2018\u201a\u201b\u2032\u2033')
_APOSTROPHES = frozenset("'\u2019\u02bc\uff07")
_DASHES = frozenset("\u2012\u2013\u2014\u2015\u2212")
_HYPHENS = frozenset("\u2010\u2011")
_BRACKETS = frozenset("()[]{}<>_*#~^=+|\\/")
_STOPS = ".,;:!?"


@dataclass(frozen=True)
class Tidy:
    """text: lower-case, single spaces, plain punctuation; origin: for each character its place in the original."""

    text: str
    origin: tuple[int, ...]

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Characters [start, end) of the tidy text as a span of the original."""
        return self.origin[start], self.origin[end - 1] + 1

    def without(self, ranges: Iterable[tuple[int, int]]) -> Tidy:
        """The same with some character ranges cut out; what is left closes up without stray commas."""
        cut = {i for start, end in ranges for i in range(start, end)}
        return _close([(c, o) for i, (c, o) in enumerate(zip(self.text, self.origin, strict=True)) if i not in cut])


def _characters(text: str) -> Iterable[tuple[str, int]]:
    """NFKC, cluster by cluster (a base and its combining marks), invisible characters left out."""
    at = 0
    while at < len(text):
        end = at + 1
        while end < len(text) and unicodedata.combining(text[end]):
            end += 1
        for char in unicodedata.normalize("NFKC", text[at:end]):
            yield char, at
        at = end


def tidy(text: str) -> Tidy:
    """Bring a prompt (without host syntax) into its parsed form."""
    out: list[tuple[str, int]] = []
    quoted = False
    pairs = list(_characters(text))
    for i, (char, origin) in enumerate(pairs):
        before = pairs[i - 1][0] if i else " "
        after = pairs[i + 1][0] if i + 1 < len(pairs) else " "
        category = unicodedata.category(char)
        if category in ("Cf", "Cs", "Co", "Cn") or unicodedata.combining(char) and not before.isalpha():
            continue
        if char in _APOSTROPHES or char == "\u2018" and before.isalnum():
            if before.isalnum() and after.isalnum():
                char = "'"
            elif before.isalnum() and not quoted and before in "sS":
                char = "'"
            else:
                quoted = not before.isalnum()
                char = " "
        elif char in _QUOTES or char in _BRACKETS:
            quoted = quoted or char == "\u2018"
            char = " "
        elif char in _DASHES:
            char = ","
        elif char in _HYPHENS:
            char = "-"
        elif category in ("Zs", "Zl", "Zp", "Cc", "So", "Sk", "Sm"):
            char = " "
        lower = char.lower()
        out.append((lower if len(lower) == 1 else char, origin))
    return _close(out)


def _close(pairs: list[tuple[str, int]]) -> Tidy:
    """Single spaces, none before a stop, one stop of several, none at the start or at the end."""
    text = "".join(c for c, _ in pairs)
    out: list[tuple[str, int]] = []
    for match in re.finditer(r"[.,;:!?\s]+|[^.,;:!?\s]+", text):
        start, end = match.span()
        run = match.group()
        if run[0] not in _STOPS and not run[0].isspace():
            out += pairs[start:end]
        elif len(run) == 1 and out and text[start - 1].isdigit() and text[end:end + 1].isdigit() and run in ".:,":
            out.append(pairs[start])  # "1.5" and "3:2" stay whole, "cat,dog" is parted
        elif out and end < len(text):
            stop = re.search(r"[.!?]", run) or re.search(r"[,;:]", run)
            if stop:
                out.append(pairs[start + stop.start()])
            out.append((" ", pairs[end - 1][1]))
    return Tidy("".join(c for c, _ in out), tuple(o for _, o in out))
