"""The Early Signature: descriptors of an entity, their distances, and the colour formulas behind one of them."""

from __future__ import annotations

import math

import pytest
import torch
from carnator.carnator_core.colour import ciede2000, srgb_to_lab
from carnator.carnator_core.signature import (
    EntitySignature,
    colour_distance,
    displacement,
    extents,
    from_tensors,
    latent_distance,
    motion_distance,
    shape_distance,
    signature,
    size_distance,
    to_tensors,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

# Sharma, Wu, Dalal (2005), table 1: L*, a*, b* of both colours and their CIEDE2000 difference.
SHARMA = [
    (50.0000, 2.6772, -79.7751, 50.0000, 0.0000, -82.7485, 2.0425),
    (50.0000, 3.1571, -77.2803, 50.0000, 0.0000, -82.7485, 2.8615),
    (50.0000, 2.8361, -74.0200, 50.0000, 0.0000, -82.7485, 3.4412),
    (50.0000, -1.3802, -84.2814, 50.0000, 0.0000, -82.7485, 1.0000),
    (50.0000, -1.1848, -84.8006, 50.0000, 0.0000, -82.7485, 1.0000),
    (50.0000, -0.9009, -85.5211, 50.0000, 0.0000, -82.7485, 1.0000),
    (50.0000, 0.0000, 0.0000, 50.0000, -1.0000, 2.0000, 2.3669),
    (50.0000, -1.0000, 2.0000, 50.0000, 0.0000, 0.0000, 2.3669),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0009, 7.1792),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0010, 7.1792),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0011, 7.2195),
    (50.0000, 2.4900, -0.0010, 50.0000, -2.4900, 0.0012, 7.2195),
    (50.0000, -0.0010, 2.4900, 50.0000, 0.0009, -2.4900, 4.8045),
    (50.0000, -0.0010, 2.4900, 50.0000, 0.0010, -2.4900, 4.8045),
    (50.0000, -0.0010, 2.4900, 50.0000, 0.0011, -2.4900, 4.7461),
    (50.0000, 2.5000, 0.0000, 50.0000, 0.0000, -2.5000, 4.3065),
    (50.0000, 2.5000, 0.0000, 73.0000, 25.0000, -18.0000, 27.1492),
    (50.0000, 2.5000, 0.0000, 61.0000, -5.0000, 29.0000, 22.8977),
    (50.0000, 2.5000, 0.0000, 56.0000, -27.0000, -3.0000, 31.9030),
    (50.0000, 2.5000, 0.0000, 58.0000, 24.0000, 15.0000, 19.4535),
    (50.0000, 2.5000, 0.0000, 50.0000, 3.1736, 0.5854, 1.0000),
    (50.0000, 2.5000, 0.0000, 50.0000, 3.2972, 0.0000, 1.0000),
    (50.0000, 2.5000, 0.0000, 50.0000, 1.8634, 0.5757, 1.0000),
    (50.0000, 2.5000, 0.0000, 50.0000, 3.2592, 0.3350, 1.0000),
    (60.2574, -34.0099, 36.2677, 60.4626, -34.1751, 39.4387, 1.2644),
    (63.0109, -31.0961, -5.8663, 62.8187, -29.7946, -4.0864, 1.2630),
    (61.2901, 3.7196, -5.3901, 61.4292, 2.2480, -4.9620, 1.8731),
    (35.0831, -44.1164, 3.7933, 35.0232, -40.0716, 1.5901, 1.8645),
    (22.7233, 20.0904, -46.6940, 23.0331, 14.9730, -42.5619, 2.0373),
    (36.4612, 47.8580, 18.3852, 36.2715, 50.5065, 21.2231, 1.4146),
    (90.8027, -2.0831, 1.4410, 91.1528, -1.6435, 0.0447, 1.4441),
    (90.9257, -0.5406, -0.9208, 88.6381, -0.8985, -0.7239, 1.5381),
    (6.7747, -0.2908, -2.4247, 5.8714, -0.0985, -2.2286, 0.6377),
    (2.0776, 0.0795, -1.1350, 0.9033, -0.0636, -0.5514, 0.9082),
]


def box(top: int, left: int, height: int, width: int, grid: tuple[int, int, int] = (3, 12, 16), *,
        step: tuple[int, int] = (0, 0)) -> Tensor:
    """A rectangle that moves by `step` tokens a latent frame."""
    region = torch.zeros(grid, dtype=torch.bool)
    for t in range(grid[0]):
        y, x = top + t * step[0], left + t * step[1]
        region[t, y : y + height, x : x + width] = True
    return region


def entity(region: Tensor, frame: Tensor | None = None) -> EntitySignature:
    return signature({"it": region}, frame)["it"]


