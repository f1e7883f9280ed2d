"""The demo world's promises: captions, held-out combinations, masks, latents and the noise coupling."""

from __future__ import annotations

import random

import pytest
import torch
from carnator.demo import coupling, data, latents, words, world


def scenes(count: int, seed: int, **options: float | bool | None) -> list[world.Scene]:
    rng = random.Random(seed)
    return [world.random_scene(rng, **options) for _ in range(count)]  # type: ignore[arg-type]


def test_captions() -> None:
    ball, star = world.Thing("ball", "red", "big"), world.Thing("star", "blue")
    assert world.caption(world.Scene("snow", "left", (ball,))) == "a big red ball moving left on snow"
    assert world.caption(world.Scene("night", "still", (star, ball))) == "a blue star and a big red ball at night"
    cross = world.Thing("cross", "pink")
    two = world.Scene("sand", "up", (cross, cross), counted=True)
    assert world.caption(two) == "two pink crosses moving up on sand"


def test_every_word_is_known_and_fits() -> None:
    for scene in scenes(300, 1, held=None):
        split = words.split(world.caption(scene))
        assert set(split) <= set(data.VOCABULARY)
        assert len(split) < words.SLOTS
        for thing, slot in zip(scene.things, data.noun_slots(scene), strict=False):
            assert split[slot].startswith(thing.noun)
        assert split[data.place_slot(scene)] == scene.place


def test_held_out_is_never_trained_and_one_in_eight() -> None:
    for scene in scenes(300, 2):
        assert not any(world.held_out(t.noun, t.colour, scene.place) for t in scene.things)
    for scene in scenes(100, 3, held=True):
        assert all(world.held_out(t.noun, t.colour, scene.place) for t in scene.things)
    held = [world.held_out(n, c, p) for n in world.NOUNS for c in world.COLOURS for p in world.PLACES]
    assert sum(held) == len(held) // 8
    for noun in world.NOUNS:  # every noun is trained with every colour and at every place
        assert all(any(not world.held_out(noun, c, p) for p in world.PLACES) for c in world.COLOURS)
        assert all(any(not world.held_out(noun, c, p) for c in world.COLOURS) for p in world.PLACES)


def test_things_stay_in_the_frame_and_apart() -> None:
    for scene in scenes(200, 4, pair=0.6, held=None):
        for thing in scene.things:
            vx, vy = world.MOTIONS[scene.motion]
            margin = world.RADIUS[thing.size]
            for t in (-4, 4):
                assert margin - 1e-6 <= thing.x + vx * t * world.SPEED <= world.SIDE - margin + 1e-6
                assert margin - 1e-6 <= thing.y + vy * t * world.SPEED <= world.SIDE - margin + 1e-6
        if len(scene.things) == 2:
            assert scene.things[1].cell in world.FINE.far(scene.things[0].cell)


def test_positions_have_no_favourite() -> None:
    cells = [s.things[0].cell for s in scenes(3600, 5, held=None)]
    counts = torch.tensor([cells.count(c) for c in world.FINE.cells]).float()
    assert len(counts) == 144
    assert ((counts - 25) ** 2 / 25).sum() < 200.0  # chi-squared, 143 degrees of freedom, 0.1 %


def test_masks_follow_the_motion() -> None:
    thing = world.placed(world.Thing("cube", "green", "small"), (7, 6), "right")
    video, masks = world.render(world.Scene("water", "right", (thing,)))
    assert video.shape == (3, 9, 128, 128)
    assert torch.equal(video, video.clamp(0, 1))
    assert masks[1].sum() == 0
    centre = (masks[0] * (torch.arange(128) + 0.5)).sum((1, 2)) / masks[0].sum((1, 2))
    assert torch.allclose(centre, thing.x + (torch.arange(9) - 4) * world.SPEED, atol=0.1)
    outside = masks[0] == 0
    assert torch.equal(video[:, outside], world.BACKDROP["water"][:, outside])


def test_unknown_noun() -> None:
    with pytest.raises(ValueError, match="no noun 'fox'"):
        world.signed_distance("fox", torch.zeros(1), torch.zeros(1))


def test_latents_of_a_flat_grey_clip() -> None:
    raw = latents.raw_latents(torch.full((1, 3, 9, 128, 128), 0.3))
    assert raw.shape == (1, 16, 3, 16, 16)
    assert torch.allclose(raw[:, :3], torch.full((1, 3, 3, 16, 16), 0.3), atol=1e-6)
    assert raw[:, 3:].abs().max() < 1e-6


def test_latents_see_edges_and_change() -> None:
    video = torch.zeros(1, 3, 9, 16, 16)
    video[..., 4:8] = 1.0  # the right half of the left cells
    raw = latents.raw_latents(video)
    assert torch.allclose(raw[:, 3:6, :, :, 0], torch.tensor(0.5))
    assert raw[:, 6:12].abs().max() == 0
    video = torch.zeros(1, 3, 9, 16, 16)
    video[:, 0, 3:5] = 1.0  # red in the later half of the first group
    assert torch.allclose(latents.raw_latents(video)[:, 12, 1], torch.tensor(1.0))


def test_token_masks() -> None:
    mask = torch.zeros(1, 1, 9, 128, 128)
    mask[:, :, :, 16:32, 32:40] = 1.0
    tokens = latents.token_masks(mask, 16)
    assert tokens.shape == (1, 1, 3, 8, 8)
    assert torch.allclose(tokens[0, 0, :, 1, 2], torch.tensor(0.5))
    assert tokens.sum() == pytest.approx(1.5)


def test_text_vectors_bind_left_context() -> None:
    text = words.encode([("red", 1.0), ("ball", 1.0)])
    red, ball = words.word_vector("red"), words.word_vector("ball")
    assert torch.equal(text[1], ball + 0.5 * red)
    assert text[3:].abs().max() == 0
    assert set(text[0].unique().tolist()) == {-1.0, 1.0}
    vectors = data.vectors()
    assert torch.allclose(words.mixing("a red ball", data.VOCABULARY) @ vectors,
                          words.encode([(w, 1.0) for w in ("a", "red", "ball")])[: words.SLOTS], atol=1e-4)


@pytest.mark.parametrize("lattice", [world.FINE, world.COARSE])
def test_coupling_keeps_noise_white_and_says_the_cell(lattice: world.Lattice) -> None:
    pairing = coupling.Coupling(lattice)
    generator, rng = torch.Generator().manual_seed(0), random.Random(0)
    noise = torch.randn(400, 16, 3, 16, 16, generator=generator)
    pairs = []
    for k in range(400):
        first = rng.choice(lattice.cells)
        second = rng.choice(lattice.far(first))
        pairs.append([lattice.cells.index(first), lattice.cells.index(second) if k % 2 else -1])
    wanted = torch.tensor(pairs)
    coupled = pairing.couple(noise, wanted)
    first_cell, second_cell = pairing.read(coupled)
    assert torch.equal(first_cell, wanted[:, 0])
    assert torch.equal(second_cell[1::2], wanted[1::2, 1])
    assert torch.equal(coupled[:, :, 1:], noise[:, :, 1:])
    assert coupled.mean().abs() < 2e-3
    assert (coupled.std() - 1).abs() < 2e-3
