"""Prompt syntax that is for the host and not for the model: weights, escapes, tags, alternation, wildcards.

The weights and escapes follow ComfyUI's `comfy/sd1_clip.py` (parse_parentheses, token_weights, escape_important) to
the letter, including what it does with unbalanced parentheses. The rest is what the usual prompt packs consume
before the text reaches the tokenizer; of alternatives, each is kept, for any of them may be rendered.
"""

from __future__ import annotations

import re

# The host recurses per nesting level and fails near a thousand; nobody means such a prompt.
_DEEPEST = 200
_TAG = re.compile(r"<\s*(?:lora|lyco|loha|lokr|hypernet|hypernetwork|ti|wlr|segment|clip)\s*:[^<>]*>", re.IGNORECASE)
_EMBEDDING = re.compile(r"(?:(?<=\s)|^)embedding:[^\s<\[]*?(?=,*(?:[\s<\[]|$))")
_WILDCARD = re.compile(r"(?<!\w)__[\w*./\\ -]{1,80}?__(?!\w)")
_CHOICE = re.compile(r"\{([^{}]*)\}")
_SCHEDULE = re.compile(r"\[([^\[\]]*)\]")
_NUMBER = re.compile(r"\s*[+-]?(?:\d+\.?\d*|\.\d+)\s*")


def _groups(text: str) -> list[str]:
    """Split at parentheses of the outermost level, as the host's parse_parentheses does."""
    parts: list[str] = []
    start = depth = 0
    for at, char in enumerate(text):
        if char == "(":
            if depth == 0 and at > start:
                parts.append(text[start:at])
                start = at
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                parts.append(text[start:at + 1])
                start = at + 1
    if start < len(text):
        parts.append(text[start:])
    return parts


def segments(text: str) -> list[str]:
    """The pieces of a prompt that the host tokenizes one by one, in order, without weights or parentheses."""
    text = text.replace("\\)", "\0\1").replace("\\(", "\0\2")
    depth = deepest = 0
    for char in text:
        depth += (char == "(") - (char == ")")
        deepest = max(deepest, depth)
    if deepest > _DEEPEST:
        text = re.sub(r"[()]", " ", text)
    return [s.replace("\0\1", ")").replace("\0\2", "(") for s in _unweighted(text)]


def _unweighted(text: str) -> list[str]:
    """The host's token_weights, without the weights."""
    found = []
    for part in _groups(text):
        if len(part) >= 2 and part[0] == "(" and part[-1] == ")":
            part = part[1:-1]
            colon = part.rfind(":")
            if colon > 0 and _is_weight(part[colon + 1:]):
                part = part[:colon]
            found += _unweighted(part)
        else:
            found.append(part)
    return found


def _is_weight(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _options(body: str, separator: str) -> str:
    """The alternatives of one bracket, without their step numbers, as a list in words."""
    words = [w.strip() for w in body.split(separator)]
    return ", ".join(w for w in words if w and not _NUMBER.fullmatch(w))


def _choice(match: re.Match[str]) -> str:
    return _options(match.group(1).rsplit("$$", 1)[-1], "|")


def _schedule(match: re.Match[str]) -> str:
    body = match.group(1)
    if "|" in body:
        return _options(body, "|")
    return _options(body, ":") if ":" in body else body


def strip_host_syntax(text: str) -> str:
    """The text that a creator means, without weights, escapes, LoRA tags, embeddings, wildcards and alternation.

    `(car:1.3)` -> `car`, `\\(fate\\)` -> `(fate)`, `<lora:x:0.8>` and `embedding:x` -> nothing,
    `[cat:dog:0.5]`, `{cat|dog}` -> `cat, dog`, `a cat | a dog` -> `a cat, a dog`. Runs of spaces become one.
    """
    text = text.replace("\0", "")
    text = _TAG.sub(" ", text)
    joined = ""
    for part in (_EMBEDDING.sub("", p) for p in segments(text)):
        # The host tokenizes segment by segment: "(red:1.2)(car)" is two words, while "(car)s" was meant as one.
        apart = joined[-1:].isalnum() and part[:1].isalnum() and ")(" in text
        joined += " " + part if apart else part
    text = _WILDCARD.sub(" ", joined)
    for pattern, replace in ((_CHOICE, _choice), (_SCHEDULE, _schedule)):
        for _ in range(32):
            text, count = pattern.subn(replace, text)
            if not count:
                break
    text = re.sub(r"\s*\|\s*", ", ", text)
    text = re.sub(r"\bBREAK\b", ",", text)
    text = re.sub(r"[^\S\n]+", " ", text)
    text = re.sub(r" +(?=[,.;!?])", "", text)
    return re.sub(r",{2,}", ",", text).strip()