@pytest.mark.parametrize("row", SHARMA)
def test_ciede2000_of_the_published_pairs(row: tuple[float, ...]) -> None:
    first, second = torch.tensor(row[:3], dtype=torch.float64), torch.tensor(row[3:6], dtype=torch.float64)
    assert float(ciede2000(first, second)) == pytest.approx(row[6], abs=1e-4)
    assert float(ciede2000(second, first)) == pytest.approx(row[6], abs=1e-4)


def test_known_lab_values() -> None:
    rgb = torch.tensor([[1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.0, -1.0, 0.0]])
    lab = srgb_to_lab(rgb)
    assert torch.allclose(lab[0], torch.tensor([100.0, 0.0, 0.0], dtype=torch.float64), atol=1e-9)
    assert torch.allclose(lab[1], torch.zeros(3, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(lab[2], torch.tensor([53.24, 80.09, 67.20], dtype=torch.float64), atol=0.05)
    assert torch.equal(lab[3], lab[2])


@pytest.mark.filterwarnings("ignore")
def test_both_formulas_agree_with_colour_science() -> None:
    colour = pytest.importorskip("colour")
    rgb = torch.rand(200, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = srgb_to_lab(rgb)
    theirs = torch.from_numpy(colour.XYZ_to_Lab(colour.sRGB_to_XYZ(rgb.numpy())))
    assert (ours - theirs).abs().max() < 0.05  # the white points differ in the fourth digit
    expected = torch.from_numpy(colour.delta_E(ours[:100].numpy(), ours[100:].numpy(), method="CIE 2000"))
    assert torch.allclose(ciede2000(ours[:100], ours[100:]), expected, atol=1e-6)


def test_descriptors_of_a_moving_box() -> None:
    frame = torch.zeros(96, 128, 3)
    frame[16:40, 40:72] = torch.tensor([1.0, 0.0, 0.0])
    found = entity(box(2, 1, 3, 4, step=(0, 2)), frame)
    assert found.size == pytest.approx(12 / (12 * 16))
    assert found.path.tolist() == [[3.0, 2.5], [3.0, 4.5], [3.0, 6.5]]
    assert extents(found.region).tolist() == [[3.0, 4.0]] * 3
    assert found.lab == pytest.approx((53.24, 80.09, 67.20), abs=0.05)
    assert displacement(found) == pytest.approx((0.0, 4 / 16))


def test_the_mean_latent_is_that_of_the_regions_cells_also_where_patches_reach_over_the_edge() -> None:
    prediction = torch.zeros(4, 2, 5, 6)
    prediction[1, :, 4, :2] = 3.0  # the last row of tokens holds one row of cells
    region = torch.zeros(2, 3, 3, dtype=torch.bool)
    region[:, 2, 0] = True
    found = signature({"fox": region}, None, prediction, (1, 2, 2))["fox"]
    assert found.latent is not None and found.latent.tolist() == [0.0, 3.0, 0.0, 0.0]
    with pytest.raises(ValueError, match=r"\[2, 3, 3\] tokens, the prediction \[2, 5, 6\]"):
        signature({"fox": region}, None, prediction)
    assert signature({"fox": torch.zeros(2, 3, 3, dtype=torch.bool)}, None, prediction, (1, 2, 2))["fox"].latent is None
    assert signature({"fox": region}, None, prediction * math.nan, (1, 2, 2))["fox"].latent is None


def test_latents_are_compared_relative_to_their_size() -> None:
    region = torch.ones(1, 2, 2, dtype=torch.bool)

    def of(*values: float) -> EntitySignature:
        return signature({"fox": region}, None, torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 1, 2, 2))["fox"]
    assert latent_distance(of(3.0, 4.0), of(3.0, 4.0)) == 0.0
    assert latent_distance(of(3.0, 4.0), of(6.0, 8.0)) == pytest.approx(5.0 / 7.5)
    assert latent_distance(of(1.0, 0.0), of(-1.0, 0.0)) == pytest.approx(2.0)
    assert latent_distance(of(0.0, 0.0), of(0.0, 0.0)) == 0.0
    assert math.isnan(latent_distance(of(1.0, 0.0), signature({"fox": region}, None)["fox"]))
    back = from_tensors(to_tensors({"fox": of(3.0, 4.0)}))["fox"]
    assert back.latent is not None and back.latent.tolist() == [3.0, 4.0]


@pytest.mark.parametrize(("height", "width"), [(96, 128), (90, 121), (12, 16), (24, 31), (1000, 37)])
def test_colour_is_read_under_the_region_whatever_the_size_of_the_frame(height: int, width: int) -> None:
    """The last row and column of tokens may be partly padding; a frame of odd size is laid over in proportion."""
    region = box(6, 8, 6, 8, (1, 12, 16))
    frame = torch.zeros(height, width, 3)
    frame[math.ceil(height * 0.55) :, math.ceil(width * 0.55) :, 2] = 1.0
    lab = entity(region, frame).lab
    assert lab is not None
    assert lab[2] < -60.0  # blue, in the main


def test_a_padded_grid_keeps_whole_pixel_cells() -> None:
    """536 rows under 34 tokens of 16: token 20 covers rows 320 to 335, not 315 to 331."""
    frame = torch.zeros(536, 16, 3)
    frame[320:336] = 1.0
    region = torch.zeros(1, 34, 1, dtype=torch.bool)
    region[0, 20] = True
    lab = entity(region, frame).lab
    assert lab is not None
    assert lab[0] == pytest.approx(100.0)


def test_what_cannot_be_seen_has_no_descriptor() -> None:
    empty = entity(torch.zeros(3, 4, 4, dtype=torch.bool), torch.rand(16, 16, 3))
    assert empty.size == 0.0
    assert empty.lab is None
    assert bool(empty.path.isnan().all())
    full = entity(torch.ones(3, 4, 4, dtype=torch.bool), torch.full((16, 16, 3), float("nan")))
    assert full.size == 1.0
    assert full.lab is None
    with pytest.raises(ValueError, match="frame must be"):
        entity(box(0, 0, 1, 1), torch.rand(3, 16, 16, 4))
    with pytest.raises(ValueError, match="must be \\[T, H, W\\]"):
        entity(torch.ones(4, 4, dtype=torch.bool))


def test_distances_of_known_pairs() -> None:
    small, large = entity(box(2, 2, 2, 2)), entity(box(4, 8, 4, 4))
    assert size_distance(small, large) == pytest.approx(math.log(4.0))
    assert shape_distance(small, large) == pytest.approx(0.0, abs=0.02)  # two squares
    bar = entity(box(2, 1, 1, 9))
    assert shape_distance(large, bar) > 0.4
    right, left = entity(box(4, 4, 3, 3, step=(0, 2))), entity(box(4, 10, 3, 3, step=(0, -2)))
    assert motion_distance(right, left) == pytest.approx(8 / 12)
    elsewhere = entity(box(1, 0, 3, 3, step=(0, 2)))
    assert motion_distance(right, elsewhere) == pytest.approx(0.0, abs=1e-6)
    growing = box(4, 4, 2, 2)
    growing[1:, 3:7, 3:7] = True
    assert motion_distance(entity(growing), entity(box(4, 4, 2, 2))) == pytest.approx(math.sqrt(2) / 12)


def test_distances_without_anything_to_compare_are_nan_and_never_zero() -> None:
    empty, here = entity(torch.zeros(3, 12, 16, dtype=torch.bool)), entity(box(1, 1, 2, 2))
    for distance in (size_distance, shape_distance, colour_distance, motion_distance):
        assert math.isnan(distance(empty, empty))
    assert size_distance(empty, here) == math.inf
    assert shape_distance(here, empty) == 1.0
    assert math.isnan(colour_distance(here, here))
    assert math.isnan(motion_distance(here, empty))
    still = entity(box(1, 1, 2, 2, (1, 12, 16)))
    assert math.isnan(motion_distance(still, still))  # one latent frame has no motion
    with pytest.raises(ValueError, match="grids differ"):
        motion_distance(here, still)


rectangles = st.tuples(*(st.integers(0, 5), st.integers(0, 5), st.integers(1, 6), st.integers(1, 6)))


@given(rectangles, st.integers(0, 1), st.integers(0, 4))
@settings(max_examples=50, deadline=None)
def test_shape_ignores_place_and_every_distance_is_symmetric(
    rectangle: tuple[int, int, int, int], down: int, right: int
) -> None:
    top, left, height, width = rectangle
    region = box(top, left, height, width)
    region[-1, top, left] = height * width == 1  # nick a corner, so that the shape is no mere rectangle
    one, two = entity(region), entity(torch.roll(region, (down, right), dims=(1, 2)))
    assert shape_distance(one, two) == pytest.approx(0.0, abs=1e-9)
    other = entity(box(3, 3, 2, 5))
    for distance in (size_distance, shape_distance, motion_distance):
        assert distance(one, other) == pytest.approx(distance(other, one), nan_ok=True)
        assert distance(one, one) == pytest.approx(0.0, abs=1e-6)


def test_tensors_round_trip() -> None:
    frame = torch.rand(96, 128, 3)
    sig = signature({"sports car": box(2, 1, 3, 4), "a/b": torch.zeros(3, 12, 16, dtype=torch.bool)}, frame)
    back = from_tensors(to_tensors(sig))
    assert list(back) == ["sports car", "a/b"]
    for name, found in back.items():
        assert torch.equal(found.region, sig[name].region)
        assert torch.equal(found.path.nan_to_num(-1), sig[name].path.nan_to_num(-1))
        assert found.size == sig[name].size
        assert found.lab == (None if sig[name].lab is None else pytest.approx(sig[name].lab, abs=1e-4))
    assert from_tensors({}) == {}
    with pytest.raises(KeyError):
        from_tensors({"car/path": torch.zeros(3, 2)})
