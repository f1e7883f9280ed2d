"""What a sampling run borrows from the bank: the same bits, ahead of time, and given back whatever happens."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankDamaged, BankMissing, Loans, tensorfile
from carnator.carnator_core.bank.loans import needed
from carnator.carnator_core.bank.reading import Reading
from carnator.carnator_core.history import History, Identity, repeat_key
from carnator.carnator_core.record import Past

CALLS = 20


@pytest.fixture
def bank(tmp_path: Path) -> Bank:
    return Bank.open(tmp_path / "bank", reserve_bytes=0)


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    assert not [t.name for t in threading.enumerate() if t.name.startswith("carnator-read")]


def flip(bank: Bank, entry_id: str, file: str = "steps.safetensors", at: int = -3) -> None:
    path = bank.folder / "entries" / entry_id / file
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def wait_for(what: list[int], count: int) -> None:
    patience = time.monotonic() + 20
    while len(what) < count and time.monotonic() < patience:
        time.sleep(0.01)


def sigmas(stored: History) -> list[float]:
    return [float(s) for s in stored.sigmas]


@pytest.mark.parametrize("guided", [False, True])
def test_a_loan_gives_what_the_history_gives_bit_by_bit(bank: Bank, guided: bool) -> None:
    stored = history(calls=CALLS)
    stored.uncond = -stored.denoised if guided else None
    entry_id = bank.add(stored)
    with Loans(bank, sigmas(stored)) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        assert loan.prompt == stored.prompt and dict(loan.facts) == stored.facts and loan.stack == (2 if guided else 1)
        assert same(loan.noise, stored.noise) and same(loan.thumbnail, stored.thumbnail)
        assert loan.signature is not None and loan.signature.keys() == stored.signature.keys()  # type: ignore[union-attr]
        assert {k: v.tolist() for k, v in loan.connectivity.items()} == {k: v.tolist() for k, v in stored.connectivity.items()}
        for call, sigma in ((0, 1.0), (5, 0.75), (3, 0.5)):
            a, b = loan.past.call(call, sigma), stored.past.call(call, sigma)
            assert (a is None) == (b is None) and same(a, b)
        for sigma in (1.0, 0.97, 0.5, 0.333, 0.05, 0.0, 2.0, 0.777, 0.96):  # forwards, backwards, between, beyond
            assert same(loan.past.at(sigma), stored.past.at(sigma))
        assert len(loan.past) == CALLS


def test_a_loan_without_masks_reads_none(bank: Bank) -> None:
    entry_id = bank.add(history())
    with Loans(bank, sigmas(history()), masks=False) as loans:
        loan = loans.take(entry_id)
        assert loan is not None and loan.connectivity == {}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The calls that were decoded, in order."""
    read: list[int] = []
    calm = Reading.denoised

    def note(self: Reading, i: int) -> torch.Tensor:
        read.append(i)
        return calm(self, i)

    monkeypatch.setattr(Reading, "denoised", note)
    return read


def test_calls_are_decoded_before_they_are_asked_for(bank: Bank, noted: list[int]) -> None:
    entry_id = bank.add(history(calls=CALLS))
    with Loans(bank, sigmas(history(calls=CALLS))) as loans:
        loans.begin(entry_id)
        wait_for(noted, 16)
        assert noted == list(range(16))
        loan = loans.take(entry_id)
        assert loan is not None
        loan.past.at(1.0)
        wait_for(noted, 17)
        for sigma in (1.0, 0.95, 1.0, 0.95):
            loan.past.at(sigma)
        wait_for(noted, 18)
        assert noted == list(range(18)), "nothing is decoded twice"


def test_a_decision_looks_back_without_decoding_again(bank: Bank, noted: list[int]) -> None:
    entry_id = bank.add(history(calls=CALLS))
    with Loans(bank, sigmas(history(calls=CALLS))) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        for i in (3, 1, 2, 3, 4):
            loan.past.predictions[i]
        wait_for(noted, CALLS)
    assert sorted(noted) == list(range(CALLS)), "each once"


