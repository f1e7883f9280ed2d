"""What a creator sees, in a real browser on the real host, with the classic renderer and with the Vue one.

Screenshots are left in out/screenshots.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
SHOTS = ROOT / "out" / "screenshots"
NAMES = sorted(p.stem for p in (ROOT / "workflows").glob("*.json"))
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
PATIENCE = 400_000  # milliseconds: two busy cores draw the page in software
RENDERERS = {"classic": False, "vue": True}
CFG = {"classic": 5.5, "vue": 5.6}  # the renders of no other test fit these

NODES = """() => app.rootGraph.nodes.map(n => {
  const drawn = document.querySelector(`[data-node-id="${n.id}"]`)?.getBoundingClientRect();
  const s = app.canvas.ds.scale;
  return { id: n.id, type: n.type, known: n.type in LiteGraph.registered_node_types, title: n.title,
           box: [n.pos[0], n.pos[1] - 30, n.size[0], n.size[1] + 30],
           drawn: drawn ? [drawn.x / s, drawn.y / s, drawn.width / s, drawn.height / s] : null };
})"""
OPEN = """async name => {
  const file = await fetch(`/api/workflow_templates/carnator/${name}.json`);
  await app.loadGraphData(await file.json(), true, true, name, { openSource: 'template' });
}"""
SET = """([title, widget, value]) => {
  app.rootGraph.nodes.find(n => n.title === title).widgets.find(w => w.name === widget).value = value;
}"""
LOOK_AT = """([kind, scale]) => {
  app.canvas.ds.scale = scale;
  app.canvas.centerOnNode(app.rootGraph.nodes.find(n => n.type === kind));
  app.canvas.setDirty(true, true);
}"""
PANELS = """() => Object.fromEntries(app.rootGraph.nodes.flatMap(n => {
  const panel = n.widgets?.find(w => w.name === 'carnator_result')?.element;
  if (!panel) return [];
  return [[n.type, { decision: panel.dataset.decision ?? '', text: panel.innerText, shown: panel.isConnected }]];
}))"""
COLOURS = """() => [...document.querySelectorAll('.carnator-result')].flatMap(panel => {
  const of = (e, what) => getComputedStyle(e)[what];
  const mark = panel.querySelector('.carnator-mark');
  return [[of(panel, 'color'), of(panel, 'backgroundColor')],
          ...(mark ? [[of(mark, 'color'), of(mark, 'backgroundColor')]] : [])];
})"""


@dataclass
class Screen:
    """The front end in a browser page, with what it said on its console."""

    page: Any
    host: Any
    renderer: str
    said: list[tuple[str, str, str]] = field(default_factory=list)

    def open(self, name: str) -> None:
        self.page.evaluate(OPEN, name)
        self.page.wait_for_function("() => app.rootGraph.nodes.some(n => n.type.startsWith('Carnator'))")
        self.settle()

    def settle(self) -> None:
        """Wait until two looks at the nodes, some frames apart, show the same places and sizes."""
        before: Any = None
        for _ in range(40):
            self.page.wait_for_timeout(500)
            now = self.page.evaluate(NODES)
            if now == before:
                return
            before = now

    def nodes(self) -> list[dict[str, Any]]:
        return self.page.evaluate(NODES)  # type: ignore[no-any-return]

    def panels(self) -> dict[str, dict[str, Any]]:
        """What our nodes show, by their type."""
        return self.page.evaluate(PANELS)  # type: ignore[no-any-return]

    def type_in(self, title: str, widget: str, value: Any) -> None:
        self.page.evaluate(SET, [title, widget, value])

    def press_run(self) -> None:
        """Press Run and wait for the queue to empty and for the page to have heard of it."""
        done = len(self.host.get("/history"))
        self.page.get_by_role("button", name="Run", exact=True).first.click(timeout=PATIENCE)
        until = time.monotonic() + PATIENCE / 1000
        while len(self.host.get("/history")) == done:
            assert time.monotonic() < until, "the render did not end"
            time.sleep(0.5)
        (last,) = list(self.host.get("/history?max_items=1").values())
        assert last["status"]["status_str"] == "success", last["status"]["messages"]
        self.settle()

    def theme(self, name: str) -> None:
        self.page.evaluate("name => app.extensionManager.setting.set('Comfy.ColorPalette', name)", name)
        self.page.wait_for_timeout(1500)

    def look_at(self, kind: str, scale: float = 1.2) -> None:
        self.page.evaluate(LOOK_AT, [kind, scale])
        self.page.wait_for_timeout(1500)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}-{self.renderer}.png")

    def complaints(self) -> list[tuple[str, str, str]]:
        """Errors and warnings of ours: from our scripts, about our nodes, or uncaught by anyone."""
        wrong = [s for s in self.said if s[0] in ("error", "warning", "uncaught")]
        return [s for s in wrong if s[0] == "uncaught" or "carnator" in (s[1] + s[2]).lower()]


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(chromium), args=FLAGS)
        yield launched
        launched.close()


@pytest.fixture(scope="module", params=RENDERERS)
def screen(request: pytest.FixtureRequest, browser: Any, host: Any) -> Iterator[Screen]:
    settings = {
        "Comfy.VueNodes.Enabled": RENDERERS[request.param], "Comfy.TutorialCompleted": True, "Comfy.Locale": "en",
        "Comfy.ColorPalette": "dark", "Comfy.InstalledVersion": "1.47.12", "Comfy.Minimap.Visible": False,
    }  # fmt: skip
    for name, value in settings.items():
        host.request(f"/settings/{name}", value)
    page = browser.new_page(viewport={"width": 1280, "height": 720})
    page.set_default_timeout(PATIENCE)
    shown = Screen(page, host, request.param)
    page.on("console", lambda m: shown.said.append((m.type, m.text, m.location.get("url", ""))))
    page.on("pageerror", lambda e: shown.said.append(("uncaught", str(e), "")))
    page.goto(host.url)
    page.wait_for_function("() => window.app?.extensionManager && window.app?.rootGraph")
    page.get_by_role("button", name="Run", exact=True).first.wait_for()
    yield shown
    page.close()


def contrast(one: str, other: str) -> float:
    """WCAG contrast of two CSS colours, rgb(r, g, b)."""

    def luminance(colour: str) -> float:
        parts = [int(v) / 255 for v in re.findall(r"\d+", colour)[:3]]
        r, g, b = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted(luminance(c) for c in (one, other))
    return (high + 0.05) / (low + 0.05)


def assert_apart(nodes: list[dict[str, Any]], which: str) -> None:
    for one, other in itertools.combinations([n for n in nodes if n[which]], 2):
        a, b = one[which], other[which]
        apart = any(a[i] + a[i + 2] <= b[i] + 1 or b[i] + b[i + 2] <= a[i] + 1 for i in (0, 1))
        assert apart, f"{one['type']} #{one['id']} and {other['type']} #{other['id']} overlap"


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
    for theme in ("light", "dark"):
        screen.theme(theme)
        screen.shoot(f"{name}-{theme}")
    assert screen.complaints() == []


def test_the_story_in_one_node(screen: Screen) -> None:
    """A first render is remembered; a word is changed; the second is reused, and the node says so."""
    screen.open("carnator_demo_one_node")
    screen.type_in("KSampler", "cfg", CFG[screen.renderer])
    screen.press_run()
    first = screen.panels()["CarnatorReuse"]
    assert first["decision"] == "miss" and first["text"].startswith("Rendered in full") and first["shown"]
    assert_apart(screen.nodes(), "box")
    assert screen.page.locator("video").count() >= 1
    screen.shoot("one-node-first")
    screen.type_in("Positive prompt", "text", "a red cube moving right on snow")
    screen.press_run()
    second = screen.panels()["CarnatorReuse"]
    assert second["decision"] == "hit", second["text"]
    assert second["text"].startswith("Reused") and "a red ball moving right on snow" in second["text"]
    assert re.search(r"\d s, \d+(\.\d)? s saved", second["text"])
    screen.look_at("CarnatorReuse")
    for theme in ("light", "dark"):
        screen.theme(theme)
        screen.shoot(f"one-node-hit-{theme}")
        assert all(contrast(*pair) >= 4.5 for pair in screen.page.evaluate(COLOURS)), theme
    assert screen.complaints() == []


def test_the_story_stage_by_stage(screen: Screen) -> None:
    """The same with a node for each stage: the gate gives its reason, and the fallback runs only on the miss."""
    screen.open("carnator_demo")
    screen.type_in("Early Signature Probe", "cfg", CFG[screen.renderer])
    screen.type_in("Cache Bank Loader", "name", f"browser {screen.renderer}")
    screen.press_run()
    first = screen.panels()
    assert first["CarnatorRiskGate"]["decision"] == first["CarnatorDenseFallback"]["decision"] == "miss"
    assert first["CarnatorRiskGate"]["text"].startswith("No safe start")
    assert first["CarnatorJointReuseSampler"]["decision"] == ""
    assert_apart(screen.nodes(), "box")
    screen.shoot("stages-first")
    screen.type_in("Positive prompt", "text", "a red cube moving right on snow")
    screen.press_run()
    second = screen.panels()
    assert second["CarnatorRiskGate"]["decision"] == "hit", second["CarnatorRiskGate"]["text"]
    assert second["CarnatorRiskGate"]["text"].startswith("Safe to reuse")
    assert second["CarnatorJointReuseSampler"]["text"].startswith("Reused")
    assert second["CarnatorDenseFallback"]["decision"] == ""  # it did not run
    assert_apart(screen.nodes(), "box")
    screen.shoot("stages-second")
    screen.look_at("CarnatorRiskGate", 1.0)
    screen.page.get_by_role("button", name="Numbers").first.click()
    screen.settle()
    numbers = screen.page.locator(".carnator-numbers:visible").first
    assert numbers.inner_text().strip()
    for theme in ("light", "dark"):
        screen.theme(theme)
        screen.shoot(f"stages-numbers-{theme}")
    assert screen.complaints() == []


def test_help_pages_are_served(host: Any) -> None:
    for page in sorted((ROOT / "web" / "docs").rglob("*.md")):
        served = host.request(f"/extensions/carnator/docs/{page.relative_to(ROOT / 'web' / 'docs').as_posix()}")
        assert served == page.read_bytes()
