"""README's tables of measured figures are what docs/data says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from carnator.bench import figures


def test_readme_says_what_the_data_says() -> None:
    text = figures.README.read_text(encoding="utf-8")
    assert set(figures.PLACE.findall(text)) and figures.written(text) == text, "python3 run.py bench figures writes it anew"
    assert {m["name"] for m in figures.PLACE.finditer(text)} == set(figures.TABLES)


def test_a_table_that_says_otherwise_is_written_anew() -> None:
    text = "a\n  <!-- figures: change models -->\n  | no |\n  <!-- /figures -->\nb\n"
    new = figures.written(text)
    assert new.startswith("a\n  <!-- figures: change models -->\n  | model |") and new.endswith("  <!-- /figures -->\nb\n")
    assert figures.written(new) == new
    with pytest.raises(SystemExit, match="asks for the table 'nothing'"):
        figures.written("<!-- figures: nothing -->\n<!-- /figures -->")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """An empty docs/data."""
    monkeypatch.setattr(figures, "DATA", tmp_path)
    figures.data.cache_clear()
    yield tmp_path
    figures.data.cache_clear()


def test_data_that_is_not_there_is_said(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"docs/data/demo.json is not there"):
        figures.demo()
    (folder / "change_ltx.json").write_text(json.dumps({"by_length": {"all": [
        {"probe": 4, "auc": 0.9, "predicted": 0.2, "true": 0.25, "factor": 1.1}]}}))
    assert figures.change_models().splitlines()[2] == "| LTX-Video | 0.90 | 20.0% | 25.0% | 1.10 |"


def test_a_rule_without_a_hit_has_a_dash(folder: Path) -> None:
    rule = {"name": "paper", "reuse": "joint", "requests": 7, "accepted": 0, "unsafe": 0, "hit_rate": 0.0, "bound": 1.0,
            "alignment": 0.9, "quality": 0.8, "hit_latency_ratio": None, "hit_psnr": None, "by_change": {}}
    (folder / "validity.json").write_text(json.dumps({"methods": [rule], "dense": {"alignment": 0.9, "quality": 0.8}}))
    assert figures.validity().splitlines()[2].endswith("| 0.900 | 0.800 | - | - |")
    assert figures.validity_models().splitlines()[2].endswith("| - |")
