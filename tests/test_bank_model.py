"""Any sequence of what users of a bank do, against a plain dictionary: two banks on one folder always agree with it."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankDamaged, BankMissing, BankRefusal
from carnator.carnator_core.history import Identity
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

SHAPE = (2, 1, 3, 2)


@dataclass
class Expected:
    """What the model knows of an entry."""

    seed: int
    identity: Identity
    size: int
    hits: list[float] = field(default_factory=list)
    pinned: bool = False


class BankMachine(RuleBasedStateMachine):
    """The rules. Time passes by a second with every store, so that the order of entries is known."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.now = 1_700_000_000.0
        self.model: dict[str, Expected] = {}
        self.gone = ["0" * 24]
        self.syncing = mock.patch.object(os, "fsync", lambda _: None)
        self.syncing.start()

    @initialize(room=st.sampled_from([None, 2, 4]))
    def open(self, room: int | None) -> None:
        probe = Bank.open(self.folder / "probe", reserve_bytes=0)
        probe.add(self.made(0, 0))
        self.budget = None if room is None else room * probe.total_bytes() + 24_000
        self.banks = [self.reopened(), self.reopened()]

    def reopened(self) -> Bank:
        return Bank.open(self.folder / "bank", self.budget, 0, clock=lambda: self.now)

    @staticmethod
    def made(seed: int, model: int):  # type: ignore[no-untyped-def]
        identity = Identity({"model": str(model)})
        return history(seed, SHAPE, calls=2, identity=identity, signature=None, thumbnail=None, connectivity={})

    def some(self, choice: int) -> str:
        """An entry of the bank, or (seldom, or when there is none) one that is gone."""
        here = sorted(self.model)
        return here[choice % len(here)] if here and choice else self.gone[-1]

    def left(self, entry_id: str) -> None:
        if self.model.pop(entry_id, None):
            self.gone.append(entry_id)

    @rule(bank=st.integers(0, 1), seed=st.integers(0, 99), model=st.integers(0, 1))
    def add(self, bank: int, seed: int, model: int) -> None:
        self.now += 1
        before = set(self.model)
        try:
            entry_id = self.banks[bank].add(self.made(seed, model))
        except BankRefusal:
            assert sum(e.pinned for e in self.model.values()) >= 2, "only pins can fill the bank"
            return
        here = {card.id: card for card in self.banks[bank].entries()}
        assert set(here) - before == {entry_id}
        for gone in before - set(here):
            assert not self.model[gone].pinned
            assert self.budget is not None
            self.left(gone)
        self.model[entry_id] = Expected(seed, Identity({"model": str(model)}), here[entry_id].bytes)

    @rule(bank=st.integers(0, 1), choice=st.integers(0, 9), seconds=st.floats(0, 100))
    def touch(self, bank: int, choice: int, seconds: float) -> None:
        entry_id = self.some(choice)
        self.banks[bank].touch(entry_id, seconds)
        if entry_id in self.model:
            self.model[entry_id].hits.append(seconds)

    @rule(bank=st.integers(0, 1), choice=st.integers(0, 9), pinned=st.booleans())
    def pin(self, bank: int, choice: int, pinned: bool) -> None:
        entry_id = self.some(choice)
        self.banks[bank].pin(entry_id, pinned)
        if entry_id in self.model:
            self.model[entry_id].pinned = pinned

    @rule(bank=st.integers(0, 1), choice=st.integers(0, 9))
    def remove(self, bank: int, choice: int) -> None:
        entry_id = self.some(choice)
        self.banks[bank].remove(entry_id)
        self.left(entry_id)

    @rule(bank=st.integers(0, 1), choice=st.integers(0, 9))
    def load(self, bank: int, choice: int) -> None:
        entry_id = self.some(choice)
        if entry_id in self.model:
            expected = self.model[entry_id]
            assert same(self.banks[bank].load(entry_id).denoised, self.made(expected.seed, 0).denoised)
        else:
            with pytest.raises(BankMissing):
                self.banks[bank].load(entry_id)

    @rule(bank=st.integers(0, 1), choice=st.integers(0, 9))
    def damage(self, bank: int, choice: int) -> None:
        entry_id = self.some(choice)
        if entry_id in self.model:
            (self.folder / "bank" / "entries" / entry_id / "steps.safetensors").write_bytes(b"gone")
            with pytest.raises(BankDamaged):
                self.banks[bank].load(entry_id)
            self.left(entry_id)

    @rule(bank=st.integers(0, 1), really=st.integers(0, 5))
    def clear(self, bank: int, really: int) -> None:
        if really == 5:
            self.banks[bank].clear()
            for entry_id in list(self.model):
                self.left(entry_id)

    @rule(bank=st.integers(0, 1))
    def reopen(self, bank: int) -> None:
        self.banks[bank].close()
        self.banks[bank] = self.reopened()

    @rule()
    def lose_the_index(self) -> None:
        (self.folder / "bank" / "index.sqlite").unlink(missing_ok=True)

    @rule()
    def foreign_folder(self) -> None:
        if (self.folder / "bank" / "entries").is_dir():
            (self.folder / "bank" / "entries" / "not an entry").mkdir(exist_ok=True)

    @invariant()
    def both_agree_with_the_model(self) -> None:
        for bank in getattr(self, "banks", ()):
            cards = {card.id: card for card in bank.entries()}
            assert cards.keys() == self.model.keys()
            for entry_id, expected in self.model.items():
                card = cards[entry_id]
                assert (card.identity, card.bytes, card.pinned) == (expected.identity, expected.size, expected.pinned)
                assert card.hits == len(expected.hits)
                assert card.seconds_saved == pytest.approx(sum(expected.hits))
            for model in ("0", "1"):
                identity = Identity({"model": model})
                wanted = [i for i in cards if self.model[i].identity == identity]
                assert [card.id for card in bank.entries(identity.digest())] == wanted
            assert bank.total_bytes() == sum(e.size for e in self.model.values())
            assert self.budget is None or bank.total_bytes() <= self.budget

    def teardown(self) -> None:
        self.syncing.stop()
        shutil.rmtree(self.folder)


TestBankMachine = BankMachine.TestCase
TestBankMachine.settings = settings(
    max_examples=20,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
