"""Hits that wait for a creator's word, and the labels that calibration reads."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from bank_world import history
from carnator.carnator_core import verdicts
from carnator.carnator_core.bank import Bank, BankMissing
from carnator.carnator_core.gate import Distance
from carnator.carnator_core.hosts import storing
from carnator.carnator_core.verdicts import Hit, Label, new_hit_id
from hosting import ANYTHING, Ask, Page, entries, ksampler, reuse
from hypothesis import given
from hypothesis import strategies as st

pytest_plugins = ["hosting_fixtures"]
DISTANCES = (
    Distance("size", "fox", 0.25, 0.7),
    Distance("colour", "fox", 31.5, 20.0, expected=True),
    Distance("motion", "fox", math.inf, 0.12),
    Distance("change", "", 0.16, math.inf),
)


def hit(number: int = 0, **changes: object) -> Hit:
    prompt = "a white wolf \u6d4b\u8bd5 \U0001f43a\n\u2028"
    made = Hit(new_hit_id(), f"{number:024x}", "a red fox", prompt, "ours", 0.93, DISTANCES, 2.5, 100.0 + number)
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def shelf(tmp_path: Path) -> Bank:
    made = Bank.open(tmp_path / "bank", reserve_bytes=0)
    made.add(history())
    return made


def test_a_hit_is_read_as_it_was_noted(shelf: Bank) -> None:
    first, second = hit(1), hit(2, distances=())
    verdicts.note(shelf, first)
    verdicts.note(shelf, second)
    assert verdicts.hits(shelf.folder) == [first, second]
    assert verdicts.labels(shelf.folder) == []


def test_a_label_is_the_hit_with_what_was_said(shelf: Bank) -> None:
    one, other = hit(1), hit(2)
    for h in (one, other):
        verdicts.note(shelf, h)
    assert verdicts.say(shelf, one.id, "wrong", 500.0) == Label(one, False, 500.0)
    assert verdicts.say(shelf, other.id, "kept", 400.0) == Label(other, True, 400.0)
    assert verdicts.labels(shelf.folder) == [Label(other, True, 400.0), Label(one, False, 500.0)]


def test_the_last_word_counts(shelf: Bank) -> None:
    one, other = hit(1), hit(2)
    for h in (one, other):
        verdicts.note(shelf, h)
        verdicts.say(shelf, h.id, "wrong", 500.0)
    verdicts.say(shelf, one.id, "kept", 501.0)
    assert verdicts.say(shelf, other.id, "withdrawn", 502.0) is None
    assert verdicts.labels(shelf.folder) == [Label(one, True, 501.0)]


def test_only_the_last_hits_and_known_words_can_be_said(shelf: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "KEPT_HITS", 3)
    made = [hit(i) for i in range(5)]
    for h in made:
        verdicts.note(shelf, h)
    assert verdicts.hits(shelf.folder) == made[2:]
    with pytest.raises(KeyError):
        verdicts.say(shelf, made[0].id, "kept", 1.0)
    with pytest.raises(ValueError, match="kept, wrong, withdrawn"):
        verdicts.say(shelf, made[4].id, "good", 1.0)  # type: ignore[arg-type]
    assert verdicts.labels(shelf.folder) == []


def test_a_label_outlives_its_hit_and_its_entry(shelf: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "KEPT_HITS", 2)
    entry = shelf.entries()[0].id
    said = hit(1, history=entry)
    verdicts.note(shelf, said)
    verdicts.say(shelf, said.id, "wrong", 7.0)
    shelf.remove(entry)
    for i in range(2, 5):
        verdicts.note(shelf, hit(i))
    assert verdicts.labels(shelf.folder) == [Label(said, False, 7.0)]


def test_two_at_once_lose_nothing(shelf: Bank) -> None:
    made = [hit(i) for i in range(24)]

    def note(part: list[Hit]) -> None:
        own = Bank.open(shelf.folder, reserve_bytes=0)  # as another process has it
        for h in part:
            verdicts.note(own, h)
            verdicts.say(own, h.id, "kept", h.date)
        own.close()

    threads = [threading.Thread(target=note, args=(made[i::3],)) for i in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert {label.hit.id for label in verdicts.labels(shelf.folder)} == {h.id for h in made}


def test_forgetting_leaves_no_prompt_behind(shelf: Bank) -> None:
    h = hit()
    verdicts.note(shelf, h)
    verdicts.say(shelf, h.id, "kept", 1.0)
    (shelf.folder / "hits.jsonl.0123abcd").write_bytes(b"a red fox")  # left by a process that died while it wrote
    verdicts.forget(shelf)
    assert verdicts.hits(shelf.folder) == verdicts.labels(shelf.folder) == []
    assert not list(shelf.folder.rglob("*.jsonl*"))


def test_where_there_is_no_bank(tmp_path: Path) -> None:
    none = Bank.open(tmp_path / "nowhere")
    assert verdicts.hits(none.folder) == verdicts.labels(none.folder) == []
    with pytest.raises(BankMissing):
        verdicts.note(none, hit())
    verdicts.forget(none)
    assert not none.folder.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"schema": 2}, {"schema": True}, {"hit": "../../etc"}, {"history": "x" * 24}, {"prompt": 3}, {"prompt": "x" * 20_001},
        {"similarity": "high"}, {"saved": None}, {"date": True}, {"distances": [["size", "fox", 1.0, 2.0]]}, {"distances": 1},
        {"distances": [["size", "fox", "far", 2.0, False]]}, {"verdict": "good"}, {"verdict": ["kept"]}, {"said": "now"},
    ],
)  # fmt: skip
def test_a_row_that_lies_is_left_out(change: dict[str, object], shelf: Bank, caplog: pytest.LogCaptureFixture) -> None:
    true, false = hit(1), hit(2)
    for h in (true, false):
        verdicts.note(shelf, h)
        verdicts.say(shelf, h.id, "kept", h.date)
    path = shelf.folder / verdicts.VERDICTS
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], json.dumps({**json.loads(lines[1]), **change}).encode(), b"{", b"\xff", b""]))
    with caplog.at_level(logging.WARNING):
        assert verdicts.labels(shelf.folder) == [Label(true, True, true.date)]
    assert "3 of 4 rows of verdicts.jsonl do not read" in caplog.text


@given(st.binary(max_size=300))
def test_no_content_of_the_files_raises(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    folder = tmp_path_factory.getbasetemp() / "noise"
    folder.mkdir(exist_ok=True)
    for name in (verdicts.HITS, verdicts.VERDICTS):
        (folder / name).write_bytes(data)
    assert verdicts.hits(folder) == verdicts.labels(folder) == []


@pytest.mark.host
def test_a_hit_on_the_host_waits_for_a_word_and_a_replay_does_not(wan_model: Any, bank: Any, page: Page) -> None:
    with_node = reuse(wan_model, bank, strictness=ANYTHING)
    for text in ("a red ball on snow", "a red ball on snow", "a blue ball on snow"):
        ksampler(with_node, Ask(text))
    assert [s["decision"] for s in page.summaries] == ["miss", "hit", "hit"]
    storing.flush()
    (waiting,) = verdicts.hits(bank.bank.folder)
    (entry,) = entries(bank)
    assert (waiting.history, waiting.history_prompt, waiting.prompt) == (entry.id, "a red ball on snow", "a blue ball on snow")
    assert waiting.mode == "ours" and 0.5 < waiting.similarity <= 1.0
    assert {d.name for d in waiting.distances} >= {"change"} and all(d.value >= 0.0 for d in waiting.distances)
