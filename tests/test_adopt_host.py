"""On the real host: the workflows that people share, with the node that the script puts in, run as they would without it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from carnator.demo.adopt import adopt
from carnator.demo.graph import to_prompt
from carnator.demo.wires import BYPASSED
from executing import Studio
from hosting import Page, bank_at, entries
from wild import CASES, Case

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "docs" / "data" / "workflows.json"
NOT_RUN = {"official/video_ltx2_3_t2v.json": "no stand-ins for its 22B audio-video model and its language model"}
WRITE = "CARNATOR_WRITE_DATA"  # set to 1, it makes this test write the committed table instead of comparing with it


@pytest.fixture(scope="module")
def table() -> Iterator[dict[str, dict[str, Any]]]:
    """Rows by file; written to out/ at the end, and to docs/data/ when that is asked for."""
    rows = {c.file: {"adopt": "declines", "reason": "; ".join(adopt(c.read()).declined), "bypassed": [], "run": "not run",
                     "said": NOT_RUN[c.file]} for c in CASES if c.file in NOT_RUN}
    yield rows
    text = json.dumps(rows, indent=1, ensure_ascii=True) + "\n"
    (ROOT / "out").mkdir(exist_ok=True)
    (ROOT / "out" / "workflows.json").write_text(text, encoding="utf-8")
    if os.environ.get(WRITE) and len(rows) == len(CASES):
        TABLE.write_text(text, encoding="utf-8")


@pytest.fixture
def info(comfy: Any) -> dict[str, Any]:
    """As much of /object_info as a prompt is made of, for the nodes of this process."""
    return {name: {"input": kind.INPUT_TYPES()} for name, kind in comfy.NODE_CLASS_MAPPINGS.items()}


@pytest.fixture
def studio(comfy: Any, page: Page, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Studio:
    return Studio(tmp_path_factory.getbasetemp() / "studio", page, monkeypatch)


def bodies(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [workflow, *(workflow.get("definitions") or {}).get("subgraphs", [])]


def without_strangers(workflow: dict[str, Any], info: dict[str, Any]) -> list[str]:
    """Bypass what this host does not have; its types, where they ran."""
    known = {*info, *(d["id"] for d in bodies(workflow)[1:]), "Reroute", "PrimitiveNode", "Note", "MarkdownNote"}
    strangers = [n for b in bodies(workflow) for n in b["nodes"] if n["type"] not in known and n.get("mode", 0) == 0]
    for node in strangers:
        node["mode"] = BYPASSED
    return sorted({n["type"] for n in strangers})


@pytest.mark.parametrize("case", [c for c in CASES if c.file not in NOT_RUN], ids=lambda c: c.name)
def test_it_runs_as_it_would_without_the_node(case: Case, info: dict[str, Any], studio: Studio, page: Page, tmp_path: Path,
                                              table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.nodes import banks

    kept = bank_at(tmp_path / "bank")
    monkeypatch.setattr(banks, "open_bank", lambda *_: kept.bank)
    plain = case.read()
    declined = adopt(plain).declined
    strangers = without_strangers(plain, info)
    adopted = adopt(plain, anyway=True).workflow
    assert adopted is not None
    dense = studio.run(studio.prepared(to_prompt(plain, info)))
    assert dense and all(bool(t.isfinite().all()) for t in dense)
    studio.forget()
    prompt = studio.prepared(to_prompt(adopted, info))
    assert [n for n in prompt.values() if n["class_type"] == "CarnatorReuse"]
    first = studio.run(prompt)
    assert all(torch.equal(a, b) for a, b in zip(first, dense, strict=True)), "bit for bit the render without the node"
    line, remembered = page.lines[-1], len(entries(kept))
    studio.forget()
    again = studio.run(prompt)
    assert all(torch.equal(a, b) for a, b in zip(again, dense, strict=True))
    row: dict[str, Any] = {"adopt": "declines" if declined else "puts it in", "reason": "; ".join(declined), "bypassed": strangers}
    if line.startswith("dense: "):
        assert remembered == 0
        row |= {"run": "steps aside", "said": line.removeprefix("dense: ")}
    else:
        assert page.last["decision"] == "hit" and page.last["computed"] == 0 and remembered == 1
        row |= {"run": "serves", "said": f"first a {page.summaries[0]['decision']}, then a {page.last['decision']}: "
                                         f"{page.last['reason']}"}
    table[case.file] = row
    if not os.environ.get(WRITE):
        assert row == json.loads(TABLE.read_text(encoding="utf-8"))[case.file], f"{WRITE}=1 writes the table anew"


def test_the_table_has_each_file() -> None:
    committed = json.loads(TABLE.read_text(encoding="utf-8"))
    assert set(committed) == {c.file for c in CASES}
    for case in CASES:
        row = committed[case.file]
        assert bool(row["reason"]) == (row["adopt"] == "declines") == bool(case.reason) and row["said"]
