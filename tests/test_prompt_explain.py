"""`run.py explain`: the text stage's view of two prompts as data and as text, one pair or a file of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from carnator.carnator_core.explain import as_text, explain
from carnator.demo.explain import main, read_pairs

ROOT = Path(__file__).resolve().parent.parent
A, B = "a red (fox:1.2) running through snow", "a white wolf running through snow"


def test_keys_and_values() -> None:
    one = explain([(A, B)])[0]
    assert one["a"]["raw"] == A and one["a"]["text"] == "a red fox running through snow"
    fox = one["a"]["entities"][0]
    assert (fox["lemma"], fox["text"], fox["span"]) == ("fox", "fox", [6, 9])
    assert {"kind": "colour", "text": "red"} in fox["modifiers"]
    assert one["correspondence"] == {
        "pairs": [{"a": "snow", "b": "snow"}, {"a": "fox", "b": "wolf"}], "substituted": {"a": "fox", "b": "wolf"},
        "modifiers": [{"entity": "wolf", "kind": "colour", "a": "red", "b": "white"}]}
    assert (one["kind"], one["recompute"]) == ("recompute", ["wolf"])
    assert one["verdict"] == "recompute: fox -> wolf, wolf: colour red -> white"


def test_a_refusal_has_no_correspondence() -> None:
    one = explain([("a beach", "a castle")])[0]
    assert (one["correspondence"], one["recompute"], one["kind"]) == (None, [], "refuse")
    assert one["verdict"] == "refuse: " + one["reason"]


def test_text_for_a_person() -> None:
    text = as_text(explain([(A, B)])[0])
    assert "fox (fox, 6-9): colour red, action run, relation through snow" in text
    assert "read as: a red fox running through snow" in text
    assert text.splitlines()[-1] == "recompute: fox -> wolf, wolf: colour red -> white"


def test_json_of_one_pair(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([A, B, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == explain([(A, B)])[0]


def test_batch_keeps_what_a_row_says_and_counts_by_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pairs.jsonl"
    rows: list[dict[str, Any]] = [{"class": "noun", "a": A, "b": B}, {"class": "same", "a": A, "b": A},
                                  {"class": "same", "a": "a cat", "b": "\u4e00\u53ea\u732b"}]
    file.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert main(["--batch", str(file), "--json"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(f["class"], f["kind"]) for f in found] == [("noun", "recompute"), ("same", "reuse-candidate"), ("same", "refuse")]
    assert main(["--batch", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "reuse-candidate" in printed and printed.splitlines()[-1].split() == ["same", "reuse-candidate", "1"]


@pytest.mark.parametrize("arguments", [[], ["one"], ["a", "b", "c"], ["a", "--batch", "x"], ["--batch", "no-such-file"]])
def test_wrong_calls(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "explain: error:" in capsys.readouterr().err


@pytest.mark.parametrize(("line", "complaint"), [("{", "line 2: not JSON"), ('{"a": "x"}', 'needs an object'), ("[]", "needs")])
def test_a_bad_row_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_text('{"a": "x", "b": "y"}\n' + line, encoding="utf-8")
    with pytest.raises(ValueError, match=complaint):
        read_pairs(str(file))


@pytest.mark.parametrize(("content", "complaint"), [
    (b"", "holds no pairs"), (b"\n \n", "holds no pairs"), (b"\xff\xfe{", "is not UTF-8 text"), (None, "cannot be read")])
def test_a_file_that_holds_no_pairs_is_said(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    file = tmp_path / "pairs.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        read_pairs(str(file))


def test_a_byte_order_mark_and_odd_line_ends_do_no_harm(tmp_path: Path) -> None:
    file = tmp_path / "pairs.jsonl"
    file.write_bytes('\ufeff{"a": "x\u2028y", "b": "z"}\r\n{"a": "1", "b": "2"}'.encode())
    assert read_pairs(str(file)) == [{"a": "x\u2028y", "b": "z"}, {"a": "1", "b": "2"}]


def test_as_a_program_in_a_plain_locale(tmp_path: Path) -> None:
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"a": "a \U0001f431 cat", "b": "a cat"}), encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PWD": str(tmp_path)}
    # run.py changes to the checkout; the file is named from where the person stood.
    done = subprocess.run([sys.executable, "-m", "demo.explain", "--batch", "pairs.jsonl"], cwd=ROOT, env=environment,
                          capture_output=True, text=True, encoding="utf-8", check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    assert "reuse-candidate" in done.stdout and "\U0001f431" in done.stdout