def test_what_nobody_expected_goes_first(bank: Bank, monkeypatch: pytest.MonkeyPatch, noted: list[int]) -> None:
    entry_id = bank.add(history(calls=CALLS))
    plain = tensorfile.TensorFile.read

    def slow(self: tensorfile.TensorFile, name: str) -> torch.Tensor:
        time.sleep(0.05)
        return plain(self, name)

    monkeypatch.setattr(tensorfile.TensorFile, "read", slow)
    with Loans(bank, sigmas(history(calls=CALLS))) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        assert same(loan.past.predictions[19], history(calls=CALLS).denoised[19].unsqueeze(0))
        assert 19 in noted[:4], "not after the sixteen that were to come"


def test_on_another_schedule_only_the_neighbours_are_decoded(bank: Bank, noted: list[int]) -> None:
    stored = history(calls=CALLS)
    entry_id = bank.add(stored)
    with Loans(bank, [1.0, 0.62, 0.2, 0.0]) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        wait_for(noted, 4)
        assert noted == [0, 7, 8, 16]
        assert same(loan.past.at(0.62), stored.past.at(0.62))


def test_needed_calls() -> None:
    schedule = [1.0, 0.8, 0.4, 0.0]
    heun = [1.0, 0.8, 0.8, 0.4, 0.4]
    assert needed(heun, schedule, schedule) == [0, 1, 2, 3, 4]
    assert needed(heun, schedule, [1.0, 0.6, 0.0]) == [0, 2, 4]
    assert needed([0.5], [0.5, 0.0], [1.0, 0.2, 0.0]) == [0]


