"""Odd places and odd times for a bank: what it does there, instead of failing a render or losing an entry."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankForeign, BankMissing, BankRefusal, BankUnreadable, Loans, exchange
from carnator.carnator_core.bank.reading import Reading
from carnator.carnator_core.bank.strictjson import dumps

SIGMAS = [float(s) for s in history().sigmas]


@pytest.fixture
def common() -> Iterator[Path]:
    """A folder that another user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_somebody_else(check: Callable[[], None]) -> None:
    """Run `check` in a process without this user's rights. Raises AssertionError with its traceback when it fails."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read)
            torch.set_num_threads(1)  # OpenMP's pool of threads does not survive a fork: with more than one, torch waits forever
            os.setgid(65534)
            os.setuid(65534)
            check()
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        found = answer.read().decode()
    os.waitpid(child, 0)
    assert not found, found


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody without rights")
def test_a_folder_that_may_only_be_read_serves_and_refuses(common: Path) -> None:
    entry_id = Bank.open(common / "bank", reserve_bytes=0).add(history())
    for path in [common / "bank", *(common / "bank").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)

    def check() -> None:
        bank = Bank.open(common / "bank", reserve_bytes=0)
        assert [c.id for c in bank.entries()] == [entry_id]
        assert [c.id for c, _ in bank.nearest(history().text_vector, history().identity.digest())] == [entry_id]
        with Loans(bank, SIGMAS) as loans:
            loan = loans.take(entry_id)
            assert loan is not None and same(loan.past.at(0.4), history().past.at(0.4))
        bank.touch(entry_id, 3.0)  # a warning
        with pytest.raises(BankRefusal, match="could not be written"):
            bank.add(history(1))
        with pytest.raises(OSError, match="denied"):
            bank.remove(entry_id)
        assert [c.id for c in bank.entries()] == [entry_id]

    as_somebody_else(check)
    assert same(Bank.open(common / "bank").load(entry_id).denoised, history().denoised), "and nothing was spoilt"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody without rights")
def test_a_bank_is_private_to_its_user(common: Path, caplog: pytest.LogCaptureFixture) -> None:
    Bank.open(common / "bank", reserve_bytes=0).add(history())

    def check() -> None:
        bank = Bank.open(common / "bank", reserve_bytes=0)
        with pytest.raises(BankUnreadable, match="denied"):
            bank.entries()
        with pytest.raises(BankRefusal):
            bank.add(history(1))

    as_somebody_else(check)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become somebody without rights")
def test_what_is_wrong_with_some_entries_of_a_folder_that_may_only_be_read_hides_no_other(common: Path) -> None:
    sound, cut, private = (Bank.open(common / "bank", reserve_bytes=0).add(history(i)) for i in range(3))
    for path in [common / "bank", *(common / "bank").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    render = common / "bank" / "entries" / cut / "render.safetensors"
    render.write_bytes(render.read_bytes()[:-1])
    (common / "bank" / "entries" / private).chmod(0o700)
    (common / "bank" / "staging").chmod(0o700)

    def check() -> None:
        bank = Bank.open(common / "bank", reserve_bytes=0)
        for _ in range(2):
            assert [c.id for c in bank.entries()] == [sound]
            assert [c.id for c, _ in bank.nearest(history().text_vector, history().identity.digest())] == [sound]
        assert same(bank.load(sound).denoised, history().denoised)

    as_somebody_else(check)
    assert (common / "bank" / "entries" / cut).is_dir() and not (common / "bank" / "quarantine").exists()


def test_a_file_in_the_place_of_the_bank(tmp_path: Path) -> None:
    (tmp_path / "bank").write_text("mine")
    bank = Bank.open(tmp_path / "bank", reserve_bytes=0)
    with pytest.raises(BankUnreadable, match="^the bank cannot be read: something else lies in the place of its folder$"):
        bank.nearest(history().text_vector, history().identity.digest())
    assert bank.total_bytes() == 0
    with Loans(bank, SIGMAS) as loans:
        assert loans.take("0" * 24) is None
    with pytest.raises(BankRefusal, match="could not be written"):
        bank.add(history())
    assert (tmp_path / "bank").read_text() == "mine"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.ETIMEDOUT])
def test_a_network_folder_that_goes_away_while_an_entry_is_read(tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch,
                                                                caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    entry_id = bank.add(history())
    with caplog.at_level(logging.WARNING), Loans(bank, SIGMAS) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        assert same(loan.past.at(0.4), history().past.at(0.4))

    class Gone(io.BytesIO):
        def readinto(self, buffer: object) -> int:
            raise OSError(number, os.strerror(number))

    opened = Reading._file

    def then_gone(self: Reading, *args: object) -> object:
        file = opened(self, *args)  # type: ignore[arg-type]
        if args[1] == "steps.safetensors":
            file._file.close()
            file._file = Gone()
        return file

    monkeypatch.setattr(Reading, "_file", then_gone)
    with caplog.at_level(logging.WARNING), Loans(bank, SIGMAS) as loans:
        loan = loans.take(entry_id)
        assert loan is not None
        with pytest.raises(BankMissing, match="cannot be read") as found:
            loan.past.at(0.4)
        loans.lost(found.value)
    assert len(caplog.messages) == 1 and os.strerror(number) in caplog.messages[0]
    assert [c.id for c in bank.entries()] == [entry_id], "what cannot be read now is not put aside"


@pytest.mark.parametrize("locale", [{}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}])
def test_a_path_with_an_emoji_in_two_processes(tmp_path: Path, locale: dict[str, str]) -> None:
    folder = tmp_path / "b\N{FOX FACE}nk \u7ea2 \u00e9"
    mine = history(0, prompt="\N{FOX FACE} \u7ea2")
    entry_id = Bank.open(folder, reserve_bytes=0).add(mine)
    script = (
        "import sys, os; sys.path.insert(0, sys.argv[1]); import conftest; from pathlib import Path\n"
        "from bank_world import history, same; from carnator.carnator_core.bank import Bank\n"
        "bank = Bank.open(Path(os.fsdecode(os.fsencode(sys.argv[2]))), reserve_bytes=0)\n"
        "(card,) = bank.entries()\n"
        "assert ascii(card.prompt) == r\"'\\U0001f98a \\u7ea2'\", ascii(card.prompt)\n"
        "assert same(bank.load(card.id).denoised, history().denoised)\n"
        "bank.touch(card.id, 2.0)\n"
        "print(bank.add(history(1)))\n"
    )
    done = subprocess.run([sys.executable, "-P", "-c", script, str(Path(__file__).parent), str(folder)], capture_output=True,
                          text=True, timeout=120, env={**os.environ, **locale})  # fmt: skip
    assert done.returncode == 0, done.stderr
    cards = {c.id: c for c in Bank.open(folder, reserve_bytes=0).entries()}
    assert set(cards) == {entry_id, done.stdout.strip()} and cards[entry_id].hits == 1


def test_a_clock_that_goes_backwards(tmp_path: Path) -> None:
    now = [2_000_000_000.0]
    probe = Bank.open(tmp_path / "probe", reserve_bytes=0)
    probe.add(history())
    bank = Bank.open(tmp_path / "bank", budget_bytes=2 * probe.total_bytes() + 24_000, reserve_bytes=0, clock=lambda: now[0])
    first = bank.add(history(1))
    with bank._shelf.transaction() as index:  # a reader and a writer that died when the clock was ahead
        index.begin_read("r" * 24, first, now[0] + 900)
        index.begin_write("w" * 24, 10**9, now[0] + 900)
    now[0] -= 5 * 365 * 24 * 3600.0
    second, third = bank.add(history(2)), bank.add(history(3))
    assert len({first, second, third}) == 3
    bank.touch(second, 4.0)
    assert len(bank.entries()) == 2, "neither keeps the bank full for years"
    now[0] = 0.0
    assert bank.add(history(4)) in {c.id for c in bank.entries()}


def reseal(folder: Path, **changes: object) -> None:
    """Alter entry.json and make its checksum right again."""
    body = json.loads((folder / "entry.json").read_bytes())
    body.pop("checksum")
    body.update(changes)
    (folder / "entry.json").write_bytes(dumps({**body, "checksum": hashlib.sha256(dumps(body)).hexdigest()}))


@pytest.mark.parametrize("schema", [0, 2, 99])
def test_a_bank_of_another_version_is_left_alone(tmp_path: Path, schema: int, caplog: pytest.LogCaptureFixture) -> None:
    bank = Bank.open(tmp_path, reserve_bytes=0)
    old = [bank.add(history(i)) for i in range(6)]
    bank.close()
    (tmp_path / "index.sqlite").unlink()
    for entry_id in old:
        reseal(tmp_path / "entries" / entry_id, schema=schema, something_new=1)
    bank = Bank.open(tmp_path, reserve_bytes=0)
    with caplog.at_level(logging.WARNING):
        assert bank.entries() == []
        new = bank.add(history(7))
        assert [c.id for c in bank.entries()] == [new]
    assert len(caplog.messages) == 1 and f"version {schema}" in caplog.messages[0]
    assert all((tmp_path / "entries" / i / "steps.safetensors").exists() for i in old), "nothing of it is lost"
    with pytest.raises(BankForeign):
        bank.load(old[0])
    with Loans(bank, SIGMAS) as loans:
        assert loans.take(old[0]) is None
    for entry_id in old[:3]:  # and the other version finds it as it was
        reseal(tmp_path / "entries" / entry_id, schema=1)
        body = json.loads((tmp_path / "entries" / entry_id / "entry.json").read_bytes())
        del body["something_new"], body["checksum"]
        (tmp_path / "entries" / entry_id / "entry.json").write_bytes(
            dumps({**body, "checksum": hashlib.sha256(dumps(body)).hexdigest()}))
    assert {c.id for c in Bank.open(tmp_path, reserve_bytes=0).entries()} == {new, *old[:3]}
    Bank.open(tmp_path, reserve_bytes=0).clear()
    assert list((tmp_path / "entries").iterdir()) == [], "forgetting all means all"


def listing(entry: object, files: object) -> bytes:
    text = json.dumps({"entry": entry, "files": files}).encode()
    return exchange.MAGIC + len(text).to_bytes(8, "little") + text


A = "a" * 24
HOSTILE = {
    "empty": b"",
    "another kind": b"PK\x03\x04" + b"\0" * 100,
    "another version": b"CARNATOR BANK 2\n",
    "a length of 2^63": exchange.MAGIC + b"\xff" * 8,
    "a listing that ends early": exchange.MAGIC + (100).to_bytes(8, "little") + b"{}",
    "a JSON bomb": exchange.MAGIC + (4096).to_bytes(8, "little") + b"[" * 4096,
    "a path for an id": listing("../../../../etc/cron.d/x", []),
    "a path for a name": listing(A, [["../../x", 3]]) + b"abc",
    "an absolute name": listing(A, [["/etc/passwd", 3]]) + b"abc",
    "a name twice": listing(A, [["entry.json", 3], ["entry.json", 3]]) + b"abcabc",
    "a name of life": listing(A, [["life.json", 3]]) + b"abc",
    "negative bytes": listing(A, [["entry.json", -3]]),
    "2^62 bytes": listing(A, [["steps.safetensors", 1 << 62]]),
    "a header of 3 GB": listing(A, [["entry.json", 3 << 30]]),
    "true bytes": listing(A, [["entry.json", True]]) + b"a",
    "files that are none": listing(A, 3),
    "no files": listing(A, []),
    "files that do not come": listing(A, [["entry.json", 300]]),
    "nonsense": listing(A, [["entry.json", 3], ["steps.safetensors", 1]]) + b"abcd",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_an_import_of_a_hostile_file_takes_nothing_in(tmp_path: Path, name: str) -> None:
    bank = Bank.open(tmp_path / "bank", budget_bytes=10**12, reserve_bytes=0)
    mine = bank.add(history())
    with pytest.raises(BankRefusal):
        bank.import_from(io.BytesIO(HOSTILE[name]))
    assert [c.id for c in bank.entries()] == [mine]
    assert {p.name for p in tmp_path.iterdir()} == {"bank"}
    assert list((tmp_path / "bank" / "staging").iterdir()) == []


def test_what_an_export_cannot_read_it_leaves_out(tmp_path: Path) -> None:
    bank = Bank.open(tmp_path / "bank", reserve_bytes=0)
    sound, spoilt = bank.add(history(0)), bank.add(history(1))
    (bank.folder / "entries" / spoilt / "steps.safetensors").write_bytes(b"x" * 40)
    out = io.BytesIO()
    assert bank.export_to(out) == 1
    out.seek(0)
    assert Bank.open(tmp_path / "other", reserve_bytes=0).import_from(out) == [sound]
