"""The bank browser and the settings, in a real browser on the real host, with the classic renderer and with the Vue one."""

from __future__ import annotations

import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsing
import pytest
from bank_world import history
from browsing import PATIENCE, Screen, contrast
from carnator.carnator_core import verdicts
from carnator.carnator_core.bank import Bank
from test_verdicts import hit

pytestmark = pytest.mark.browser
browser, screen = browsing.browser, browsing.screen  # fixtures

BANK = ".carnator-bank"
TAB = "Remembered renders"
BOXES = """() => [...document.querySelectorAll('.carnator-bank > :not([hidden])')].map(e => {
  const b = e.getBoundingClientRect();
  return [e.className || e.tagName, b.left, b.top, b.right, b.bottom];
})"""
ROW_BOXES = """() => [...document.querySelectorAll('.carnator-row')].map(row =>
  [row, ...row.querySelectorAll('.carnator-thumb, .carnator-prompt, .carnator-about > .carnator-faint, .carnator-icon')]
    .map(e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }))"""
COLOURS = """() => {
  const root = document.querySelector('.carnator-bank');
  let behind = root;
  while (/^rgba\\(.*, 0\\)$|transparent/.test(getComputedStyle(behind).backgroundColor)) behind = behind.parentElement;
  const back = getComputedStyle(behind).backgroundColor;
  const solid = colour => {  // a colour as it looks on the panel
    const paint = document.createElement('canvas').getContext('2d');
    for (const one of [back, colour]) { paint.fillStyle = one; paint.fillRect(0, 0, 1, 1); }
    return `rgb(${[...paint.getImageData(0, 0, 1, 1).data].slice(0, 3).join(', ')})`;
  };
  return ['.carnator-prompt', '.carnator-faint', '.carnator-totals', 'footer .carnator-button']
    .map(one => [one, solid(getComputedStyle(root.querySelector(one)).color), solid(back)]);
}"""
# From the click on the tab to the first thumbnail that is drawn.
FIRST_PICTURE = """async name => {
  const tab = [...document.querySelectorAll('button, a')].find(e => e.getAttribute('aria-label') === name);
  const began = performance.now();
  tab.click();
  while (![...document.querySelectorAll('.carnator-row img')].some(i => i.complete && i.naturalWidth)) {
    if (performance.now() - began > 20000) throw new Error('no thumbnail after 20 s');
    await new Promise(requestAnimationFrame);
  }
  return performance.now() - began;
}"""


def picture(number: int) -> tuple[str, Any]:
    """A prompt and the last frame of its clip in the demo's world, [h, w, 3] uint8."""
    from carnator.demo.world import caption, random_scene, render

    scene = random_scene(random.Random(number))
    video, _ = render(scene)
    return caption(scene), (video[:, -1].movedim(0, -1) * 255).round().byte().contiguous()


def render_of(number: int, **changes: Any) -> Any:
    prompt, thumbnail = picture(number)
    facts = {"seed": number, "steps": 30, "seconds": 40.0 + number, "created": 1.79e9 + 3600.0 * number}
    return history(number, **{"prompt": prompt, "thumbnail": thumbnail, "facts": facts, **changes})


@pytest.fixture(scope="module")
def home(host: Any) -> Path:
    """The folder of the host's banks."""
    return Path(host.base) / "user" / "carnator"


@pytest.fixture
def bank(home: Path) -> Iterator[Bank]:
    """The bank that workflows use which name none: twelve renders, some of use, with three hits to judge."""
    shutil.rmtree(home / "default", ignore_errors=True)
    made = Bank.open(home / "default", reserve_bytes=0)
    ids = [made.add(render_of(i)) for i in range(11)]
    long = ", ".join(["a close-up of an old lighthouse keeper who climbs a spiral staircase"] * 4)
    ids.append(made.add(render_of(11, prompt=long, thumbnail=None)))
    for i, entry in enumerate(ids[:5]):
        for _ in range(i):
            made.touch(entry, 31.0 * i)
    made.pin(ids[2])
    for i in (2, 3, 4):
        verdicts.note(made, hit(i, history=ids[i], history_prompt=picture(i)[0], prompt=picture(50 + i)[0], saved=31.0 * i))
    yield made
    made.close()