def test_the_seconds_that_a_caller_stood_still_are_counted(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    entry_id = bank.add(history(calls=CALLS))
    plain = tensorfile.TensorFile.read

    def slow(self: tensorfile.TensorFile, name: str) -> torch.Tensor:
        time.sleep(0.02)
        return plain(self, name)

    monkeypatch.setattr(tensorfile.TensorFile, "read", slow)
    with Loans(bank, sigmas(history(calls=CALLS))) as loans:
        assert loans.waited == 0
        loan = loans.take(entry_id)
        assert loan is not None and loans.waited > 0.02
        time.sleep(0.8)
        before = loans.waited
        loan.past.at(1.0)
        assert loans.waited - before < 0.02, "what lies ready is not waited for"
        loan.past.at(0.05)
        assert loans.waited - before > 0.015, "what does not, is"
        after = loans.waited
    assert loans.waited == after, "and is still known when the entry is given back"


def test_one_entry_is_open_at_a_time_and_cannot_be_evicted(tmp_path: Path) -> None:
    size = Bank.open(tmp_path / "probe", reserve_bytes=0)
    size.add(history())
    bank = Bank.open(tmp_path / "bank", budget_bytes=size.total_bytes() * 2 + 24_000, reserve_bytes=0)
    first, second = bank.add(history(1)), bank.add(history(2))
    with Loans(bank, sigmas(history())) as loans:
        assert loans.take(first) is not None
        third = bank.add(history(3))
        assert {c.id for c in bank.entries()} == {first, third}
        assert loans.take(third) is not None
        bank.add(history(4))
        assert first not in {c.id for c in bank.entries()} and third in {c.id for c in bank.entries()}
    assert second not in {c.id for c in bank.entries()}
    bank.add(history(5)), bank.add(history(6))
    assert third not in {c.id for c in bank.entries()}, "what was given back may leave"


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_whatever_ends_a_run_gives_the_entry_back(bank: Bank, error: type[BaseException]) -> None:
    entry_id = bank.add(history())
    with pytest.raises(error), Loans(bank, sigmas(history())) as loans:
        assert loans.take(entry_id) is not None
        raise error
    with bank._shelf.transaction() as index:
        assert index.being_read(time.time()) == set()


def test_an_entry_deleted_between_recall_and_reading_is_a_miss(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    entry_id = bank.add(history())
    ((card, _),) = bank.nearest(history().text_vector, history().identity.digest())
    Bank.open(bank.folder, reserve_bytes=0).remove(entry_id)
    with caplog.at_level(logging.WARNING), Loans(bank, sigmas(history())) as loans:
        assert loans.take(card.id) is None
    assert [r.message for r in caplog.records] == [
        f"Carnator: the remembered render {entry_id} cannot be read (the entry is gone); the model computes instead."]


@pytest.mark.parametrize("file", ["entry.json", "render.safetensors"])
def test_a_damaged_entry_is_a_miss_and_put_aside_with_one_warning(bank: Bank, file: str, caplog: pytest.LogCaptureFixture) -> None:
    entry_id = bank.add(history())
    bank.entries()
    flip(bank, entry_id, file, -3 if file == "entry.json" else -40)
    with caplog.at_level(logging.WARNING), Loans(bank, sigmas(history())) as loans:
        assert loans.take(entry_id) is None
    assert len(caplog.records) == 1 and "was put aside" in caplog.records[0].message
    assert bank.entries() == []


def test_damage_found_on_the_way_is_told_and_put_aside(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    stored = history(calls=CALLS)
    entry_id = bank.add(stored)
    flip(bank, entry_id)
    with caplog.at_level(logging.WARNING), Loans(bank, sigmas(stored)) as loans:
        loan = loans.take(entry_id)
        assert loan is not None and same(loan.past.at(1.0), stored.past.at(1.0))
        with pytest.raises(BankDamaged, match="was altered") as found:
            loan.past.at(float(stored.call_sigmas[-1]))
        loans.lost(found.value)
        assert loans.take(entry_id) is None
    assert bank.entries() == [] and [p.name for p in (bank.folder / "quarantine").iterdir()] == [entry_id]
    assert "was put aside" in caplog.records[0].message


def test_files_that_vanish_while_they_are_read(bank: Bank) -> None:
    stored = history(calls=CALLS)
    entry_id = bank.add(stored)
    with Loans(bank, sigmas(stored)) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        bank.remove(entry_id)
        assert same(loan.past.at(0.05), stored.past.at(0.05)), "open files stay readable"
    with Loans(bank, sigmas(stored)) as loans:
        loans.begin(entry_id)
        assert loans.take(entry_id) is None
    with pytest.raises(BankMissing):
        bank.load(entry_id)


def test_no_bank_lends_nothing() -> None:
    with Loans(None, [1.0, 0.0]) as loans:
        loans.begin("0" * 24)
        assert loans.take("0" * 24) is None and loans.waited == 0


def test_recall_among_the_renders_of_one_noise(bank: Bank) -> None:
    mine, other = history(0).noise, history(1).noise
    a, b, c = bank.add(history(2, noise=mine)), bank.add(history(3, noise=other)), bank.add(history(4, noise=mine))
    digest = {card.id: card.noise_digest for card in bank.entries()}
    assert digest[a] == digest[c] != digest[b]
    identity = history().identity.digest()
    assert {card.id for card, _ in bank.nearest(history(3).text_vector, identity, 10, digest[a])} == {a, c}
    assert [card.id for card, _ in bank.nearest(history(3).text_vector, identity, 1)] == [b]
    assert bank.nearest(history(3).text_vector, identity, 10, "0" * 64) == []
    assert bank.identities() == [history().identity]
    bank.add(history(5, identity=Identity({"model": "another"})))
    assert set(map(Identity.digest, bank.identities())) == {identity, Identity({"model": "another"}).digest()}


def test_exact_repeats_are_found_by_their_key(bank: Bank) -> None:
    facts = {"conditioning": "c", "sampler": "euler", "schedule": "s", "seconds": 1.0}
    stored = [bank.add(history(0, facts={**facts, "sampler": s})) for s in ("euler", "heun")]
    (card,) = [c for c in bank.entries() if c.id == stored[0]]
    key = repeat_key(card.identity.digest(), card.noise_digest, facts)
    assert [c.id for c in bank.repeats(key)] == [stored[0]]
    again = bank.add(history(0, facts={**facts, "created": 1e11}))
    assert [c.id for c in bank.repeats(key)] == [again, stored[0]]
    assert bank.repeats(repeat_key(card.identity.digest(), card.noise_digest, {**facts, "schedule": "t"})) == []


def test_a_history_in_memory_serves_alike() -> None:
    stored = history(calls=4)
    assert isinstance(stored.past, Past) and stored.stack == 1 and stored.past.predictions[2].shape == (1, *stored.noise.shape)
    stored.uncond = -stored.denoised
    assert stored.stack == 2 and same(stored.past.predictions[2][1], -stored.denoised[2])


def test_what_lies_ready_is_not_page_locked(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch rounds such memory up and keeps it for the process, also where ComfyUI was told not to pin any."""
    pinned: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self, *_: pinned.append(self.numel()) or self)
    stored = history(calls=CALLS)
    entry_id = bank.add(stored)
    with Loans(bank, sigmas(stored)) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        assert all(same(loan.past.predictions[i][0], stored.denoised[i]) for i in range(CALLS))
    assert pinned == []
