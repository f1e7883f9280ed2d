"""Request streams of the demo world: what a bank holds, and what is asked for next, with the truth of each.

A theme is a scene that a creator iterates on with one seed: a first prompt and variants that change one thing. A
request is a further variant of a theme that the bank has not seen, from the theme's seed or from a fresh one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from carnator.demo import world
from carnator.demo.world import Scene, Thing

KINDS = ("noun", "colour", "place", "size", "motion", "count", "two things")


@dataclass(frozen=True)
class Past:
    """A remembered request."""

    prompt: str
    seed: int
    theme: int


@dataclass(frozen=True)
class Ask:
    """A request to come. kind: what changes against the theme's first prompt; shared: from the theme's seed."""

    prompt: str
    seed: int
    theme: int
    kind: str
    shared: bool


@dataclass(frozen=True)
class Workload:
    """histories: what the bank holds; requests: disjoint from them by prompt."""

    histories: tuple[Past, ...]
    requests: tuple[Ask, ...]


def first_scene(rng: random.Random) -> Scene:
    """A theme's first scene: mostly one thing, sometimes two."""
    return world.random_scene(rng, pair=0.2, counted=0.0, held=None)


def changed(scene: Scene, kind: str, rng: random.Random) -> Scene:
    """`scene` with one attribute exchanged; "count" doubles the thing, "two things" exchanges noun and colour together.

    Raises ValueError for an unknown kind.
    """
    first, *rest = scene.things
    others = [n for n in world.NOUNS if n not in {t.noun for t in scene.things}]
    colours = [c for c in world.COLOURS if c not in {t.colour for t in scene.things}]
    if kind == "noun":
        things: tuple[Thing, ...] = (replace(first, noun=rng.choice(others)), *rest)
    elif kind == "colour":
        things = (replace(first, colour=rng.choice(colours)), *rest)
    elif kind == "size":
        things = (replace(first, size=rng.choice([s for s in ("small", "", "big") if s != first.size])), *rest)
    elif kind == "two things":
        things = (replace(first, noun=rng.choice(others), colour=rng.choice(colours)), *rest)
    elif kind == "count":
        things = (replace(first, size=""),) * 2
        return replace(scene, things=things, counted=True)
    elif kind == "place":
        return replace(scene, place=rng.choice([p for p in world.PLACES if p != scene.place]))
    elif kind == "motion":
        return replace(scene, motion=rng.choice([m for m in world.MOTIONS if m != scene.motion]))
    else:
        raise ValueError(f"no kind {kind!r}; there are {', '.join(KINDS)}")
    return replace(scene, things=things)


def prompt_of(scene: Scene) -> str:
    """Its caption, with the article that the demo's vocabulary has."""
    return world.caption(scene)


def kinds_of(scene: Scene) -> list[str]:
    """The kinds that a scene can take: pairs have neither sizes nor counts."""
    return [k for k in KINDS if len(scene.things) == 1 or k not in ("count", "size")]


def workload(histories: int, requests: int, seed: int, variants: int = 4, shared: float = 0.6) -> Workload:
    """A bank of `histories` (themes of `variants` prompts each) and `requests`, kinds in turn, `shared` of them from
    their theme's own seed. Requests never repeat a remembered prompt, nor each other. Deterministic in `seed`."""
    rng = random.Random(seed)
    themes = [first_scene(rng) for _ in range(-(-histories // variants))]
    seeds = [rng.randrange(2**31) for _ in themes]
    past: list[Past] = []
    for number, scene in enumerate(themes):
        scenes = [scene]
        while len(scenes) < variants:
            new = changed(scene, rng.choice(kinds_of(scene)), rng)
            if prompt_of(new) not in {prompt_of(s) for s in scenes}:
                scenes.append(new)
        past += [Past(prompt_of(s), seeds[number], number) for s in scenes]
    past = past[:histories]
    known = {p.prompt for p in past}
    asked: set[tuple[str, int]] = set()
    asks: list[Ask] = []
    for kind in _turns(requests):
        while True:
            number = rng.randrange(len(themes))
            if kind not in kinds_of(themes[number]):
                continue
            prompt = prompt_of(changed(themes[number], kind, rng))
            if prompt not in known and (prompt, number) not in asked:
                break
        asked.add((prompt, number))
        same = rng.random() < shared
        asks.append(Ask(prompt, seeds[number] if same else rng.randrange(2**31), number, kind, same))
    return Workload(tuple(past), tuple(asks))


def _turns(count: int) -> Iterator[str]:
    return (KINDS[i % len(KINDS)] for i in range(count))
