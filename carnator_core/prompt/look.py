"""What a prompt says of the whole picture: its look and the camera. Taken out of the text before it is parsed."""

from __future__ import annotations

import re

from .tidy import Tidy
from .types import Modifier
from .words import CAMERA, DIRECTIONS, LOOK, LOOK_OR_THING, QUALITY

_LITTLE = frozenset("a an the in with of and at from by on featuring its to as for is".split())
_ALONG = frozenset("""intense slow super extreme fast still frozen time out in camera's quick gentle gently
slowly shallow""".split())
_STILL = frozenset(("still", "frozen"))
# Alone they may be things of the scene, or say too little to be its look.
_THINGS = LOOK_OR_THING | frozenset("crane lens track tracks truck field panorama frame frames".split())
_FAINT = _THINGS | frozenset("light soft warm cool golden oil".split())
_UNSURE = frozenset("up depth field static smooth steady panoramic".split())
_ARTISTS = ("hokusai|(?:vincent )?van gogh|(?:claude )?monet|(?:pablo )?picasso|(?:salvador )?dali|rembrandt|klimt|"
            "(?:hayao )?miyazaki|greg rutkowski|artgerm|(?:andy )?warhol|caravaggio|vermeer|alphonse mucha|banksy|"
            "(?:wes|paul thomas) anderson|(?:christopher )?nolan|(?:tim )?burton")
_MEDIUM = ("close-?ups?|close up|shots?|views?|footage|videos?|clips?|photos?|photographs?|images?|pictures?|"
           "paintings?|drawings?|illustrations?|sketch|sketches|watercolou?rs?|renders?|renderings?|animations?|"
           "tableau|tableaus?|portraits?|time-?lapse|time lapse|panorama|scene|cartoon|artwork|art")
_VAGUE = re.compile(r"(?:(?:scenic|beautiful|picturesque|exotic|nice|stunning|amazing|vertical|view|shot|footage|video|"
                    r"scene) ?)+")
_WORD = r"(?!(?:of|in|on|at|with|is|are|and|by|from|to|the|a|an|his|her|its|their)\b)[\w'-]+"
_PLAIN = rf"(?!(?!establishing|tracking|overlooking|racking)\w+ing\b){_WORD}"  # no verb: "man taking picture of"
_LEADING = re.compile(
    rf"(?:(?:this is|here is|we see) )?(?:an? |the )?((?:{_PLAIN} ){{0,4}}?(?:{_MEDIUM})"
    rf"(?: (?:shots?|views?|videos?|footage))?(?: from (?:an? |the )?{_WORD})?) (?:of|showing|featuring) ")
_INLINE = (
    re.compile(rf"\bin (?:the |an? )?((?:{_WORD} ){{1,4}}?)styles?\b"),
    re.compile(r"\bin the styles? of ([^,.;!?:]+)"),
    re.compile(rf"\bby ({_ARTISTS})(?=[,.;!?:]|$)"),
    re.compile(r"\bin ((?:(?:super|extreme|ultra|very) )?(?:slow|fast) motion|black and white|time-?lapse)\b"),
    re.compile(rf"\b(?:as|like) (?:an? )((?:{_WORD} ){{0,2}}?(?:painting|drawing|illustration|sketch|cartoon))"
               r"(?=[,.;!?:]|$)"),
)
_CAMERA_VERB = re.compile(
    r"\bcamera (?:\w+ly )?(pan|tilt|zoom|follow|mov|track|rotat|circl|orbit|push|pull|doll|ris|descend|ascend|shift|"
    r"sweep|glid|fl|spin|turn|swing|crane|truck|approach|retreat|lower|lift)"
    r"(?:y|e|s|es|ies|ing|ning|ming|ying|ed)?(?: \w+ly)?(?: (?:to|from) the)?"
    r"(?: (left|right|up|down|in|out|back|forward|around|upwards?|downwards?|forwards?|backwards?))?\b")
_STEMS = {"mov": "move", "rotat": "rotate", "circl": "circle", "doll": "dolly", "ris": "rise", "glid": "glide",
          "fl": "fly"}
