"""What a creator sees of templates, panels and viewer, in a real browser on the real host, with both renderers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import browsing
import pytest
from browsing import COLOURS, PATIENCE, Screen, assert_apart, contrast

pytestmark = pytest.mark.browser

browser, screen = browsing.browser, browsing.screen  # fixtures

ROOT = Path(__file__).resolve().parent.parent
NAMES = sorted(p.stem for p in (ROOT / "workflows").glob("*.json"))
CFG = {"classic": 5.5, "vue": 5.6}  # the renders of no other test fit these
FIRST, SECOND, OTHER = "a red ball moving right on snow", "a red cube moving right on snow", "two small green stars on water"
THEMES = ("light", "dark")

DROP = """async name => {
  const file = await fetch(`/api/workflow_templates/carnator/${name}.json`);
  const carried = new DataTransfer();
  carried.items.add(new File([await file.blob()], `${name}.json`, { type: 'application/json' }));
  const how = { dataTransfer: carried, bubbles: true, cancelable: true };
  for (const kind of ['dragenter', 'dragover', 'drop']) app.canvas.canvas.dispatchEvent(new DragEvent(kind, how));
}"""
WATCH = """kind => {
  const panel = app.rootGraph.nodes.find(n => n.type === kind).widgets.find(w => w.name === 'carnator_result').element;
  window.carnatorSaid = [];
  new MutationObserver(() => window.carnatorSaid.push(panel.innerText)).observe(panel, { childList: true });
}"""
SELECT = """kind => {
  app.canvas.deselectAll();
  app.canvas.select(app.rootGraph.nodes.find(n => n.type === kind));
  app.canvas.canvas.focus();
}"""
# The share of the history's picture that is drawn, and what is said of it.
PICTURE = """() => {
  const picture = document.querySelector('.carnator-result[data-decision="hit"] .carnator-picture');
  const { width, height } = picture;
  const all = picture.getContext('2d').getImageData(0, 0, width, height).data;
  let drawn = 0;
  for (let i = 3; i < all.length; i += 4) drawn += all[i] > 0;
  return [drawn / (width * height), picture.title];
}"""
FRAMES = "() => [...document.querySelectorAll('.carnator-clip canvas')].map(c => c.toDataURL())"
MESSAGES = "() => [...document.querySelectorAll('.carnator-viewer .carnator-distance')].map(d => d.innerText)"


def rewrite(screen: Screen, old: str, new: str) -> None:
    """Type over a prompt that stands in one of the text fields, near enough that they are shown."""
    screen.look_at("CarnatorTextEncode", 0.9)
    (field,) = [f for f in screen.page.locator("textarea").all() if f.input_value() == old]
    field.fill(new)


def readable(screen: Screen, name: str) -> None:
    """A screenshot in either theme; every text of ours stands out from what is behind it."""
    for theme in THEMES:
        screen.theme(theme)
        screen.shoot(f"{name}-{theme}")
        assert all(contrast(*pair) >= 4.5 for pair in screen.page.evaluate(COLOURS)), theme


@pytest.mark.parametrize("name", NAMES)
def test_a_template_opens(name: str, screen: Screen) -> None:
    file = json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))
    screen.open(name)
    nodes = screen.nodes()
    assert [n["type"] for n in nodes if not n["known"]] == []
    assert sorted((str(n["id"]), n["type"]) for n in nodes) == sorted((str(n["id"]), n["type"]) for n in file["nodes"])
    assert all((n["drawn"] is not None) == (screen.renderer == "vue") for n in nodes)
    assert_apart(nodes, "box")
    panels = screen.panels()
    assert panels and all(p["text"] and not p["decision"] for p in panels.values())
    screen.shoot(name)
    assert screen.complaints() == []


def test_the_whole_story(screen: Screen) -> None:
    """Drag in the template, Run; change a word, Run: reused, from what, where, what it saved; change to something else,
    Run: not reused, and why; bypass the node: the ordinary render, and nothing of it left."""
    screen.page.evaluate(DROP, "carnator_demo_one_node")
    screen.page.wait_for_function("() => app.rootGraph.nodes.some(n => n.type === 'CarnatorReuse')")
    screen.settle()
    screen.type_in("KSampler", "cfg", CFG[screen.renderer])
    screen.page.evaluate(WATCH, "CarnatorReuse")
    screen.press_run()
    first = screen.panels()["CarnatorReuse"]
    assert first["decision"] == "miss" and first["text"].startswith("Rendered in full") and first["shown"]
    lines = screen.page.evaluate("() => window.carnatorSaid")
    assert any("Running" in line and re.search(r"probing \d/4", line) for line in lines), "one line while it runs"
    assert_apart(screen.nodes(), "box")
    assert screen.page.locator("video").count() >= 1
    screen.shoot("story-1-remembered")

    rewrite(screen, FIRST, SECOND)
    screen.press_run()
    second = screen.panels()["CarnatorReuse"]
    assert second["decision"] == "hit" and second["text"].startswith("Reused"), second["text"]
    assert FIRST in second["text"] and "computed anew: cube for ball" in second["text"]
    seconds, dense = re.search(r"(\d+(?:\.\d)?) s instead of (\d+(?:\.\d)?) s", second["text"]).groups()  # type: ignore[union-attr]
    saved = re.search(r"(\d+(?:\.\d)?) s saved", second["text"]).group(1)  # type: ignore[union-attr]
    assert abs(float(dense) - float(seconds) - float(saved)) <= 1.1, "rounded to seconds from ten on"
    drawn, told = screen.page.evaluate(PICTURE)
    assert drawn == 1.0 and told == f"The remembered render: {FIRST}. Tinted: computed anew."
    assert_apart(screen.nodes(), "box")
    screen.look_at("CarnatorReuse")
    readable(screen, "story-2-reused")

    rewrite(screen, SECOND, OTHER)
    screen.press_run()
    third = screen.panels()["CarnatorReuse"]
    assert third["decision"] == "miss" and third["text"].startswith("Rendered in full"), third["text"]
    reason = third["text"].split("\n\n")[1]
    assert FIRST in reason or SECOND in reason, "it names what it was compared with"
    readable(screen, "story-3-refused")

    screen.page.evaluate(SELECT, "CarnatorReuse")
    screen.page.keyboard.press("Control+b")
    screen.type_in("KSampler", "seed", 8)
    screen.press_run()
    (last,) = screen.host.get("/history?max_items=1").values()
    assert not [n for n in last["prompt"][2].values() if n["class_type"] == "CarnatorReuse"]
    assert screen.panels()["CarnatorReuse"]["decision"] == "", "what it said is no longer true"
    screen.shoot("story-4-bypassed")
    assert screen.complaints() == []


def test_stage_by_stage_with_the_viewer(screen: Screen) -> None:
    """A node for each stage: the gate gives its reason, the fallback runs only on the miss, the viewer shows both clips."""
    screen.open("carnator_demo")
    screen.type_in("Early Signature Probe", "cfg", CFG[screen.renderer])
    screen.type_in("Cache Bank Loader", "name", f"browser {screen.renderer}")
    screen.press_run()
    first = screen.panels()
    assert first["CarnatorEarlySignatureProbe"]["decision"] == "probed"
    for kind in ("CarnatorRiskGate", "CarnatorDenseFallback", "CarnatorJointReuseSampler"):
        assert first[kind]["decision"] == "miss", kind
        assert "the bank is empty" in first[kind]["text"], kind
    assert first["CarnatorRiskGate"]["text"].startswith("No safe start")
    assert screen.page.locator(".carnator-clip").count() == 1, "there is no remembered clip yet"
    assert_apart(screen.nodes(), "box")
    screen.shoot("stages-1-remembered")

    rewrite(screen, FIRST, SECOND)
    screen.press_run()
    second = screen.panels()
    assert second["CarnatorRiskGate"]["text"].startswith("Safe to reuse"), second["CarnatorRiskGate"]["text"]
    assert second["CarnatorJointReuseSampler"]["text"].startswith("Reused")
    assert second["CarnatorDenseFallback"]["decision"] == ""  # it did not run
    assert_apart(screen.nodes(), "box")
    screen.shoot("stages-2-reused")
    screen.look_at("CarnatorRiskGate", 1.0)
    screen.page.get_by_role("button", name="Numbers").first.click()
    screen.settle()
    assert screen.page.locator(".carnator-numbers:visible .carnator-distance").count() >= 3
    readable(screen, "stages-3-numbers")
    look_through_the_viewer(screen)
    assert screen.complaints() == []


def look_through_the_viewer(screen: Screen) -> None:
    screen.look_at("CarnatorEvidenceRegionViewer", 1.0)
    page = screen.page
    page.wait_for_function("() => document.querySelectorAll('.carnator-clip canvas').length === 2")
    captions = page.locator(".carnator-clip figcaption").all_inner_texts()
    assert captions == [f"Remembered: {FIRST}", f"This render after 4 of 50 steps: {SECOND}"]
    rows = page.evaluate(MESSAGES)
    assert any(row.startswith("cube: shape") and row.endswith("asked for") for row in rows)
    assert any(row.startswith("picture: change") and row.endswith("fits") for row in rows)
    readable(screen, "viewer")

    seen = page.evaluate(FRAMES)
    slider = page.get_by_role("slider", name="Latent frame")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert slider.input_value() == "1" and "frame 2 of 3" in page.locator(".carnator-frames").inner_text()
    moved = page.evaluate(FRAMES)
    assert all(a != b for a, b in zip(seen, moved, strict=True))
    for name, both in (("ball \u2192 cube", True), ("computed anew", True), ("looked at", True)):
        before = page.evaluate(FRAMES)
        button = page.locator(".carnator-switch", has_text=name)
        pressed = button.get_attribute("aria-pressed")
        button.focus()
        page.keyboard.press("Space")
        assert button.get_attribute("aria-pressed") != pressed, name
        after = page.evaluate(FRAMES)
        assert all(a != b for a, b in zip(before, after, strict=True)) is both, name
    assert len(screen.nodes()) == 18, "no key went to the graph behind"


# Whether the numbers are unfolded is not part of a result.
FOLD = """() => app.rootGraph.nodes.forEach(n => {
  const panel = n.widgets?.find(w => w.name === 'carnator_result')?.element;
  panel?.querySelector('.carnator-numbers')?.toggleAttribute('hidden', true);
})"""


def test_what_a_node_showed_outlives_tabs_and_a_reload(screen: Screen) -> None:
    """After the story of stages: another tab and back, then the page anew; and the saved workflow has not grown."""
    page = screen.page

    def shown() -> dict[str, str]:
        page.evaluate(FOLD)
        return {kind: panel["text"] for kind, panel in screen.panels().items()}
    before = shown()
    assert before["CarnatorRiskGate"].startswith("Safe to reuse")
    page.evaluate("() => app.extensionManager.command.execute('Comfy.NewBlankWorkflow')")
    page.wait_for_function("() => app.rootGraph.nodes.length === 0")
    page.evaluate("() => app.extensionManager.command.execute('Workspace.PreviousOpenedWorkflow')")
    page.wait_for_function("() => app.rootGraph.nodes.some(n => n.type === 'CarnatorRiskGate')")
    screen.settle()
    assert shown() == before
    saved = page.evaluate("() => JSON.stringify(app.rootGraph.serialize())")
    assert FIRST not in saved and "thumbnail" not in saved
    page.reload()
    browsing.wait_until_up(page)
    page.wait_for_function("() => app.rootGraph.nodes.some(n => n.type === 'CarnatorRiskGate')", timeout=PATIENCE)
    screen.settle()
    assert shown() == before
    assert page.locator(".carnator-clip canvas").count() == 2
    screen.shoot("after-a-reload")
    assert screen.complaints() == []


def test_help_pages_are_served(host: Any) -> None:
    for page in sorted((ROOT / "web" / "docs").rglob("*.md")):
        served = host.request(f"/extensions/carnator/docs/{page.relative_to(ROOT / 'web' / 'docs').as_posix()}")
        assert served == page.read_bytes()
