"""What the bank report says."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
from bank_world import history
from carnator.carnator_core import verdicts
from hosting import node
from test_verdicts import hit

pytest_plugins = ["hosting_fixtures"]
pytestmark = [pytest.mark.host, pytest.mark.usefixtures("comfy")]


def report(bank: Any) -> list[str]:
    made = node("CarnatorBankReport").execute(bank)
    (text,) = made.result
    (shown,) = made.ui["carnator_view"]
    assert made.ui["text"] == (text,) and shown["text"] == text and shown["node"] == "1", "the node shows what it hands on"
    return text.splitlines()


def test_of_an_empty_bank(bank: Any) -> None:
    assert report(bank) == ["bank 'bank': 0 renders, 0.0 MB of 1.0 GB, 0 pinned", "0 hits, 0.0 s saved in all"]


def test_while_the_last_render_is_still_being_stored(bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.carnator_core.hosts import storing

    bank.bank.add(history())
    stored = threading.Event()
    storing._thread.submit(stored.wait, 60)
    monkeypatch.setattr(storing, "flush", partial(storing.flush, 0.05))
    try:
        head, _, *rest = report(bank)
    finally:
        stored.set()
    assert head.startswith("bank 'bank': 1 render, ")
    assert rest[-2:] == ["", "the last render is still being stored and may not be counted yet"]


def test_of_a_bank_that_cannot_be_read(bank: Any) -> None:
    bank.bank.folder.write_text("a file")
    assert report(bank) == ["bank 'bank': the bank cannot be read: something else lies in the place of its folder"]


def test_of_one_that_was_of_use(bank: Any) -> None:
    first, second, _ = (bank.bank.add(history(i, prompt=f"a red fox, number {i}")) for i in range(3))
    for entry, saved in ((first, 10.0), (second, 50.0), (second, 60.0)):
        bank.bank.touch(entry, saved)
    bank.bank.pin(first)
    for number, said in enumerate(("kept", "wrong", "kept")):
        made = hit(number)
        verdicts.note(bank.bank, made)
        verdicts.say(bank.bank, made.id, said, float(number))  # type: ignore[arg-type]
    head, hits, judged, _, title, best, next_best, idle = report(bank)
    assert head.startswith("bank 'bank': 3 renders, ") and head.endswith(" of 1.0 GB, 1 pinned")
    assert hits == "3 hits, 2.0 min saved in all, 40.0 s a hit"
    assert judged == "judged: 2 kept the scene, 1 showed the wrong one"
    assert title == "of most use:"
    assert "1.8 min" in best and "2 hits" in best and best.endswith("a red fox, number 1")
    assert "10.0 s" in next_best and "1 hit " in next_best and next_best.endswith("a red fox, number 0")
    assert idle.startswith("not yet of use: 1 render, ")
