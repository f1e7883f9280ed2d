"""In ComfyUI's own front end: the changed workflows open, with our node known, wired, and in the prompt that Run would send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carnator.demo.adopt import adopt
from carnator.demo.graph import to_prompt
from carnator.demo.lines import OURS
from carnator.demo.wires import WIRES
from wild import CASES

pytestmark = [pytest.mark.host, pytest.mark.browser]

OPEN = """async (workflow) => {
  await window.app.loadGraphData(workflow)
  const top = window.app.rootGraph ?? window.app.graph
  const ours = [], unknown = new Set()
  for (const graph of [top, ...(top.subgraphs?.values() ?? [])])
    for (const node of graph.nodes ?? graph._nodes) {
      const known = window.LiteGraph.registered_node_types[node.type] || node.isSubgraphNode?.()
      if (!known) unknown.add(node.type)
      if (node.type === 'CarnatorReuse')
        ours.push({ known: !!known, fed: node.getInputLink(0)?.type, feeds: (node.outputs[0].links ?? []).length,
                    values: node.widgets.slice(0, 2).map((w) => w.value) })
    }
  const prompt = (await window.app.graphToPrompt()).output
  return { ours, unknown: [...unknown].sort(), prompt }
}"""


@pytest.fixture(scope="module")
def front_end(host: Any, chromium: Path) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    flags = ["--headless=new", "--no-sandbox", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        opened = browser.new_page()
        opened.goto(host.url)
        opened.wait_for_function("window.app?.extensionManager && window.app.canvas?.graph", timeout=180_000)
        yield opened
        browser.close()


def strangers(workflow: dict[str, Any], known: dict[str, Any]) -> list[str]:
    """Types in a file that neither the host nor its front end has."""
    subgraphs = (workflow.get("definitions") or {}).get("subgraphs", [])
    own = {*known, *(s["id"] for s in subgraphs), "Note", "MarkdownNote", *(WIRES & {"Reroute", "PrimitiveNode"})}
    return sorted({n["type"] for b in (workflow, *subgraphs) for n in b["nodes"]} - own)


def test_each_changed_file_opens_with_our_node_wired(front_end: Any, host: Any) -> None:
    known = host.object_info()
    for case in CASES:
        made = adopt(case.read(), anyway=True)
        assert made.workflow is not None
        seen, foreign = front_end.evaluate(OPEN, made.workflow), strangers(case.read(), known)
        inserted = {line.partition(" stands ")[0] for line in made.done}  # one node may stand before two guiders
        assert len(seen["ours"]) == len(inserted) and len(made.done) == len(case.before or made.done), case.name
        for one in seen["ours"]:
            assert one["known"] and one["fed"] == "MODEL" and one["feeds"] >= 1, case.name
            assert one["values"] == ["balanced", "any seed (fastest)"]
        assert set(seen["unknown"]) <= set(foreign), case.name
        mine = {k for k, n in seen["prompt"].items() if n["class_type"] == OURS}
        assert len(mine) == len(seen["ours"])
        fed = [n["class_type"] for n in seen["prompt"].values() for v in n["inputs"].values()
               if isinstance(v, list) and v[0] in mine]
        assert sorted(set(fed)) in (["CFGGuider"], ["KSampler"], ["KSamplerAdvanced"], ["SamplerCustom"]), case.name
        if not foreign:
            sent = to_prompt(made.workflow, known)
            assert {k: n["inputs"] for k, n in sent.items()} == {k: n["inputs"] for k, n in seen["prompt"].items()}, case.name
