"""Coding of trajectories: what is promised about errors is measured here on what a reader gets."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from bank_world import same, smooth
from carnator.carnator_core.bank import codec, connectivity, tensorfile
from carnator.carnator_core.bank.deflate import pack, unpack
from carnator.carnator_core.bank.errors import BankDamaged
from torch import Tensor


def stored(folder: Path, steps: Tensor, precision: str) -> tuple[codec.Encoded, codec.Decoder, int]:
    coded = codec.encode("denoised", steps, precision)
    head = tensorfile.write(folder / "steps.safetensors", coded.tensors, {})
    file = tensorfile.TensorFile(folder / "steps.safetensors", head)
    return (
        coded,
        codec.Decoder("denoised", coded.header, file, tuple(steps.shape)),
        (folder / "steps.safetensors").stat().st_size,
    )


def psnr(steps: Tensor, decoder: codec.Decoder) -> list[float]:
    """Of each call, against the range of the last prediction."""
    peak = float(steps[-1].max() - steps[-1].min())
    return [
        20 * math.log10(peak) - 10 * math.log10(float((decoder.step(i) - s).square().mean()))
        for i, s in enumerate(steps)
    ]


def test_compact_keeps_45_db_at_every_call_in_a_tenth(tmp_path: Path) -> None:
    steps = smooth((4, 5, 16, 20), calls=40)
    coded, decoder, size = stored(tmp_path, steps, "compact")
    found = psnr(steps, decoder)
    assert coded.header["kind"] == "modes"
    assert min(found) >= 45.0
    assert found[-1] >= 50.0
    assert coded.header["psnr_db"] == pytest.approx(min(found), abs=0.01)
    assert size * 10 < steps.numel() * 2, "a tenth of half precision"


def test_calls_in_any_order_and_at_equal_sigmas_are_kept(tmp_path: Path) -> None:
    smooth_steps = smooth((4, 3, 8, 8), calls=8)
    heun = smooth_steps[[0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]]
    _, decoder, _ = stored(tmp_path, heun, "compact")
    assert min(psnr(heun, decoder)) >= 45.0


def test_unrelated_calls_are_still_within_the_error(tmp_path: Path) -> None:
    steps = torch.randn(7, 4, 2, 6, 6, generator=torch.Generator().manual_seed(3))
    coded, decoder, _ = stored(tmp_path, steps, "compact")
    assert min(psnr(steps, decoder)) >= 45.0
    assert coded.header["kind"] in ("modes", "half")


def test_auto_is_exact_when_small(tmp_path: Path) -> None:
    steps = smooth((4, 2, 6, 5), calls=6)
    coded, decoder, _ = stored(tmp_path, steps, "auto")
    assert coded.header == {"kind": "exact"}
    assert all(same(decoder.step(i), s) for i, s in enumerate(steps))
    assert codec.encode("denoised", torch.zeros(1).expand(17, 1, 1, 1024, 1024), "auto").header["kind"] != "exact"


def test_one_call_and_half_precision_input(tmp_path: Path) -> None:
    steps = smooth((4, 2, 6, 5), calls=1).half()
    _, decoder, _ = stored(tmp_path, steps, "compact")
    assert min(psnr(steps.float(), decoder)) >= 50.0


def test_deflate_round_trip() -> None:
    wide = torch.arange(-300, 300).to(torch.int16).reshape(20, 30)
    for values in (wide, torch.zeros(5, dtype=torch.int8), torch.tensor([[True, False]])):
        assert same(unpack(pack(values), values.dtype, tuple(values.shape)), values)


def test_deflate_makes_no_more_than_asked_for() -> None:
    bomb = pack(torch.zeros(1 << 20, dtype=torch.int8))
    assert len(bomb) < 4096
    for shape in ((1000,), ((1 << 20) + 1,)):
        with pytest.raises(BankDamaged, match="another size"):
            unpack(bomb, torch.int8, shape)
    with pytest.raises(BankDamaged, match="malformed"):
        unpack(bomb[1:], torch.int8, (1 << 20,))


def test_step_beyond_the_last(tmp_path: Path) -> None:
    _, decoder, _ = stored(tmp_path, smooth((4, 2, 6, 5), calls=3), "compact")
    for i in (-1, 3):
        with pytest.raises(IndexError):
            decoder.step(i)


def drifting_masks(steps: int, layers: int) -> dict[str, Tensor]:
    """Packed masks of which a few bits change from step to step, as they do in a render."""
    made = torch.Generator().manual_seed(5)
    masks: dict[str, Tensor] = {}
    now = [torch.randint(0, 256, (2, 64, 16), generator=made, dtype=torch.uint8) for _ in range(layers)]
    for step in range(steps):
        for layer in range(layers):
            flips = (torch.rand(2, 64, 16, generator=made) < 0.05).to(torch.uint8)
            now[layer] = now[layer] ^ flips
            masks[f"{step}/cond/{layer}"] = now[layer]
    return masks


def stored_masks(folder: Path, masks: dict[str, Tensor]) -> tuple[connectivity.Masks, int]:
    codes, tensors = connectivity.encode(masks)
    head = tensorfile.write(folder / "masks.safetensors", tensors, {"codes": codes})
    file = tensorfile.TensorFile(folder / "masks.safetensors", head)
    return connectivity.Masks(file), sum(len(t) for t in tensors.values())


def test_connectivity_is_lossless_and_shared_between_steps(tmp_path: Path) -> None:
    masks = drifting_masks(steps=20, layers=3)
    found, size = stored_masks(tmp_path, masks)
    assert found.names() == list(masks)
    assert all(same(found.read(n), m) for n, m in masks.items())
    assert size * 2.5 < sum(m.numel() for m in masks.values()), "random bytes, of which one in twenty changes"


def test_connectivity_of_every_kind(tmp_path: Path) -> None:
    masks = {
        "flags": torch.tensor([[True, False], [True, True]]),
        "counts": torch.arange(6, dtype=torch.int32),
        "counts again": torch.arange(6, dtype=torch.int32),
        "lists": torch.arange(6, dtype=torch.int16).reshape(2, 3),
        "nothing": torch.zeros(0, 4, dtype=torch.uint8),
        "one": torch.tensor(7, dtype=torch.int64),
        "\u72d0 3": torch.tensor([3], dtype=torch.uint8),
    }
    found, _ = stored_masks(tmp_path, masks)
    assert all(same(found.read(n), m) for n, m in masks.items())
    with pytest.raises(KeyError):
        found.read("another")
    with pytest.raises(ValueError, match="cannot be stored"):
        connectivity.encode({"x": torch.zeros(2)})


@pytest.mark.parametrize(
    "codes",
    [
        "",
        "[]",
        "[1]",
        '[["a","U8",[4],0]]',
        '[["a","U8",[4],-1]]',
        '[["a","F32",[4],null]]',
        '[["a","U8",[99999999,99999999],null]]',
        '[["a","U8",[-4],null]]',
        '[["a",["U8"],[4],null]]',
        '[["a","U8",4,null]]',
    ],
)
def test_crafted_codes_are_refused(tmp_path: Path, codes: str) -> None:
    _, tensors = connectivity.encode({"a": torch.zeros(4, dtype=torch.uint8)})
    head = tensorfile.write(tmp_path / "masks.safetensors", tensors, {"codes": codes})
    with pytest.raises(BankDamaged), tensorfile.TensorFile(tmp_path / "masks.safetensors", head) as file:
        connectivity.Masks(file).read("a")
