"""How well prompts are read: every caption of the demo world against its known truth, and time per prompt.

python3 run.py bench prompts [--json FILE]
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from demo.explain import load_pack
from demo.world import COLOURS, MOTIONS, NOUNS, PLACE_PHRASE, PLACES, Scene, Thing, caption

ROOT = Path(__file__).resolve().parent.parent
Said = dict[str, set[tuple[str, str]]]


def scenes() -> Iterator[Scene]:
    """All 46,800 scenes that a caption can tell apart."""
    for place, motion in itertools.product(PLACES, MOTIONS):
        for noun, colour in itertools.product(NOUNS, COLOURS):
            for size in ("", "small", "big"):
                yield Scene(place, motion, (Thing(noun, colour, size),))
            yield Scene(place, motion, (Thing(noun, colour), Thing(noun, colour)), counted=True)
        for (a, b), (c, d) in itertools.product(itertools.permutations(NOUNS, 2), itertools.permutations(COLOURS, 2)):
            yield Scene(place, motion, (Thing(a, c), Thing(b, d)))


def truth(scene: Scene) -> Said:
    """Entities and modifiers that a scene's caption states."""
    common = {("relation", PLACE_PHRASE[scene.place])}
    if scene.motion != "still":
        common |= {("action", "move"), ("direction", scene.motion)}
    found: Said = {scene.place: set()}
    for thing in scene.things:
        found[thing.noun] = common | {("colour", thing.colour)}
        found[thing.noun] |= {("size", thing.size)} if thing.size else set()
        found[thing.noun] |= {("count", "2")} if scene.counted else set()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="run.py bench prompts", description=__doc__)
    parser.add_argument("--json", metavar="FILE", help="write the figures to FILE too")
    options = parser.parse_args(arguments)
    load_pack()
    from carnator.carnator_core.prompt import parse_many  # type: ignore[import-not-found]

    all_scenes = list(scenes())
    rows: list[dict[str, Any]] = []
    for name, chosen in (("one thing", [s for s in all_scenes if len(s.things) == 1]),
                         ("two alike", [s for s in all_scenes if s.counted]),
                         ("two things", [s for s in all_scenes if len(s.things) == 2 and not s.counted])):
        start, right = time.process_time(), 0
        for first in range(0, len(chosen), 2000):
            part = chosen[first:first + 2000]
            for scene, prompt in zip(part, parse_many([caption(s) for s in part]), strict=True):
                said = {e.lemma: {(m.kind, m.text) for m in e.modifiers} for e in prompt.entities}
                right += said == truth(scene) and not prompt.scene
        seconds = time.process_time() - start
        rows.append({"captions": name, "count": len(chosen), "right": right, "ms_each": 1000 * seconds / len(chosen)})
    long = (ROOT / "tests/data/prompts/long.txt").read_text(encoding="utf-8").splitlines()
    start = time.process_time()
    found = parse_many(long)
    rows.append({"captions": "200 words and more", "count": len(long), "right": None,
                 "entities": sum(len(p.entities) for p in found) / len(long),
                 "ms_each": 1000 * (time.process_time() - start) / len(long)})
    for row in rows:
        known = "" if row["right"] is None else f"{row['right']} right"
        print(f"{row['captions']:<20} {row['count']:>6} captions  {known:<14} {row['ms_each']:6.1f} ms each (CPU)")
    if options.json:
        Path(options.json).write_text(json.dumps({"prompts": rows}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
