"""Eviction on a stream of requests in the demo world: seconds saved by our rule, by letting the least recent go, and by
GreedyDual-Size (Cao and Irani 1997), the usual rule for entries of unequal size and cost."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from carnator.carnator_core.bank.worth import Life, victims, worth
from carnator.demo import world

# What a history takes and what its dense render took: (bytes, seconds). Bytes as this benchmark measures them, rounded;
# seconds from the paper's table 1 for Wan2.2-5B, Wan2.1-1.3B and LTX-13B, and its largest speed-up on a hit. The last three
# are drafts of these: half the width and height, half the frames, tokens / 8 and so bytes / 8, seconds about / 12.
FORMATS = ((110_000_000, 265.0), (55_000_000, 974.0), (50_000_000, 79.0),
           (14_000_000, 22.0), (7_000_000, 81.0), (6_000_000, 7.0))  # fmt: skip
FULL = 3
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

    Themes are taken up again, recent and popular ones more often; each theme has its model. Half the variations of a
    session change the theme itself, the other half try something and go back. Half the themes are tried out in drafts,
    of which every third that stays is rendered in full.
    """
    chance = random.Random(seed)
    themes: list[tuple[Scene, int, bool]] = []
    requests: list[Request] = []
    values = (list(world.NOUNS), list(world.COLOURS), list(world.RADIUS), list(world.PLACES), list(world.MOTIONS))
    for day in range(days):
        for session in range(chance.randint(2, 4)):
            now = day * DAY + (8 + 4 * session) * 3600.0
            if themes and chance.random() < 0.6:
                number = len(themes) - 1 - min(int(chance.expovariate(0.25)), len(themes) - 1)
            else:
                made = tuple(chance.choice(v) for v in values)
                themes.append(((made[0], made[1], made[2], made[3], made[4]), chance.randrange(FULL), chance.random() < 0.5))
                number = len(themes) - 1
            scene, form, drafts = themes[number]
            for _ in range(1 + int(chance.expovariate(0.15))):
                requests.append(Request(now, scene, form + FULL * drafts))
                now += 300.0
                place = chance.randrange(5)
                tried = list(scene)
                tried[place] = chance.choice(values[place])
                varied = (tried[0], tried[1], tried[2], tried[3], tried[4])
                requests.append(Request(now, varied, form + FULL * drafts))
                now += 300.0
                if chance.random() < 0.5:
                    scene = varied
                    if drafts and chance.random() < 1 / 3:
                        requests.append(Request(now, scene, form))
                        now += 300.0
            themes[number] = (scene, form, drafts)
    return sorted(requests, key=lambda r: r.time)


@dataclass
class _Entry:
    scene: Scene
    format: int
    life: Life
    standing: float = 0.0  # GreedyDual-Size's H: the bar when it was last used + its own worth


Rule = Callable[[_Entry, float], float]


def saved(requests: list[Request], budget: int, rule: Rule) -> float:
    """Seconds saved over a stream when, under a byte budget, entries of the lowest `rule` value leave first.

    A request hits an entry of its format that differs in one word at most.
    """
    bank: dict[str, _Entry] = {}
    total, held, bar = 0.0, 0, 0.0
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
            bank[best] = dataclasses.replace(entry, life=entry.life.used(request.time, SAVED * dense), standing=bar + dense / size)
            continue
        ranked = [(k, rule(e, request.time), FORMATS[e.format][0]) for k, e in bank.items()] if size + held > budget else []
        for gone in victims(ranked, size + held - budget) or ():
            entry = bank.pop(gone)
            held -= FORMATS[entry.format][0]
            bar = max(bar, entry.standing)
        bank[f"{number:06d}"] = _Entry(request.scene, request.format, Life(request.time), bar + dense / size)
        held += size
    return total


def ours(entry: _Entry, now: float) -> float:
    """The bank's own rule."""
    size, dense = FORMATS[entry.format]
    return worth(entry.life, dense, size, now)


def least_recent(entry: _Entry, now: float) -> float:
    """LRU."""
    return entry.life.used_at


def greedy_dual(entry: _Entry, now: float) -> float:
    """GreedyDual-Size: seconds / bytes above the highest standing that had to leave before the entry's last use."""
    return entry.standing


RULES: dict[str, Rule] = {"ours": ours, "lru": least_recent, "greedy_dual_size": greedy_dual}


def compare(streams: int, budgets: tuple[int, ...] = (500_000_000, 1_000_000_000, 2_000_000_000, 4_000_000_000)) -> dict[str, Any]:
    """Seconds saved by each rule and without a budget, summed over streams and budgets; and for each budget by itself.

    regained: of what LRU loses for want of room, the share that our rule saves.
    """
    made = [stream(seed) for seed in range(streams)]
    boundless = sum(saved(requests, 1 << 60, least_recent) for requests in made)
    by_budget = {
        f"{budget / 1e9:g} GB": {name: round(sum(saved(r, budget, rule) for r in made)) for name, rule in RULES.items()}
        for budget in budgets
    }
    total = {name: sum(found[name] for found in by_budget.values()) for name in RULES}
    everything = len(budgets) * boundless
    return {
        **total,
        "no_budget": round(everything),
        "requests": sum(map(len, made)),
        "regained": round((total["ours"] - total["lru"]) / max(1.0, everything - total["lru"]), 3),
        "by_budget": by_budget,
    }
