"""On the real host: a bank that fails a render at any moment costs a miss or computed steps, and never the render."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from carnator.carnator_core.bank import index, tensorfile
from carnator.carnator_core.hosts import storing
from hosting import ANYTHING, Ask, Page, entries, granular, ksampler, reuse
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host

THEIRS, MINE = Ask(), Ask(text="a blue ball on snow")
WIDE = {"size": 9.0, "shape": 9.0, "colour": 999.0, "motion": 9.0, "change": 9.0}  # thresholds


@pytest.fixture
def remembered(wan_model: Any, bank: Any, page: Page) -> Any:
    """The model with Carnator Reuse, for which everything that corresponds fits, and one history."""
    model = reuse(wan_model, bank, strictness=ANYTHING)
    ksampler(model, THEIRS)
    assert len(entries(bank)) == 1
    return model


def damage(bank: Any, at: float = 1.0) -> None:
    """Flip a bit of the predictions' file, at a share of its length."""
    (card,) = entries(bank)
    path = bank.bank.folder / "entries" / card.id / "steps.safetensors"
    data = bytearray(path.read_bytes())
    data[int(at * (len(data) - 1))] ^= 1
    path.write_bytes(data)


def at_rest(bank: Any) -> None:
    """Nothing of a run is left: no reader's mark in the bank, no thread."""
    with bank.bank._shelf.transaction() as index:
        assert index.being_read(time.time()) == set()
    assert not [t for t in threading.enumerate() if t.name.startswith("carnator-read")]


def test_a_hit_says_how_long_it_stood_still(remembered: Any, bank: Any, page: Page) -> None:
    ksampler(remembered, MINE)
    assert page.last["decision"] == "hit" and page.last["forecast"] > 0
    assert 0 <= page.last["waited_seconds"] < page.last["seconds"] and page.last["delayed_steps"] >= 0
    at_rest(bank)


