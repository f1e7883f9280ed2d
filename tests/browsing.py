"""The front end of a running host in a real browser, with the classic renderer and with the Vue one.

A test module takes its fixtures: `browser, screen = browsing.browser, browsing.screen`. Screenshots are left in
out/screenshots.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
SHOTS = ROOT / "out" / "screenshots"
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
PATIENCE = 400_000  # milliseconds: two busy cores draw the page in software
RENDERERS = {"classic": False, "vue": True}

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
COLOURS = """() => [...document.querySelectorAll('.carnator-result, .carnator-viewer')].flatMap(panel => {
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


def wait_until_up(page: Any) -> None:
    """Until the front end has started, after the page was loaded."""
    page.wait_for_function("() => window.app?.extensionManager && window.app?.rootGraph")
    page.get_by_role("button", name="Run", exact=True).first.wait_for()


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
    wait_until_up(page)
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