_FRAGMENT = re.compile(r"[^,.;!?:]+")


def _sort(fragment: str) -> str | None:
    """'camera', 'look' or 'quality' when a fragment between stops says nothing else, otherwise None."""
    if fragment in ("black and white", "black-and-white", "b&w"):
        return "look"
    if re.fullmatch(rf"(?:in (?:an? |the )?)?(?:{_WORD} ){{1,4}}styles?", fragment):
        return "look"
    words = [w for w in fragment.split() if w not in _LITTLE]
    if fragment.startswith(("a ", "an ", "the ")) and len(words) == 1 and words[0] in _THINGS:
        return None
    stems = [re.sub(r"^(zoom|pan|tilt|track)(?:m|n|t)?(?:ing|s|ed)$", r"\1", w) for w in words]
    camera = [w in CAMERA or w in _STILL for w in stems]
    if not words or not all(c or w in QUALITY or w in LOOK or w in _ALONG or w in DIRECTIONS
                            for c, w in zip(camera, stems, strict=True)):
        return None
    if {"depth", "field"} <= set(stems) or any(c and w not in _UNSURE for c, w in zip(camera, stems, strict=True)):
        return "camera"
    if any(w in LOOK for w in stems):
        return "look" if len(words) > 1 or words[0] not in _FAINT else None
    return "quality" if all(w in QUALITY for w in stems) else None


def _phrase(text: str) -> str:
    """One wording for a look or a camera phrase."""
    text = re.sub(r"\b(zoom|pan|tilt|track)(?:m|n|t)?(?:ing|s|ed)\b", r"\1", text)
    text = re.sub(r"\b(?:close up|closeups?|close-ups)\b", "close-up", text)
    text = re.sub(r"^(?:(?:in|with|featuring|by|the|an?|camera) )+", "", text.strip())
    text = re.sub(r"(?:\s+(?:styles?|shots?|views?|footage|videos?))+$", "", text).strip()
    return "" if _VAGUE.fullmatch(text) else text


def take_scene(prompt: Tidy) -> tuple[Tidy, tuple[Modifier, ...]]:
    """Split off look, camera and quality words: the prompt without them, and what they said.

    Quality words ("4k, masterpiece") are dropped, for they promise nothing about what is to be seen.
    """
    text = prompt.text
    cuts: list[tuple[int, int]] = []
    said: list[tuple[int, str, str]] = []
    fragments = list(_FRAGMENT.finditer(text))
    for match in fragments:
        start, end = match.span()
        lead = len(match.group()) - len(match.group().lstrip())
        fragment = match.group().strip()
        sort = _sort(fragment)
        if sort is not None and len(fragments) > 1:
            cuts.append((start, end))
            said.append((start, sort, fragment))
            continue
        opening = _LEADING.match(fragment)
        if opening:
            at = start + lead
            cuts.append((at, at + opening.end()))
            shown = re.search(r"close|shot|view|footage|lapse|panorama|aerial|drone", opening.group(1))
            plain = re.search(r"tableau|videos?|clips?|photos?|images?|pictures?|scene|photographs?$", opening.group(1))
            if shown or not plain:
                said.append((at, "camera" if shown else "look", opening.group(1)))
    for pattern in _INLINE:
        for match in pattern.finditer(text):
            if any(a < match.end() and match.start() < b for a, b in cuts):
                continue
            cuts.append(match.span())
            filmed = match.group(1).endswith(("motion", "lapse"))
            said.append((match.start(), "camera" if filmed else "look", match.group(1)))
    for match in _CAMERA_VERB.finditer(text):
        # The sentence stays: it may also name what is seen.
        if not any(a <= match.start() < b for a, b in cuts):
            said.append((match.start(), "camera", " ".join(_STEMS.get(w, w) for w in match.groups() if w)))
    modifiers = dict.fromkeys(Modifier("action" if sort == "camera" else "attribute", _phrase(words))
                              for _, sort, words in sorted(said) if sort != "quality" and _phrase(words))
    return (prompt.without(cuts) if cuts else prompt), tuple(modifiers)
