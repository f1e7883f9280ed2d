"""The scorer reads raw renders, and blurred and noisy ones, right; and can say no."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from carnator.demo import scorer, world
from scipy import ndimage


def shares(count: int, seed: int, blur: float = 0.0, noise: float = 0.0) -> dict[str, float]:
    """Share of random scenes on which the scorer agrees with the caption, by attribute."""
    rng, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    right: Counter[str] = Counter()
    for _ in range(count):
        scene = world.random_scene(rng, held=None)
        video, _ = world.render(scene)
        if blur:
            video = torch.from_numpy(ndimage.gaussian_filter(video.numpy(), (0, 0.5, blur, blur)))
        video = video + noise * torch.randn(video.shape, generator=generator)
        right.update(k for k, ok in scorer.agrees(scorer.score(video), scene).items() if ok)
    return {k: right[k] / count for k in ("noun", "colour", "size", "count", "place", "motion")}


def test_raw_renders() -> None:
    assert min(shares(300, 1).values()) >= 0.99


def test_blurred_and_noisy_renders() -> None:
    assert min(shares(100, 2, blur=1.0, noise=0.04).values()) >= 0.97


@pytest.fixture(scope="module")
def ball() -> scorer.Seen:
    thing = world.placed(world.Thing("ball", "red", "big"), (6, 9), "left")
    return scorer.score(world.render(world.Scene("snow", "left", (thing,)))[0].permute(1, 2, 3, 0))


def test_what_is_seen(ball: scorer.Seen) -> None:
    assert ball.text() == "a big red ball moving left on snow"
    assert ball.count == 1
    item = ball.objects[0]
    assert item.centre == pytest.approx((75.5, 51.5), abs=1.0)
    assert item.area == pytest.approx(3.1416 * (0.95 * 30) ** 2, rel=0.05)
    assert item.confidence > 0.9


@pytest.mark.parametrize(("caption", "wrong"), [
    ("a big red ball moving left on snow", ()),
    ("a big red ball moving left", ()),
    ("a big red cube moving left on snow", ("noun",)),
    ("a big blue ball moving left on snow", ("colour",)),
    ("a small red ball moving left on snow", ("size",)),
    ("a big red ball moving left on sand", ("place",)),
    ("a big red ball moving right on snow", ("motion",)),
    ("a big red ball on snow", ("motion",)),
    ("two red balls moving left on snow", ("noun", "colour", "size", "count")),
])
def test_each_attribute_can_be_wrong(ball: scorer.Seen, caption: str, wrong: tuple[str, ...]) -> None:
    assert tuple(k for k, ok in scorer.agrees(ball, caption).items() if not ok) == wrong


def test_swapped_colours_are_wrong() -> None:
    things = (world.placed(world.Thing("ball", "red"), (4, 4), "still"),
              world.placed(world.Thing("star", "blue"), (11, 11), "still"))
    seen = scorer.score(world.render(world.Scene("sand", "still", things))[0])
    assert all(scorer.agrees(seen, "a blue star and a red ball on sand").values())
    swapped = scorer.agrees(seen, "a red star and a blue ball on sand")
    assert not (swapped["noun"] and swapped["colour"])


def test_an_empty_place() -> None:
    seen = scorer.score(world.BACKDROP["night"])
    assert seen.text() == "nothing at night"
    assert not scorer.agrees(seen, "a red ball at night")["noun"]


def test_captions_come_back() -> None:
    rng = random.Random(4)
    for _ in range(200):
        scene = world.random_scene(rng, held=None)
        asked = scorer.parse_caption(world.caption(scene))
        assert asked == {
            "nouns": [t.noun for t in scene.things], "colours": [t.colour for t in scene.things],
            "sizes": [t.size for t in scene.things], "count": len(scene.things),
            "place": scene.place, "motion": scene.motion,
        }


def test_wrong_shape() -> None:
    with pytest.raises(ValueError, match="demo clip"):
        scorer.score(torch.zeros(3, 5, 128, 128))