@pytest.fixture
def tab(screen: Screen, bank: Bank) -> Iterator[Screen]:
    """The page with the bank browser open."""
    toggle(screen)
    screen.page.locator(f"{BANK} .carnator-row").first.wait_for()
    yield screen
    if screen.page.locator(BANK).count():
        toggle(screen)


def toggle(screen: Screen) -> None:
    screen.page.get_by_role("button", name=TAB).or_(screen.page.get_by_role("tab", name=TAB)).first.click(timeout=PATIENCE)


def rows(screen: Screen) -> list[str]:
    return screen.page.locator(f"{BANK} .carnator-row .carnator-prompt").all_inner_texts()  # type: ignore[no-any-return]


def apart(boxes: list[list[float]]) -> bool:
    """Whether boxes [left, top, right, bottom] do not overlap; a pixel is rounding."""
    return all(
        a[2] <= b[0] + 1 or b[2] <= a[0] + 1 or a[3] <= b[1] + 1 or b[3] <= a[1] + 1
        for i, a in enumerate(boxes) for b in boxes[i + 1 :]
    )  # fmt: skip


def test_it_shows_what_is_remembered(tab: Screen, bank: Bank) -> None:
    page = tab.page
    newest = [c.prompt for c in sorted(bank.entries(), key=lambda c: -c.created)]
    page.wait_for_function("() => [...document.querySelectorAll('.carnator-row img')].every(i => i.naturalWidth > 0)")
    assert rows(tab) == newest[: len(rows(tab))] and len(rows(tab)) >= 4
    head = page.locator(f"{BANK} header").inner_text()
    saved = sum(c.seconds_saved for c in bank.entries())
    assert "12 renders" in head and "10 hits" in head and f"{saved / 60:.0f} min saved" in head
    assert re.search(r"KB of 20 GB, \d+(\.\d)? [GT]B free", head)
    for theme in ("light", "dark"):
        tab.theme(theme)
        tab.shoot(f"bank-{theme}")
        too_faint = {one: c for one, *pair in page.evaluate(COLOURS) if (c := contrast(*pair)) < 4.5}
        assert not too_faint, theme
    parts = page.evaluate(BOXES)
    assert apart([p[1:] for p in parts]) and all(p[1] >= 0 and p[4] <= 720 for p in parts), parts
    for whole, *inner in page.evaluate(ROW_BOXES):
        assert apart(inner) and all(i[1] >= whole[1] and i[3] <= whole[3] + 1 and i[2] <= whole[2] + 1 for i in inner)
    assert tab.complaints() == []


def test_search_and_order(tab: Screen, bank: Bank) -> None:
    page = tab.page
    page.get_by_label("Search prompts").fill("lighthouse STAIRCASE")
    page.wait_for_function("() => document.querySelectorAll('.carnator-row').length === 1")
    assert rows(tab)[0].startswith("a close-up of an old lighthouse")
    page.get_by_label("Search prompts").fill("nobody wrote this")
    page.get_by_text("No remembered prompt has these words.").wait_for()
    page.get_by_label("Search prompts").fill("")
    page.locator(f"{BANK} .carnator-row").nth(3).wait_for()
    page.get_by_label("Order").select_option("saved")
    best = max(bank.entries(), key=lambda c: c.seconds_saved)
    first = "text => document.querySelector('.carnator-row .carnator-prompt').innerText === text"
    page.wait_for_function(first, arg=best.prompt)
    assert "reused 4x" in page.locator(f"{BANK} .carnator-row").first.inner_text()
    assert tab.complaints() == []


