"""The demo's sheet and page: regions come back as they were packed, and what is shown is true and safe HTML."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from carnator.demo import report
from PIL import Image


def pack(region: torch.Tensor) -> str:
    return base64.b64encode(np.packbits(region.flatten().numpy()).tobytes()).decode()


@pytest.fixture
def panel() -> report.Panel:
    region = torch.zeros(3, 8, 8, dtype=torch.bool)
    region[:, 2:4, 5] = True
    clips = [torch.full((9, 128, 128, 3), v) for v in (0.2, 0.5, 0.8)]
    row: dict[str, Any] = {
        "prompt": "a red star on snow", "kind": "noun", "decision": "hit", "reason": "<b>star</b> for ball",
        "history": "a red ball on snow", "dense_s": 8.0, "reuse_s": 4.0, "dense_dit_s": 7.2, "reuse_dit_s": float("nan"),
        "speedup": 2.0, "seen_dense": "a red star on snow", "seen_reuse": "a red ball on snow", "agrees_dense": True,
        "agrees_reuse": False, "video": "1_reuse.mp4", "report": ["size 0.02 of 0.15"],
    }
    return report.Panel(row, *clips, {"grid": [3, 8, 8], "regions": {"star": pack(region)}, "active": ""})


def test_regions_come_back(panel: report.Panel) -> None:
    [(name, _, region)] = report.regions(panel.summary)
    assert name == "star"
    assert region[0].nonzero().tolist() == [[2, 5], [3, 5]]
    assert report.regions({}) == []


def test_edges_surround_a_region() -> None:
    region = torch.zeros(4, 4, dtype=torch.bool)
    region[1, 1:3] = True
    assert sorted(report.edges(region)) == sorted([
        (1, 1, 1, 2), (3, 1, 3, 2), (1, 1, 2, 1), (2, 1, 3, 1), (1, 2, 2, 2), (2, 2, 3, 2)])
    assert len(report.edges(torch.ones(2, 3, dtype=torch.bool))) == 10  # the picture's own border counts


def test_latent_frames() -> None:
    assert [report.latent_frame(t) for t in range(9)] == [0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_new_words_are_marked() -> None:
    assert report.marked("a red star on snow", "a red ball on snow") == "a red <mark>star</mark> on snow"
    assert report.marked("a <i>", "") == "a &lt;i&gt;"


def test_seconds() -> None:
    assert [report.seconds(s) for s in (3.14, 75.0, float("nan"), None)] == ["3.1 s", "1 min 15 s", "-", "-"]


def test_sheet(panel: report.Panel, tmp_path: Path) -> None:
    report.contact_sheet([panel, panel], tmp_path / "sheet.png")
    report.contact_sheet([panel], tmp_path / "half.png")
    whole, half = Image.open(tmp_path / "sheet.png"), Image.open(tmp_path / "half.png")
    assert whole.width == half.width
    assert whole.height > 1.7 * half.height
    pink = (np.asarray(half.convert("RGB")) == (255, 45, 149)).all(-1).any(0).nonzero()[0]
    assert pink.size  # evidence is outlined in history and reuse, not in the dense clip between them
    assert not ((pink > half.width * 0.35) & (pink < half.width * 0.65)).any()


def test_page(panel: report.Panel, tmp_path: Path) -> None:
    share = {"hits": 1, "median_speedup_hits": 2.0, "agrees_dense": 1, "agrees_reuse": 0, "transformer_share": None}
    report.html([panel], share, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;star&lt;/b&gt; for ball" in page
    assert "2.00x" in page
    assert "differs from the prompt" in page
    assert "<!--" not in page
    assert set(re.findall(r'src="([^"]*)"', page)) == {"1_reuse.mp4"}
    assert not re.search(r'(?:src|href)="https?:|url\(', page)
