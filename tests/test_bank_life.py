"""Budget, eviction, disk reserve, several users of one folder, and moving entries between banks."""

from __future__ import annotations

import io
import logging
import os
import shutil
import sqlite3
import threading
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankDamaged, BankMissing, BankRefusal
from carnator.carnator_core.bank.format import prepare
from carnator.carnator_core.bank.nearest import Nearest
from carnator.carnator_core.bank.worth import RECENT_S, Life, victims, worth
from carnator.carnator_core.history import Identity

DAY = 24 * 3600.0


class Clock:
    """Seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def entry_bytes(folder: Path) -> int:
    """What one of the test's histories takes, with the room for headers that a write sets aside."""
    bank = Bank.open(folder, reserve_bytes=0)
    bank.add(history())
    size = bank.total_bytes()
    shutil.rmtree(folder)
    return size


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def small(tmp_path: Path, clock: Clock) -> Bank:
    """A bank with room for three histories and a fourth in flight."""
    size = entry_bytes(tmp_path / "probe")
    return Bank.open(tmp_path / "bank", budget_bytes=3 * size + 24_000, reserve_bytes=0, clock=clock)


def add(bank: Bank, clock: Clock, seed: int) -> str:
    clock.now += 60
    return bank.add(history(seed, facts={"seconds": 10.0}))


def ids(bank: Bank) -> list[str]:
    return [card.id for card in bank.entries()]


def test_the_least_useful_entry_leaves(small: Bank, clock: Clock) -> None:
    first, second, third = (add(small, clock, i) for i in range(3))
    small.touch(first, 6.0)
    small.touch(third, 6.0)
    fourth = add(small, clock, 3)
    assert ids(small) == [first, third, fourth]
    assert small.total_bytes() <= (small.budget_bytes or 0)


def test_hits_long_ago_count_less(small: Bank, clock: Clock) -> None:
    first, second, third = (add(small, clock, i) for i in range(3))
    small.touch(first, 6.0)
    clock.now += 60 * DAY
    small.touch(second, 1.0)
    small.touch(third, 1.0)
    add(small, clock, 3)
    assert first not in ids(small)


def test_pinned_entries_stay_and_may_fill_the_bank(small: Bank, clock: Clock) -> None:
    pinned = [add(small, clock, i) for i in range(3)]
    for entry_id in pinned:
        small.pin(entry_id)
    with pytest.raises(BankRefusal, match="no room"):
        add(small, clock, 3)
    assert ids(small) == pinned
    small.pin(pinned[1], False)
    assert ids(small) != [*ids(small)[:-1], add(small, clock, 4)]
    assert pinned[1] not in ids(small)


def test_what_is_being_read_is_not_evicted(small: Bank, clock: Clock) -> None:
    first, *_ = (add(small, clock, i) for i in range(3))
    with small.reading(first) as reading:
        other = Bank.open(small.folder, small.budget_bytes, 0, clock=clock)
        add(other, clock, 3)
        assert first in ids(small)
        assert same(reading.denoised(2), history(0).denoised[2])
    add(small, clock, 4)
    assert first not in ids(small)


def test_a_reader_that_died_is_forgotten(small: Bank, clock: Clock) -> None:
    first, *_ = (add(small, clock, i) for i in range(3))
    context = small.reading(first)
    context.__enter__()
    clock.now += DAY
    other = Bank.open(small.folder, small.budget_bytes, 0, clock=clock)
    add(other, clock, 3)
    assert first not in ids(other)
    context.__exit__(None, None, None)


def test_larger_than_the_budget(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path / "bank", budget_bytes=1000, reserve_bytes=0)
    with pytest.raises(BankRefusal, match=r"needs .* MB"):
        bank.add(history())
    assert bank.entries() == []


def test_writes_in_flight_count(small: Bank, clock: Clock) -> None:
    first, second = (add(small, clock, i) for i in range(2))
    for entry_id in (first, second):
        small.pin(entry_id)
    with small._shelf.transaction() as index:
        index.begin_write("another process", 20_000, clock.now + 60)
        staged = small._shelf.stage("another process")
        os.utime(staged, (clock.now, clock.now))
    with pytest.raises(BankRefusal, match="no room"):
        add(small, clock, 2)
    clock.now += DAY
    add(small, clock, 3)
    (small.folder / "entries").touch()
    assert len(ids(small)) == 3
    assert list((small.folder / "staging").iterdir()) == [], "what the dead writer left is swept"


def test_free_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=1 << 30)
    first = bank.add(history(0))
    usage = namedtuple("usage", "total used free")
    little = prepare(history(1), "auto", 0.0).bytes() - 5_000
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 0, (1 << 30) + little))
    second = bank.add(history(1))
    assert ids(bank) == [second], "one left so that the next fits"
    assert first != second
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 40, 0, 1 << 20))
    with pytest.raises(BankRefusal, match="no room"):
        bank.add(history(2))
    assert ids(bank) == [second]


