"""Two processes on one bank, killed with SIGKILL at random moments of a store, over and over.

python bank_kill.py FOLDER ROUNDS SEED prints one JSON object: how many stores were published and how many histories
of those that were are missing, torn or altered afterwards. Started by test_bank_kill.py and by the benchmark; POSIX.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import conftest  # noqa: F401 - makes the pack importable as `carnator`
import torch
from bank_world import history, same
from carnator.carnator_core.bank import Bank, BankDamaged, BankMissing, BankRefusal

CALLS = 3


def write(folder: Path, seed: int, tell: Callable[[str], None]) -> None:
    """Store and read until killed."""
    bank = Bank.open(folder, reserve_bytes=0)
    chance = random.Random(seed)
    while True:
        number = chance.randrange(1 << 30)
        tell("begin")
        try:
            tell(f"stored {bank.add(history(number, calls=CALLS))} {number}")
        except BankRefusal as error:
            tell(f"wrong: {error}")
        look(bank, chance, tell)


def look(bank: Bank, chance: random.Random, tell: Callable[[str], None]) -> None:
    """Read one entry and note a hit."""
    cards = bank.entries()
    for card in chance.sample(cards, min(1, len(cards))):
        problem = check(bank, card.id, int(card.facts["seed"]))
        if problem:
            tell(f"wrong: {problem}")
        bank.touch(card.id, 1.0)


def check(bank: Bank, entry_id: str, number: int) -> str:
    """What is wrong with an entry, "" for nothing; one that is gone is not wrong for a reader."""
    try:
        found = bank.load(entry_id)
    except BankMissing:
        return ""
    except BankDamaged as error:
        return f"{entry_id} is damaged: {error}"
    return "" if same(found.denoised, history(number, calls=CALLS).denoised) else f"{entry_id} holds other values"


def start(work: Callable[[Callable[[str], None]], None]) -> tuple[int, int]:
    """Fork a process; returns its id and the end of the pipe on which it tells."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        return child, out
    os.close(out)
    try:
        work(lambda line: os.write(into, f"{line}\n".encode()) and None)
    finally:
        os._exit(1)


def end(child: int, out: int) -> list[str]:
    """Kill a process and return the whole lines it told."""
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(out, "rb") as pipe:
        return pipe.read().decode().split("\n")[:-1]


def store_seconds(folder: Path, seed: int) -> float:
    """What one store takes here and now: the last of three."""
    bank = Bank.open(folder, reserve_bytes=0)
    for number in range(3):
        began = time.monotonic()
        bank.remove(bank.add(history(seed + number, calls=CALLS)))
    bank.close()
    return time.monotonic() - began


def run(folder: Path, rounds: int, seed: int) -> dict[str, object]:
    """Kill one of two writers `rounds` times, at moments spread over a store; then count what is left."""
    chance = random.Random(seed)
    lines: list[str] = []
    usual = store_seconds(folder, seed)
    other = start(lambda tell: write(folder, seed, tell))
    killed_inside = 0
    for number in range(rounds):
        if number % 10 == 9:
            lines += end(*other)
            other = start(lambda tell, n=number: write(folder, seed + 1000 + n, tell))
        child, out = start(lambda tell, n=number: write(folder, seed + 2000 + n, tell))
        first = os.read(out, 6)  # "begin\n": the store has begun
        time.sleep(chance.random() * 1.5 * usual)
        told = [*first.decode().split(), *end(child, out)]
        killed_inside += told[-1] == "begin"
        lines += told
    lines += end(*other)
    stored = [line.split()[1:] for line in lines if line.startswith("stored")]
    wrong = [line for line in lines if line.startswith("wrong")]
    later = time.time() + 24 * 3600
    bank = Bank.open(folder, reserve_bytes=0, clock=lambda: later)
    (folder / "entries").touch()
    here = {card.id: int(card.facts["seed"]) for card in bank.entries()}
    lost = [entry_id for entry_id, _ in stored if entry_id not in here]
    torn = [problem for entry_id, number in here.items() if (problem := check(bank, entry_id, number))]
    left = [str(p) for sub in ("staging", "trash", "quarantine") for p in (folder / sub).glob("*")]
    return {
        "rounds": rounds,
        "killed_while_storing": killed_inside,
        "published": len(stored),
        "here": len(here),
        "lost": lost,
        "torn": torn,
        "wrong": wrong,
        "left": left,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(run(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
