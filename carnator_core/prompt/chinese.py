"""Entities of a Chinese prompt, where spaCy's zh_core_web_sm is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .types import Found, Modifier

if TYPE_CHECKING:
    from spacy.tokens import Doc, Token

_NUMBERS = {"\u4e24": "2", "\u4e8c": "2", "\u53cc": "2", "\u4e09": "3", "\u56db": "4", "\u4e94": "5", "\u516d": "6",
            "\u4e03": "7", "\u516b": "8", "\u4e5d": "9", "\u5341": "10"}
_COLOURS = {"\u7ea2": "red", "\u6a59": "orange", "\u9ec4": "yellow", "\u7eff": "green", "\u84dd": "blue",
            "\u7d2b": "purple", "\u7c89": "pink", "\u9ed1": "black", "\u767d": "white", "\u7070": "gray",
            "\u68d5": "brown", "\u9752": "cyan"}
_SIZES = {"\u5927": "big", "\u5c0f": "small", "\u5de8\u5927": "huge", "\u9ad8": "tall", "\u957f": "long"}
_NEGATIONS = ("\u6ca1", "\u6ca1\u6709", "\u65e0", "\u4e0d")
# view, front view, style, shot, picture, quality, background, left, right, scene, video, effect, angle, above, below,
# time of day, time, close-up, middle
_NO_THINGS = frozenset((
    "\u89c6\u56fe", "\u6b63\u89c6\u56fe", "\u98ce\u683c", "\u955c\u5934", "\u753b\u9762", "\u753b\u8d28",
    "\u80cc\u666f", "\u5de6\u8fb9", "\u53f3\u8fb9", "\u573a\u666f", "\u89c6\u9891", "\u6548\u679c",
    "\u89c6\u89d2", "\u4e0a\u9762", "\u4e0b\u9762", "\u65f6\u5206", "\u65f6\u95f4", "\u7279\u5199", "\u4e2d"))


def chinese_entities(doc: Doc) -> list[Found]:
    """Each noun that is no part of another's name, in order."""
    found = []
    for token in doc:
        part = token.dep_ == "compound:nn" and token.head.i > token.i
        if token.pos_ not in ("NOUN", "PROPN") or part or token.text in _NO_THINGS:
            continue
        start = token.i
        while start and doc[start - 1].dep_ == "compound:nn" and doc[start - 1].head.i == token.i:
            start -= 1
        said = tuple(dict.fromkeys(_said(token)))
        found.append(Found(token.text, doc[start].idx, token.idx, token.idx + len(token.text), said))
    return found


def _said(noun: Token) -> list[Modifier]:
    said = []
    for child in noun.children:
        word = child.text.removesuffix("\u8272").removesuffix("\u7684")
        if child.dep_.startswith(("nummod", "mark:clf", "dep")) and child.pos_ == "NUM":
            number = next((v for k, v in _NUMBERS.items() if child.text.startswith(k)), "")
            said += [Modifier("count", number)] if number else []
        elif word in _COLOURS:
            said.append(Modifier("colour", _COLOURS[word]))
        elif word in _SIZES:
            said.append(Modifier("size", _SIZES[word]))
        elif child.dep_ == "neg" or child.text in _NEGATIONS:
            said.append(Modifier("negation", "no"))
        elif child.dep_ == "amod":
            said.append(Modifier("attribute", word))
    if noun.dep_ == "nsubj" and noun.head.pos_ == "VERB":
        said.append(Modifier("action", noun.head.text))
    return said