def test_worth_in_numbers() -> None:
    fresh = Life(used_at=0.0)
    assert worth(fresh, 10.0, 1000, 0.0) == pytest.approx(5.0 / 1000)
    assert worth(fresh, 10.0, 1000, RECENT_S) == pytest.approx(2.5 / 1000)
    used = fresh.used(RECENT_S, 8.0)
    assert used == Life(used_at=RECENT_S, hits=1, seconds_saved=8.0)
    assert worth(used, 10.0, 1000, RECENT_S) == pytest.approx((8 + 5) / 2 / 1000)
    assert worth(used, 10.0, 1000, 0.0) == worth(used, 10.0, 1000, RECENT_S), "a clock set back changes nothing"
    assert fresh.used(0.0, float("nan")).seconds_saved == 0.0
    assert Life.from_json(used.to_json()) == used


def test_victims() -> None:
    entries = [("a", 3.0, 10), ("b", 1.0, 10), ("c", 2.0, 10)]
    assert victims(entries, 0) == []
    assert victims(entries, 10) == ["b"]
    assert victims(entries, 11) == ["b", "c"]
    assert victims(entries, 31) is None


def test_two_banks_on_one_folder_see_each_other(tmp_path: Path) -> None:
    one, other = (Bank.open(tmp_path, reserve_bytes=0) for _ in range(2))
    first = one.add(history(0))
    assert ids(other) == [first]
    second = other.add(history(1))
    one.touch(second, 2.0)
    other.pin(first)
    assert [(c.id, c.hits, c.pinned) for c in one.entries()] == [(first, 0, True), (second, 1, False)]
    one.remove(first)
    assert ids(other) == [second]
    with pytest.raises(BankMissing):
        other.load(first)