def test_the_keyboard_is_enough(tab: Screen, bank: Bank) -> None:
    """Arrow keys go from row to row, P pins, Delete forgets after a question, and the graph hears none of it."""
    page = tab.page
    newest = sorted(bank.entries(), key=lambda c: -c.created)
    page.locator(f"{BANK} .carnator-row").first.focus()
    at = "() => document.activeElement.closest('.carnator-row')?.getAttribute('aria-posinset')"
    for key, place in (("ArrowDown", "2"), ("ArrowDown", "3"), ("ArrowUp", "2"), ("End", "12"), ("Home", "1"), ("ArrowDown", "2")):
        page.keyboard.press(key)
        assert page.evaluate(at) == place
    page.keyboard.press("p")
    page.wait_for_function("() => document.querySelector('[aria-posinset=\"2\"] [aria-pressed]').ariaPressed === 'true'")
    assert {c.id for c in bank.entries() if c.pinned} >= {newest[1].id}
    page.keyboard.press("Delete")
    page.get_by_role("dialog").wait_for()
    tab.shoot("bank-forget-one")
    page.get_by_role("dialog").get_by_role("button", name=re.compile("delete|confirm", re.I)).first.click()
    page.wait_for_function("() => document.querySelector('.carnator-row').getAttribute('aria-setsize') === '11'")
    assert newest[1].id not in {c.id for c in bank.entries()} and len(bank.entries()) == 11
    assert tab.complaints() == []


def test_hits_are_judged(tab: Screen, bank: Bank) -> None:
    page = tab.page
    hits = page.locator(f"{BANK} .carnator-hits li")
    assert hits.count() == 3 and hits.first.locator("img").count() == 1
    for press, word, kept in ((0, "Wrong scene", False), (1, "Kept the scene", True)):
        pressed = hits.nth(press).get_by_role("button", name=word)
        pressed.click()
        page.wait_for_function("e => e.ariaPressed === 'true'", arg=pressed.element_handle())
        assert [label.kept for label in verdicts.labels(bank.folder)][-1] == kept
    tab.shoot("bank-judged")
    hits.nth(1).get_by_role("button", name="Kept the scene").click()  # pressed again: withdrawn
    page.wait_for_function("e => e.querySelector('[data-said=kept]').ariaPressed === 'false'", arg=hits.nth(1).element_handle())
    (label,) = verdicts.labels(bank.folder)
    assert not label.kept and label.hit.prompt == picture(54)[0]
    assert tab.complaints() == []


def test_export_forget_all_import(tab: Screen, bank: Bank, tmp_path: Path) -> None:
    page = tab.page
    with page.expect_download() as saving:
        page.get_by_role("button", name="Export", exact=True).click()
    file = tmp_path / "saved.bank"
    saving.value.save_as(file)
    assert file.stat().st_size > bank.total_bytes()
    page.get_by_role("button", name="Forget all").click()
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    assert "All 12 remembered renders" in dialog.inner_text()
    tab.shoot("bank-forget-all")
    dialog.get_by_role("button", name=re.compile("delete|confirm", re.I)).first.click()
    page.get_by_text("Nothing is remembered yet.").wait_for()
    assert bank.entries() == [] and verdicts.hits(bank.folder) == []
    tab.shoot("bank-empty")
    page.locator(f"{BANK} input[type=file]").set_input_files(file)
    page.get_by_text("12 renders taken in").wait_for()
    page.locator(f"{BANK} .carnator-row").first.wait_for()
    assert len(bank.entries()) == 12
    assert tab.complaints() == []


