"""Banks that cannot agree: no locks, a lock that somebody keeps, and folders in which nothing can be moved."""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankDamaged, BankRefusal, BankUnreadable, index
from carnator.carnator_core.bank import format as entry_format
from carnator.carnator_core.bank.index import LEASE_S
from carnator.carnator_core.bank.shelf import FORGOTTEN


def refuse(code: int) -> Callable[..., None]:
    """A way to open an index that always fails with this result code."""
    def refused(*_: object) -> None:
        error = sqlite3.OperationalError("refused")
        error.sqlite_errorcode = code
        raise error

    return refused


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose locks SQLite finds taken, whatever the file: what a network folder without locks looks like."""
    monkeypatch.setattr(index, "_connect", refuse(sqlite3.SQLITE_BUSY))


@contextmanager
def locked(bank: Bank) -> Iterator[None]:
    """Somebody else holds the write lock of the bank's index."""
    with closing(sqlite3.connect(bank.folder / index.FILE, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        yield


def opened(folder: Path) -> Bank:
    return Bank.open(folder, reserve_bytes=0)


def ids(bank: Bank) -> list[str]:
    return [card.id for card in bank.entries()]


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_write_in_flight_is_nobody_elses_to_sweep(tmp_path: Path, in_memory: bool, monkeypatch: pytest.MonkeyPatch,
                                                    request: pytest.FixtureRequest) -> None:
    if in_memory:
        request.getfixturevalue("no_locks")
    bank, plain = opened(tmp_path), entry_format.write_entry
    first = bank.add(history())

    def then_others_look(staged: Path, contents: entry_format.Contents) -> entry_format.Header:
        (tmp_path / "entries").touch()
        assert ids(opened(tmp_path)) == [first] and staged.is_dir()
        header = plain(staged, contents)
        (tmp_path / "entries").touch()
        assert ids(opened(tmp_path)) == [first]
        return header

    monkeypatch.setattr(entry_format, "write_entry", then_others_look)
    second = bank.add(history(1))
    assert sorted(ids(opened(tmp_path))) == sorted([first, second])
    assert same(opened(tmp_path).load(second).denoised, history(1).denoised)


@pytest.mark.parametrize("in_memory", [True, False])
def test_what_an_index_does_not_know_of_is_swept_by_its_age(tmp_path: Path, in_memory: bool,
                                                            request: pytest.FixtureRequest) -> None:
    """With an index of its own in memory, or after the index was deleted while somebody wrote."""
    if in_memory:
        request.getfixturevalue("no_locks")
    stored = opened(tmp_path).add(history())
    ages = {"new": 0.0, "written to of late": 2 * LEASE_S, "old": LEASE_S + 60}
    for token, age in ages.items():
        staged = tmp_path / "staging" / token
        staged.mkdir(parents=True)
        (staged / "steps.safetensors").write_bytes(b"...")
        for path in (staged / "steps.safetensors", staged):
            os.utime(path, (then := time.time() - age, then))
    os.utime(tmp_path / "staging" / "written to of late" / "steps.safetensors")
    (tmp_path / "trash" / "discarded").mkdir(parents=True)
    assert ids(opened(tmp_path)) == [stored]
    assert {p.name for p in (tmp_path / "staging").iterdir()} == {"new", "written to of late"}
    assert list((tmp_path / "trash").iterdir()) == []


def test_a_folder_without_locks_is_known_at_once(tmp_path: Path, no_locks: None, caplog: pytest.LogCaptureFixture) -> None:
    began = time.monotonic()
    with caplog.at_level(logging.WARNING, "carnator"):
        bank = opened(tmp_path)
        entry_id = bank.add(history())
        assert ids(bank) == [entry_id]
    assert sum("in memory" in m for m in caplog.messages) == 1
    assert time.monotonic() - began < index.BUSY_S / 2


def test_a_lock_that_somebody_keeps_is_no_reason_for_an_index_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                    caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(index, "BUSY_S", 0.4)
    entry_id = opened(tmp_path).add(history())
    fresh, running = opened(tmp_path), opened(tmp_path)
    assert ids(running) == [entry_id]
    with caplog.at_level(logging.WARNING, "carnator"), locked(fresh):
        for bank in (fresh, running):
            for look in (bank.entries, bank.identities, lambda b=bank: b.repeats("0" * 32),
                         lambda b=bank: b.nearest(history().text_vector, history().identity.digest())):
                with pytest.raises(BankUnreadable, match="^the bank cannot be read: another program keeps its index locked$"):
                    look()
            with pytest.raises(BankRefusal, match="could not be written: another program keeps its index locked"):
                bank.add(history(1))
    assert caplog.messages == [] and not [p for p in tmp_path.iterdir() if p.name.startswith(f"{index.FILE}-") and
                                          p.name not in (f"{index.FILE}-wal", f"{index.FILE}-shm")]
    assert ids(fresh) == ids(running) == [entry_id], "and the same bank works once the lock is free"
    second = fresh.add(history(1))
    assert ids(running) == [entry_id, second], "on one index"


def test_a_short_lock_is_waited_for(tmp_path: Path) -> None:
    entry_id = opened(tmp_path).add(history())
    bank, held, free = opened(tmp_path), threading.Event(), threading.Event()

    def hold() -> None:
        with locked(bank):
            held.set()
            free.wait(20)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    threading.Timer(3 * index.TRY_S, free.set).start()
    assert ids(bank) == [entry_id]
    holder.join()


def nothing_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may only be read, for root, too."""
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    for place, name in ((Path, "mkdir"), (Path, "touch"), (Path, "unlink"), (os, "rename")):
        monkeypatch.setattr(place, name, denied)
    monkeypatch.setattr(index, "_connect", refuse(sqlite3.SQLITE_READONLY))


def test_one_damaged_entry_does_not_empty_a_bank_that_may_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                       caplog: pytest.LogCaptureFixture) -> None:
    sound, cut, forgotten = (opened(tmp_path).add(history(i)) for i in range(3))
    render = tmp_path / "entries" / cut / entry_format.RENDER
    render.write_bytes(render.read_bytes()[:-1])
    (tmp_path / "entries" / forgotten / FORGOTTEN).touch()
    nothing_moves(monkeypatch)
    bank = opened(tmp_path)
    with caplog.at_level(logging.WARNING, "carnator"):
        for _ in range(2):
            assert ids(bank) == [sound]
            assert [c.id for c, _ in bank.nearest(history().text_vector, history().identity.digest())] == [sound]
            os.utime(tmp_path / "entries")
    (said,) = [m for m in caplog.messages if "damaged" in m]
    assert cut in said and "cut short" in said and said.endswith("cannot be put aside: [Errno 13] Permission denied")
    assert (tmp_path / "entries" / cut).is_dir(), "nothing of it is touched"


def test_an_entry_found_damaged_while_it_is_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, spoilt = (opened(tmp_path).add(history(i)) for i in range(2))
    steps = tmp_path / "entries" / spoilt / entry_format.STEPS
    steps.write_bytes(steps.read_bytes()[:-1])
    nothing_moves(monkeypatch)
    bank = opened(tmp_path)
    assert sorted(ids(bank)) == sorted([sound, spoilt]), "its small parts are sound"
    with pytest.raises(BankDamaged, match="cut short"):
        bank.load(spoilt)
    assert ids(bank) == [sound], "so the next run does not choose it again"
    os.utime(tmp_path / "entries")
    assert ids(bank) == [sound]


def test_housekeeping_that_fails_hides_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored, plain = opened(tmp_path).add(history()), os.scandir

    def denied(path: Path) -> object:
        if Path(path).name == "staging":
            raise PermissionError(13, "Permission denied")
        return plain(path)

    monkeypatch.setattr(os, "scandir", denied)
    assert ids(opened(tmp_path)) == [stored]


def test_an_index_that_breaks_under_a_lookup_is_built_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = opened(tmp_path)
    stored = bank.add(history())
    assert ids(bank) == [stored]
    plain, broken = index.Index.lives, iter([sqlite3.SQLITE_CORRUPT])

    def once(self: index.Index, *args: object, **named: object) -> object:
        for code in broken:
            refuse(code)()
        return plain(self, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(index.Index, "lives", once)
    assert ids(bank) == [stored], "not an empty bank for one lookup"


def test_the_bank_of_a_folder_that_fails_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = opened(tmp_path)
    bank.add(history())

    def gone(path: object) -> object:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "scandir", gone)
    os.utime(tmp_path / "entries", (1.0, 1.0))
    with pytest.raises(BankUnreadable, match="^the bank cannot be read: Stale file handle$"):
        bank.entries()