def test_threads_share_a_bank(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            entry_id = bank.add(history(number))
            assert same(bank.load(entry_id).noise, history(number).noise)
            bank.touch(entry_id, 1.0)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [c.hits for c in bank.entries()] == [1] * 6


def spoil(folder: Path, how: str) -> None:
    index = folder / "index.sqlite"
    if how == "deleted":
        index.unlink()
    elif how == "garbage":
        index.write_bytes(b"<html>not found</html>" * 300)
    elif how == "empty":
        index.write_bytes(b"")
    elif how == "cut":
        index.write_bytes(index.read_bytes()[:5000])
    else:
        with sqlite3.connect(index) as db:
            db.execute("PRAGMA user_version=99" if how == "another version" else "DROP TABLE entries")
        db.close()


@pytest.mark.parametrize("how", ["deleted", "garbage", "empty", "cut", "another version", "table"])
@pytest.mark.parametrize("running", [False, True])
def test_a_spoilt_index_is_rebuilt(tmp_path: Path, how: str, running: bool) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    stored = [bank.add(history(i)) for i in range(3)]
    bank.touch(stored[1], 2.0)
    if not running or how != "deleted":
        bank.close()
    spoil(tmp_path, how)
    if not running:
        bank = Bank.open(tmp_path, reserve_bytes=0)
    assert ids(bank) == stored
    assert [c.hits for c in bank.entries()] == [0, 1, 0]
    assert same(bank.load(stored[2]).denoised, history(2).denoised)


def test_an_altered_row_is_read_again(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    entry_id = bank.add(history())
    bank.close()
    with sqlite3.connect(tmp_path / "index.sqlite") as db:
        db.execute("UPDATE entries SET card = replace(card, 'fox', 'dog')")
    db.close()
    (card,) = Bank.open(tmp_path, reserve_bytes=0).entries()
    assert (card.id, card.prompt) == (entry_id, history().prompt)


def test_no_place_for_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    entry_id = Bank.open(tmp_path, reserve_bytes=0).add(history())

    def read_only(*_: object) -> None:
        error = sqlite3.OperationalError("attempt to write a readonly database")
        error.sqlite_errorcode = sqlite3.SQLITE_READONLY
        raise error

    monkeypatch.setattr("carnator.carnator_core.bank.index._connect", read_only)
    bank = Bank.open(tmp_path, reserve_bytes=0)
    with caplog.at_level(logging.WARNING, "carnator"):
        assert ids(bank) == [entry_id]
        assert same(bank.load(entry_id).noise, history().noise)
    assert [m for m in caplog.messages if "in memory" in m] == caplog.messages[:1]


def test_a_folder_without_a_row_and_a_row_without_a_folder(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    first, second = bank.add(history(0)), bank.add(history(1))
    shutil.copytree(tmp_path / "entries" / first, tmp_path / "entries" / ("a" * 24))
    shutil.rmtree(tmp_path / "entries" / second)
    (tmp_path / "entries" / "notes.txt").write_text("a stranger")
    assert sorted(ids(bank)) == sorted([first, "a" * 24])
    assert (tmp_path / "entries" / "notes.txt").exists()


def test_the_quarantine_keeps_the_last_few(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    for entry_id in [bank.add(history(i)) for i in range(6)]:
        (tmp_path / "entries" / entry_id / "entry.json").write_bytes(b"{}")
        with pytest.raises(BankDamaged, match="header"):
            bank.load(entry_id)
    assert len(list((tmp_path / "quarantine").iterdir())) == 4
    bank.clear()
    assert not (tmp_path / "quarantine").exists()


def test_export_and_import(tmp_path: Path) -> None:
    source, target = (Bank.open(tmp_path / n, reserve_bytes=0) for n in ("source", "target"))
    stored = [source.add(history(i)) for i in range(3)]
    source.pin(stored[0])
    file = io.BytesIO()
    assert source.export_to(file) == 3
    file.seek(0)
    assert target.import_from(file) == stored
    for i, entry_id in enumerate(stored):
        assert same(target.load(entry_id).denoised, history(i).denoised)
    assert [(c.hits, c.pinned) for c in target.entries()] == [(0, False)] * 3
    file.seek(0)
    assert target.import_from(file) == [], "all are here already"
    one = io.BytesIO()
    assert source.export_to(one, [stored[1], "0" * 24]) == 1


def test_import_refuses_what_is_not_sound(tmp_path: Path) -> None:
    source = Bank.open(tmp_path / "source", reserve_bytes=0)
    source.add(history(0))
    source.add(history(1))
    file = io.BytesIO()
    source.export_to(file)
    data = file.getvalue()
    cuts = [0, 7, 15, 16, 20, 24, 100, len(data) // 2, len(data) - 1]
    flips = range(20, len(data) // 2, len(data) // 24)
    broken = [data[:n] for n in cuts] + [data[:n] + bytes([data[n] ^ 8]) + data[n + 1 :] for n in flips]
    target = Bank.open(tmp_path / "target", reserve_bytes=0)
    for number, content in enumerate(broken):
        try:
            taken = target.import_from(io.BytesIO(content))
        except BankRefusal:
            taken = []
        assert taken == [] or number == 3, number
        target.clear()
    assert not list((tmp_path / "target" / "staging").iterdir())
    for listing in (b'{"entry":"../x","files":[]}', b'{"entry":"' + b"0" * 24 + b'","files":[["../../x",3]]}',
                    b'{"entry":"' + b"0" * 24 + b'","files":[["entry.json",99999999999]]}'):  # fmt: skip
        with pytest.raises(BankRefusal, match="malformed"):
            target.import_from(io.BytesIO(data[:16] + len(listing).to_bytes(8, "little") + listing))


def test_nearest_entries_in_order(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    identity = history().identity.digest()
    assert bank.nearest(history().text_vector, identity) == []
    stored = [bank.add(history(i)) for i in range(5)]
    bank.add(history(2, identity=Identity({"model": "another"})))
    bank.add(history(6, text_vector=torch.ones(7)))
    query = history(2).text_vector
    found = bank.nearest(query, identity, k=3)
    exact = sorted(((float(history(i).text_vector @ query), stored[i]) for i in range(5)), reverse=True)[:3]
    assert [(card.id, pytest.approx(value, abs=1e-3)) for card, value in found] == [(i, v) for v, i in exact]
    bank.remove(stored[2])
    again = bank.nearest(query, identity, k=3)
    assert stored[2] not in [card.id for card, _ in again]
    assert len(again) == 3
    bank.touch(stored[0], 2.0)
    assert sum(card.hits for card, _ in bank.nearest(query, identity, k=9)) == 1


def test_nearest_among_many() -> None:
    made = torch.Generator().manual_seed(2)
    parts = torch.randn(40, 64, generator=made)
    vectors = torch.nn.functional.normalize(torch.randn(3000, 40, generator=made) @ parts, dim=1)
    near = Nearest(64)
    ids = [f"{i:024x}" for i in range(3000)]
    near.update(ids[:2500], dict(zip(ids, vectors, strict=True)))
    near.top(vectors[0], 10)
    near.update(ids[500:], dict(zip(ids, vectors, strict=True)))
    for query in vectors[::500]:
        exact = (vectors[500:] @ query).topk(10)
        found = near.top(query, 10)
        assert [value for _, value in found] == pytest.approx(exact.values.tolist(), abs=2e-3)
        assert found[0][0] == ids[500 + int(exact.indices[0])]
