"""Draws the templates in workflows/: python -m demo.make_workflows (starts the demo's ComfyUI to ask for its nodes)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from . import template_graphs as graphs
from .setup import ROOT
from .sheet import draw

FOLDER = ROOT / "workflows"
TEMPLATES = (
    graphs.carnator_demo,
    graphs.carnator_demo_one_node,
    graphs.carnator_calibrate,
    graphs.carnator_wan21_t2v_1_3b,
    graphs.carnator_wan21_t2v_1_3b_stages,
    graphs.carnator_wan22_t2v_5b,
    graphs.carnator_wan22_t2v_5b_stages,
    graphs.carnator_wan22_t2v_14b,
    graphs.carnator_wan22_t2v_14b_stages,
    graphs.carnator_ltx_t2v,
    graphs.carnator_ltx_t2v_stages,
)


def build(object_info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every template by its file's name."""
    return {f"{make.__name__}.json": draw(make.__name__, make(), object_info) for make in TEMPLATES}


def text_of(workflow: Mapping[str, Any]) -> str:
    """The file's content."""
    return json.dumps(workflow, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    from .host import Host

    FOLDER.mkdir(exist_ok=True)
    with Host(timeout=900) as host:
        for name, workflow in build(host.object_info()).items():
            (FOLDER / name).write_text(text_of(workflow), encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main()