def test_a_slow_disk_is_seen_in_the_summary(remembered: Any, bank: Any, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = tensorfile.TensorFile.read

    def slow(self: tensorfile.TensorFile, name: str) -> Tensor:
        time.sleep(0.3 if name.startswith("denoised/") else 0)
        return plain(self, name)

    monkeypatch.setattr(tensorfile.TensorFile, "read", slow)
    assert torch.equal(ksampler(remembered, THEIRS), ksampler(remembered, THEIRS))
    assert page.last["computed"] == 0 and page.last["delayed_steps"] >= THEIRS.steps // 2
    assert page.last["waited_seconds"] > 0.1 * THEIRS.steps
    assert any("steps waited for the disk" in line for line in page.lines)


def test_a_replay_of_a_damaged_entry_is_a_miss(remembered: Any, bank: Any, page: Page, stock: Callable[[Ask], Tensor],
                                               caplog: pytest.LogCaptureFixture) -> None:
    (old,) = entries(bank)
    path = bank.bank.folder / "entries" / old.id / "steps.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, "carnator"):
        assert torch.equal(ksampler(remembered, THEIRS), stock(THEIRS))
    assert page.last["decision"] == "miss" and sum("put aside" in r.message for r in caplog.records) == 1
    at_rest(bank)
    (new,) = entries(bank)
    assert new.id != old.id, "and the render is remembered anew"


@pytest.mark.parametrize("at", [0.5, 1.0])
def test_a_replay_that_breaks_off_is_computed_to_its_end(at: float, remembered: Any, bank: Any, page: Page,
                                                         stock: Callable[[Ask], Tensor], caplog: pytest.LogCaptureFixture) -> None:
    damage(bank, at)
    with caplog.at_level(logging.WARNING, "carnator"):
        assert torch.equal(ksampler(remembered, THEIRS), stock(THEIRS))
    assert 0 < page.last["computed"] < THEIRS.steps and page.last["computed"] + page.last["replayed"] == THEIRS.steps
    assert "could not be read any further" in "\n".join(page.last["report"])
    assert sum("put aside" in r.message for r in caplog.records) == 1
    at_rest(bank)
    assert entries(bank) == []


@pytest.mark.parametrize("mode", ["ours", "attention"])
def test_a_hit_that_breaks_off_is_computed_to_its_end(mode: str, remembered: Any, bank: Any, wan_model: Any, page: Page) -> None:
    model = reuse(wan_model, bank, strictness=ANYTHING, mode=mode)
    damage(bank, 1.0)
    output = ksampler(model, MINE)
    assert page.last["decision"] == "hit" and bool(torch.isfinite(output).all())
    assert "could not be read any further" in "\n".join(page.last["report"])
    assert entries(bank) == [], "a render of two halves is not remembered"
    at_rest(bank)


def test_a_history_that_breaks_before_it_served_is_a_miss(remembered: Any, bank: Any, page: Page,
                                                          stock: Callable[[Ask], Tensor]) -> None:
    (old,) = entries(bank)
    damage(bank, 0.2)
    assert torch.equal(ksampler(remembered, MINE), stock(MINE))
    assert page.last["decision"] == "miss" and page.last["computed"] == MINE.steps
    (new,) = entries(bank)
    assert new.id != old.id
    at_rest(bank)


def test_an_entry_deleted_between_recall_and_reading(remembered: Any, bank: Any, page: Page, stock: Callable[[Ask], Tensor],
                                                     monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    recall = type(bank.bank).nearest

    def then_deleted(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = recall(self, *args, **kwargs)
        for card, _ in found:
            self.remove(card.id)
        return found

    monkeypatch.setattr(type(bank.bank), "nearest", then_deleted)
    with caplog.at_level(logging.WARNING, "carnator"):
        for ask in (MINE, Ask(text="a green ball on snow", seed=8)):  # of the same noise, and of another
            assert torch.equal(ksampler(remembered, ask), stock(ask))
            assert page.last["decision"] == "miss"
            assert "cannot be read" in caplog.records[-1].message
            entries(bank)
    at_rest(bank)


def test_a_bank_that_somebody_keeps_locked_is_not_called_empty(remembered: Any, bank: Any, page: Page,
                                                               stock: Callable[[Ask], Tensor],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BUSY_S", 0.2)
    bank.bank.close()
    with closing(sqlite3.connect(bank.bank.folder / index.FILE, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert torch.equal(ksampler(remembered, THEIRS), stock(THEIRS))
        storing.settle()
    assert page.last["decision"] == "miss"
    assert page.last["reason"] == "the bank cannot be read: another program keeps its index locked"
    assert len(entries(bank)) == 1, "and it stays as it is"
    ksampler(remembered, THEIRS)
    assert page.last["decision"] == "hit"


def test_an_interrupted_hit_gives_the_entry_back(remembered: Any, bank: Any, wan_model: Any, page: Page,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    import comfy.model_management as management

    calls = []

    def interrupt() -> None:
        calls.append(1)
        if len(calls) == 7:
            raise management.InterruptProcessingException

    monkeypatch.setattr(management, "throw_exception_if_processing_interrupted", interrupt)
    with pytest.raises(management.InterruptProcessingException):
        ksampler(remembered, MINE)
    at_rest(bank)


def test_the_nodes_one_by_one_open_the_history_again(wan_model: Any, bank: Any, page: Page, remembered: Any) -> None:
    served, decision = granular(wan_model, bank, MINE, WIDE)
    assert decision.verdict.accepted and page.last["decision"] == "hit" and bool(torch.isfinite(served).all())
    at_rest(bank)


def test_the_nodes_one_by_one_when_the_history_is_gone_by_then(wan_model: Any, bank: Any, page: Page, remembered: Any,
                                                               stock: Callable[[Ask], Tensor],
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.carnator_core.hosts import comfy as door

    judged = door.judge_probe

    def then_deleted(*args: Any, **kwargs: Any) -> Any:
        verdict = judged(*args, **kwargs)
        for card in entries(bank):
            bank.bank.remove(card.id)
        return verdict

    monkeypatch.setattr(door, "judge_probe", then_deleted)
    served, decision = granular(wan_model, bank, MINE, WIDE)
    assert decision.verdict.accepted and torch.equal(served, stock(MINE))
    assert page.last["decision"] == "miss"
    at_rest(bank)
