"""Eviction on a stream of requests in the demo world: seconds saved by our rule, and by letting the least recent go."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass

from carnator.carnator_core.bank.worth import Life, victims, worth
from carnator.demo import world

# What a history takes and what its dense render took: (bytes, seconds). Bytes as this benchmark measures them, rounded;
# seconds from the paper's table 1 for Wan2.2-5B, Wan2.1-1.3B and LTX-13B, and its largest speed-up on a hit.
FORMATS = ((110_000_000, 265.0), (55_000_000, 974.0), (50_000_000, 79.0))
SAVED = 1 - 1 / 2.17
DAY = 24 * 3600.0
Scene = tuple[str, str, str, str, str]  # noun, colour, size, place, motion


@dataclass(frozen=True)
class Request:
    """One prompt at one time, in one format."""

    time: float
    scene: Scene
    format: int


def stream(seed: int, days: int = 60) -> list[Request]:
    """A creator's requests: two to four sessions a day, each on one theme of which one word at a time is changed.

    Themes are taken up again, recent and popular ones more often; each theme has its format. Half the variations of a
    session change the theme itself, the other half try something and go back.
    """
    chance = random.Random(seed)
    themes: list[tuple[Scene, int]] = []
    requests: list[Request] = []
    values = (list(world.NOUNS), list(world.COLOURS), list(world.RADIUS), list(world.PLACES), list(world.MOTIONS))
    for day in range(days):
        for session in range(chance.randint(2, 4)):
            now = day * DAY + (8 + 4 * session) * 3600.0
            if themes and chance.random() < 0.6:
                number = len(themes) - 1 - min(int(chance.expovariate(0.25)), len(themes) - 1)
            else:
                made = tuple(chance.choice(v) for v in values)
                themes.append(((made[0], made[1], made[2], made[3], made[4]), chance.randrange(len(FORMATS))))
                number = len(themes) - 1
            scene, form = themes[number]
            for _ in range(1 + int(chance.expovariate(0.15))):
                requests.append(Request(now, scene, form))
                now += 300.0
                place = chance.randrange(5)
                tried = list(scene)
                tried[place] = chance.choice(values[place])
                varied = (tried[0], tried[1], tried[2], tried[3], tried[4])
                requests.append(Request(now, varied, form))
                now += 300.0
                if chance.random() < 0.5:
                    scene = varied
            themes[number] = (scene, form)
    return sorted(requests, key=lambda r: r.time)


@dataclass
class _Entry:
    scene: Scene
    format: int
    life: Life


def saved(requests: list[Request], budget: int, rule: Callable[[_Entry, float], float]) -> float:
    """Seconds saved over a stream when, under a byte budget, entries of the lowest `rule` value leave first.

    A request hits an entry of its format that differs in one word at most.
    """
    bank: dict[str, _Entry] = {}
    total = 0.0
    for number, request in enumerate(requests):
        size, dense = FORMATS[request.format]
        fitting = [
            (sum(a != b for a, b in zip(e.scene, request.scene, strict=True)), k)
            for k, e in bank.items()
            if e.format == request.format
        ]
        apart, best = min(fitting, default=(9, ""))
        if apart <= 1:
            total += SAVED * dense
            entry = bank[best]
            bank[best] = dataclasses.replace(entry, life=entry.life.used(request.time, SAVED * dense))
            continue
        need = size + sum(FORMATS[e.format][0] for e in bank.values()) - budget
        ranked = [(k, rule(e, request.time), FORMATS[e.format][0]) for k, e in bank.items()]
        for gone in victims(ranked, need) or ():
            del bank[gone]
        bank[f"{number:06d}"] = _Entry(request.scene, request.format, Life(request.time))
    return total


def ours(entry: _Entry, now: float) -> float:
    """The bank's own rule."""
    size, dense = FORMATS[entry.format]
    return worth(entry.life, dense, size, now)


def least_recent(entry: _Entry, now: float) -> float:
    """LRU."""
    return entry.life.used_at


def compare(streams: int, budget: int = 2_000_000_000) -> dict[str, float]:
    """Seconds saved by both rules and without a budget, summed over streams."""
    found = {"ours": 0.0, "lru": 0.0, "no_budget": 0.0}
    for seed in range(streams):
        requests = stream(seed)
        found["ours"] += saved(requests, budget, ours)
        found["lru"] += saved(requests, budget, least_recent)
        found["no_budget"] += saved(requests, 1 << 60, least_recent)
    return {k: round(v) for k, v in found.items()}
