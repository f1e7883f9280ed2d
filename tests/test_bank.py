"""The bank from the outside: what goes in comes out, what must not go in is refused, nothing is left half done."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path

import pytest
import torch
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankDamaged, BankMissing, BankRefusal, BankUnreadable, noise_digest
from carnator.carnator_core.history import Identity
from safetensors.torch import load_file


def open_bank(folder: Path, **settings: object) -> Bank:
    return Bank.open(folder, **{"reserve_bytes": 0, **settings})  # type: ignore[arg-type]


def left_over(folder: Path) -> list[str]:
    """Files of writes that did not finish."""
    return [str(p) for sub in ("staging", "trash") for p in (folder / sub).rglob("*")]


def test_round_trip_is_bit_identical(tmp_path: Path) -> None:
    stored = history(uncond=torch.randn(6, 4, 2, 6, 5))
    bank = open_bank(tmp_path / "bank")
    entry_id = bank.add(stored)
    loaded = open_bank(tmp_path / "bank").load(entry_id)
    for name in ("text_vector", "noise", "sigmas", "call_sigmas", "denoised", "uncond", "thumbnail"):
        assert same(getattr(loaded, name), getattr(stored, name)), name
    assert (loaded.identity, loaded.prompt, loaded.facts) == (stored.identity, stored.prompt, stored.facts)
    assert loaded.connectivity.keys() == stored.connectivity.keys()
    assert all(same(loaded.connectivity[k], v) for k, v in stored.connectivity.items())
    assert loaded.signature is not None
    assert stored.signature is not None
    assert same(loaded.signature["fox"].region, stored.signature["fox"].region)
    assert loaded.signature["fox"].lab == pytest.approx(stored.signature["fox"].lab)


def test_what_is_absent_stays_absent(tmp_path: Path) -> None:
    bank = open_bank(tmp_path)
    loaded = bank.load(bank.add(history(signature=None, connectivity={}, thumbnail=None)))
    assert loaded.signature is None
    assert loaded.uncond is None
    assert loaded.thumbnail is None
    assert loaded.connectivity == {}


def test_card_tells_what_recall_needs(tmp_path: Path) -> None:
    stored = history(prompt="\u4e00\u53ea\u72d0\u72f8 \U0001f98a", facts={"seconds": 12.5, "created": 1700000000})
    bank = open_bank(tmp_path / "\U0001f98a\u94f6\u884c")
    entry_id = bank.add(stored)
    (card,) = bank.entries()
    assert card.id == entry_id
    assert re.fullmatch("[0-9a-f]{24}", entry_id)
    assert (card.prompt, card.identity, card.facts, card.created) == (
        stored.prompt,
        stored.identity,
        stored.facts,
        1700000000,
    )
    assert same(card.text_vector, stored.text_vector)
    assert card.noise_digest == noise_digest(stored.noise) == noise_digest(stored.noise[None]) != noise_digest(stored.noise + 1e-6)
    assert (card.hits, card.seconds_saved, card.pinned) == (0, 0.0, False)
    on_disk = sum(p.stat().st_size for p in (tmp_path / "\U0001f98a\u94f6\u884c" / "entries" / entry_id).iterdir())
    assert card.bytes == bank.total_bytes()
    assert 0 < on_disk - card.bytes < 2000


def test_entries_of_one_identity(tmp_path: Path) -> None:
    bank = open_bank(tmp_path)
    mine = bank.add(history(0))
    other = bank.add(history(1, identity=Identity({"model": "another"})))
    assert [c.id for c in bank.entries(Identity({"model": "another"}).digest())] == [other]
    assert [c.id for c in bank.entries(history(0).identity.digest())] == [mine]
    assert [c.id for c in bank.entries()] == [mine, other]


def test_no_folder_is_an_empty_bank(tmp_path: Path) -> None:
    bank = open_bank(tmp_path / "none" / "yet")
    assert bank.entries() == []
    assert bank.total_bytes() == 0
    bank.touch("0" * 24, 1.0)
    bank.pin("0" * 24)
    bank.remove("0" * 24)
    bank.clear()
    with pytest.raises(BankMissing):
        bank.load("0" * 24)
    assert not (tmp_path / "none").exists()
    bank.add(history())
    assert len(bank.entries()) == 1
    if os.name != "nt":
        assert bank.folder.stat().st_mode & 0o077 == 0, "private to who runs the host"


def test_a_file_in_the_folders_place(tmp_path: Path) -> None:
    (tmp_path / "bank").write_text("not a folder")
    bank = open_bank(tmp_path / "bank")
    with pytest.raises(BankUnreadable, match="in the place of its folder"):
        bank.entries()
    with pytest.raises(BankRefusal, match="could not be written"):
        bank.add(history())


@pytest.mark.parametrize("name", ["", "..", "../x", "0" * 23, "0" * 23 + "/", "0" * 24 + "\n", "A" * 24, "0" * 25])
def test_ids_are_validated(tmp_path: Path, name: str) -> None:
    bank = open_bank(tmp_path)
    bank.add(history())
    for call in (bank.load, bank.remove, bank.pin, lambda n: bank.touch(n, 1.0)):
        with pytest.raises(BankMissing):
            call(name)
    assert len(bank.entries()) == 1


def broken(name: str) -> dict[str, object]:
    good = history()
    nan, repeated = good.denoised.clone(), good.denoised.clone()
    nan[2, 0, 0, 0, 0] = float("nan")
    repeated[3] = repeated[2]
    infinite = good.noise.clone()
    infinite[0, 0, 0, 0] = float("inf")
    return {
        "nan": {"denoised": nan},
        "infinite": {"noise": infinite},
        "flat": {"denoised": torch.full_like(good.denoised, 0.5) * torch.arange(1, 7).view(6, 1, 1, 1, 1)},
        "no noise": {"noise": torch.zeros_like(good.noise)},
        "step cache": {"denoised": repeated},
        "shapes": {"denoised": good.denoised[:, :, :1]},
        "calls": {"call_sigmas": good.call_sigmas[:-1]},
        "no steps": {"denoised": good.denoised[:0], "call_sigmas": good.call_sigmas[:0]},
        "uncond": {"uncond": good.denoised[:2]},
        "facts": {"facts": {"x": object()}},
        "nan facts": {"facts": {"x": float("nan")}},
        "long": {"prompt": "fox " * 400_000},
    }[name]


@pytest.mark.parametrize(
    ("name", "reason"),
    [("nan", "NaN"), ("infinite", "NaN or infinite"), ("flat", "flat"), ("no noise", "noise"),
     ("step cache", "step cache"), ("shapes", "incomplete"), ("calls", "incomplete"), ("no steps", "incomplete"),
     ("uncond", "incomplete"), ("facts", "JSON"), ("nan facts", "JSON"), ("long", "too long")],
)  # fmt: skip
def test_broken_renders_are_refused(tmp_path: Path, name: str, reason: str) -> None:
    bank = open_bank(tmp_path)
    with pytest.raises(BankRefusal, match=reason) as caught:
        bank.add(history(**broken(name)))
    assert caught.value.reason == str(caught.value)
    assert bank.entries() == []
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    "call", ["tensorfile.write", "format.write_new", "tensorfile.os.fsync", "shelf.os.rename", "index.Index.put"]
)
def test_a_failed_store_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    bank = open_bank(tmp_path)
    kept = bank.add(history(0))

    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(f"carnator.carnator_core.bank.{call}", no_space)
        with pytest.raises(BankRefusal, match="No space left"):
            bank.add(history(1))
    assert left_over(tmp_path) == []
    assert [c.id for c in bank.entries()] == [kept]
    bank.add(history(2))


def test_the_library_reads_our_files(tmp_path: Path) -> None:
    bank = open_bank(tmp_path)
    entry_id = bank.add(history())
    render = load_file(tmp_path / "entries" / entry_id / "render.safetensors")
    assert same(render["noise"], history().noise)
    assert same(render["thumbnail"], history().thumbnail)


def test_damage_is_found_warned_of_once_and_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bank = open_bank(tmp_path)
    entry_id, kept = bank.add(history(0)), bank.add(history(1))
    file = tmp_path / "entries" / entry_id / "steps.safetensors"
    data = bytearray(file.read_bytes())
    data[-100] ^= 4
    file.write_bytes(data)
    with caplog.at_level(logging.WARNING, "carnator"):
        with pytest.raises(BankDamaged, match="altered"):
            bank.load(entry_id)
        with pytest.raises(BankMissing):
            bank.load(entry_id)
    assert len(caplog.records) == 1
    assert caplog.messages[0].isascii()
    assert entry_id in caplog.messages[0]
    assert [c.id for c in bank.entries()] == [kept]
    assert (tmp_path / "quarantine" / entry_id).is_dir()


def test_forgetting_removes_every_trace(tmp_path: Path) -> None:
    bank = open_bank(tmp_path)
    entry_id = bank.add(history(prompt="a secret fox"))
    bank.pin(entry_id)
    bank.remove(entry_id)
    assert bank.entries() == []
    assert not list((tmp_path / "entries").iterdir())
    assert left_over(tmp_path) == []
    bank.add(history(1))
    bank.clear()
    assert bank.entries() == []
    assert bank.total_bytes() == 0
    assert not list((tmp_path / "entries").iterdir())


def test_hits_and_pins_outlive_the_index(tmp_path: Path) -> None:
    bank = open_bank(tmp_path)
    entry_id = bank.add(history())
    bank.touch(entry_id, 3.5)
    bank.touch(entry_id, 1.0)
    bank.pin(entry_id)
    before = bank.entries()[0]
    (tmp_path / "index.sqlite").unlink()
    for again in (bank, open_bank(tmp_path)):
        (card,) = again.entries()
        assert (card.id, card.hits, card.seconds_saved, card.pinned, card.bytes) == (
            entry_id,
            2,
            4.5,
            True,
            before.bytes,
        )
    bank.pin(entry_id, False)
    assert not bank.entries()[0].pinned
