"""Active and Context Regions, the blending weights, and which entities' regions count."""

from __future__ import annotations

import pytest
import torch
from carnator.carnator_core.prompt import Modifier
from carnator.carnator_core.recall import Correspondence
from carnator.carnator_core.regions import (
    Regions,
    differing_entities,
    dilate,
    evidence_union,
    latent_weights,
    regions,
    token_weights,
)
from carnator.carnator_core.signature import signature
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor


def dot(t: int = 1, y: int = 6, x: int = 6, grid: tuple[int, int, int] = (3, 14, 14)) -> Tensor:
    region = torch.zeros(grid, dtype=torch.bool)
    region[t, y, x] = True
    return region


def test_a_token_grows_to_a_square_in_its_own_frame() -> None:
    found = regions(dot())
    assert int(found.active.sum()) == 5 * 5
    assert int(found.context.sum()) == 11 * 11
    assert bool(found.active[1, 4:9, 4:9].all())
    assert bool(found.context[1, 1:12, 1:12].all())
    assert not bool(found.context[0].any() or found.context[2].any())
    assert found.share() == pytest.approx(25 / (3 * 14 * 14))


def test_a_region_at_the_border_is_cut_there() -> None:
    found = regions(dot(y=0, x=13))
    assert int(found.active.sum()) == 3 * 3
    assert int(found.context.sum()) == 6 * 6


def test_weights_follow_the_smoothstep_of_the_chebyshev_distance() -> None:
    weights = token_weights(regions(dot(), active_radius=4))
    line = weights[1, 6, 6:12].tolist()
    expected = [1.0] + [1 - x * x * (3 - 2 * x) for x in (0.25, 0.5, 0.75, 1.0)] + [0.0]
    assert line == pytest.approx(expected, abs=1e-6)
    assert torch.equal(weights[1], weights[1].T)
    assert weights[1, 8, 7] == weights[1, 8, 6]  # Chebyshev: the corner counts like the side
    by_default = token_weights(regions(dot()))[1, 6, 6:10].tolist()
    assert by_default == pytest.approx([1.0, 0.5, 0.0, 0.0])


def test_the_band_is_normalised_by_the_largest_distance_attained() -> None:
    """Evidence everywhere but in one column leaves a band one token deep: its weight is the history's."""
    evidence = torch.ones(1, 5, 5, dtype=torch.bool)
    evidence[:, :, 4] = False
    assert torch.equal(token_weights(regions(evidence)), evidence.float())


def test_empty_and_full() -> None:
    for value in (False, True):
        found = regions(torch.full((2, 4, 4), value))
        assert bool(found.context.all()) == bool(found.active.any()) == value
        assert torch.equal(token_weights(found), torch.full((2, 4, 4), float(value)))
    lone = Regions(dot(0, grid=(2, 14, 14)), torch.ones(2, 14, 14, dtype=torch.bool), torch.ones(2, 14, 14))
    assert not bool(token_weights(lone)[1].any())  # no evidence in that frame, so no distance
    with pytest.raises(ValueError, match="at least 0"):
        regions(dot(), active_radius=-1)
    with pytest.raises(ValueError, match="must be"):
        regions(torch.zeros(4, 4))


masks = st.integers(0, 2**31).flatmap(
    lambda seed: st.floats(0.0, 0.3).map(
        lambda density: torch.rand(2, 9, 7, generator=torch.Generator().manual_seed(seed)) < density
    )
)


@given(masks, st.integers(0, 3), st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_regions_nest_and_weights_say_so(evidence: Tensor, active: int, context: int) -> None:
    found = regions(evidence, active, context)
    assert not bool((found.evidence & ~found.active).any() or (found.active & ~found.context).any())
    assert torch.equal(found.context, dilate(evidence, active + context))
    weights = token_weights(found)
    assert bool(((weights >= 0) & (weights <= 1)).all())
    assert bool((weights[found.evidence] == 1).all())
    assert not bool(weights[~found.active].any())


@pytest.mark.parametrize(
    ("latent", "patch", "grid"),
    [((3, 16, 16), (1, 2, 2), (3, 8, 8)), ((2, 67, 90), (1, 2, 2), (2, 34, 45)), ((5, 7, 9), (1, 1, 1), (5, 7, 9)),
     ((5, 7, 9), (2, 2, 2), (3, 4, 5))],
)
def test_latent_weights_repeat_tokens_and_crop_the_padding(
    latent: tuple[int, int, int], patch: tuple[int, int, int], grid: tuple[int, int, int]
) -> None:
    tokens = torch.rand(grid)
    weights = latent_weights(tokens, latent, patch)
    assert tuple(weights.shape) == latent
    for t, y, x in ((0, 0, 0), (latent[0] - 1, latent[1] - 1, latent[2] - 1), (1, 3, 5)):
        assert weights[t, y, x] == tokens[t // patch[0], y // patch[1], x // patch[2]]
    with pytest.raises(ValueError, match="tokens"):
        latent_weights(torch.rand(grid[0], grid[1] + 1, grid[2]), latent, patch)


def test_only_what_differs_counts() -> None:
    snow, wolf, ball = ("snow", "snow"), ("wolf", "fox"), ("ball", "ball")
    red, blue = Modifier("colour", "red"), Modifier("colour", "blue")
    assert differing_entities(Correspondence((ball,), None, ())) == ()
    assert differing_entities(Correspondence((snow,), wolf, ())) == (wolf,)
    assert differing_entities(Correspondence((snow, wolf), wolf, (("wolf", red, None),))) == (wolf,)
    assert differing_entities(Correspondence((ball, snow), None, (("ball", red, blue), ("", red, None)))) == (ball,)
    assert differing_entities(Correspondence((ball, snow, wolf), wolf, (("snow", None, blue),))) == (wolf, snow)


def test_the_union_takes_both_sides_and_the_change_region() -> None:
    ours, theirs = signature({"wolf": dot(x=2)}, None), signature({"fox": dot(x=9)}, None)
    union = evidence_union(ours, theirs, [("wolf", "fox")])
    assert union is not None
    assert torch.equal(union, dot(x=2) | dot(x=9))
    with_change = evidence_union(ours, None, [("wolf", "fox")], dot(t=0))
    assert with_change is not None
    assert torch.equal(with_change, dot(x=2) | dot(t=0))
    assert evidence_union(ours, theirs, [("cat", "dog")]) is None
    with pytest.raises(ValueError, match="grids differ"):
        evidence_union(ours, theirs, [("wolf", "fox")], torch.zeros(3, 7, 7, dtype=torch.bool))