def test_a_thousand_renders(screen: Screen, home: Path) -> None:
    """The first thumbnails are there within a second, with nothing in the browser's cache; only what is seen exists."""
    place = home / "default"
    shutil.rmtree(place, ignore_errors=True)
    made = Bank.open(place, reserve_bytes=0)
    for i in range(25):
        made.add(render_of(i))
    kinds = sorted((place / "entries").iterdir())
    for i in range(1000 - len(kinds)):
        shutil.copytree(kinds[i % len(kinds)], place / "entries" / f"{i:024x}")
    assert len(made.entries()) == 1000
    screen.host.get("/carnator/overview?bank=default")  # a host that has looked at its bank before, as after any render
    page = screen.page
    network = page.context.new_cdp_session(page)
    took = []
    for _ in range(5):
        network.send("Network.clearBrowserCache")
        took.append(page.evaluate(FIRST_PICTURE, TAB))
        if took[-1] < 1000:
            break
        toggle(screen)
    assert min(took) < 1000, f"milliseconds to the first thumbnail: {took}"
    assert page.locator(f"{BANK} .carnator-row").count() < 40
    page.locator(f"{BANK} .carnator-list").evaluate("e => { e.scrollTop = e.scrollHeight; }")
    page.locator(f'{BANK} [aria-posinset="1000"]').wait_for()
    assert page.locator(f"{BANK} .carnator-row").count() < 40
    page.wait_for_function("() => [...document.querySelectorAll('.carnator-row img')].every(i => i.naturalWidth > 0)")
    screen.shoot("bank-thousand")
    toggle(screen)
    made.clear()
    made.close()
    assert screen.complaints() == []


def open_settings(screen: Screen) -> Any:
    page = screen.page
    page.keyboard.press("Control+,")
    dialog = page.get_by_role("dialog")
    dialog.wait_for()
    dialog.get_by_text("Carnator", exact=True).first.click()
    dialog.get_by_text("Bank for workflows that name none").wait_for()
    return dialog


def test_settings(screen: Screen, home: Path) -> None:
    """The dialog's values reach the server and new nodes; what a workflow states stays."""
    page, name = screen.page, f"films {screen.renderer}"
    dialog = open_settings(screen)
    for theme in ("light", "dark"):
        screen.theme(theme)
        screen.shoot(f"settings-{theme}")
    page.keyboard.press("Escape")
    values = {
        "Carnator.Bank.Name": name, "Carnator.Bank.Budget": 3.5, "Carnator.Node.Pace": "careful", "Carnator.Node.Remember": False,
    }  # fmt: skip
    before = {key: page.evaluate("id => app.extensionManager.setting.get(id)", key) for key in values}
    try:
        for key, value in values.items():
            page.evaluate("([id, to]) => app.extensionManager.setting.set(id, to)", [key, value])
        until = time.monotonic() + 30
        while screen.host.get("/carnator/settings") != {"bank": name, "budget_gb": 3.5}:
            assert time.monotonic() < until, "the server never heard of the new bank"
            time.sleep(0.2)
        new = page.evaluate("""() => Object.fromEntries(['CarnatorReuse', 'CarnatorBankLoader'].map(type =>
          [type, Object.fromEntries(LiteGraph.createNode(type).widgets.map(w => [w.name, w.value]))]))""")
        assert new["CarnatorReuse"]["pace"] == "careful" and new["CarnatorReuse"]["remember"] is False
        assert new["CarnatorReuse"]["noise"] == "any seed (fastest)"
        loader = {"name": name, "budget_gb": 3.5, "policy": "read only"}
        assert {k: new["CarnatorBankLoader"][k] for k in loader} == loader
        screen.open("carnator_demo")  # states everything
        stated = page.evaluate("""() => Object.fromEntries(app.rootGraph.nodes.find(n => n.type === 'CarnatorBankLoader')
          .widgets.map(w => [w.name, w.value]))""")
        assert stated["name"] != name and stated["policy"] == "read and remember"
        page.evaluate("id => app.extensionManager.setting.set(id, '../elsewhere')", "Carnator.Bank.Name")
        page.get_by_text("cannot be used").first.wait_for()
        assert screen.host.get("/carnator/settings")["bank"] == name
    finally:
        for key, value in before.items():
            page.evaluate("([id, to]) => app.extensionManager.setting.set(id, to)", [key, value])
        screen.host.post("/carnator/settings", {"bank": "default", "budget_gb": 20})
    assert dialog is not None and [s for s in screen.complaints() if "400" not in s[1]] == []
