"""The routes behind the bank browser: what they answer, what they refuse, and that they reach nothing but the bank."""

from __future__ import annotations

import dataclasses
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from bank_world import history
from carnator.carnator_core import verdicts
from carnator.carnator_core.bank import Bank
from PIL import Image
from serving import JSON, Served, serve
from test_verdicts import hit

pytestmark = pytest.mark.host
BANK_TYPE = {"Content-Type": "application/x-carnator-bank"}


@pytest.fixture
def served(comfy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    from carnator.nodes import banks

    root = tmp_path / "user" / "carnator"
    monkeypatch.setattr(banks, "home", lambda: root)
    monkeypatch.setattr(banks, "root", lambda: root)
    monkeypatch.setattr(banks, "_budgets", {})
    with serve(root) as running:
        yield running


@pytest.fixture
def bank(served: Served) -> Bank:
    """The bank 'default' with three renders."""
    made = Bank.open(served.root / "default", reserve_bytes=0)
    for i, prompt in enumerate(("a red fox in snow", "a blue ball", "A Red ball \U0001f98a \u96ea")):
        made.add(history(i, prompt=prompt, facts={"seed": 2**63 + i, "steps": 30, "seconds": 10.0, "created": 1000.0 + i}))
    return made


def prompts(answer: Any) -> list[str]:
    return [e["prompt"] for e in answer.json["entries"]]


def test_a_bank_that_is_not_there_is_empty(served: Served) -> None:
    assert served.get("banks").json == {"banks": ["default"], "default": "default"}
    assert served.get("entries", bank="default").json == {"total": 0, "offset": 0, "entries": []}
    seen = served.get("overview", bank="new one").json
    assert seen["renders"] == seen["bytes"] == seen["hits"] == 0 and seen["last_hits"] == []
    assert seen["budget_bytes"] == 20e9 and seen["free_bytes"] > 0
    assert not served.root.exists()


def test_a_bank_that_cannot_be_read_is_not_shown_as_empty(served: Served) -> None:
    served.root.mkdir(parents=True)
    (served.root / "default").write_text("a file")
    for name in ("entries", "overview", "export"):
        answer = served.get(name, bank="default")
        assert answer.status == 409 and answer.json["error"].startswith("the bank cannot be read: "), name


def test_entries_are_found_sorted_and_cut(served: Served, bank: Bank) -> None:
    newest = served.get("entries", bank="default")
    assert prompts(newest) == ["A Red ball \U0001f98a \u96ea", "a blue ball", "a red fox in snow"]
    assert prompts(served.get("entries", bank="default", sort="oldest")) == prompts(newest)[::-1]
    assert prompts(served.get("entries", bank="default", search="BALL red")) == prompts(newest)[:1]
    cut = served.get("entries", bank="default", offset=1, limit=1).json
    assert cut["total"] == 3 and cut["offset"] == 1 and [e["prompt"] for e in cut["entries"]] == ["a blue ball"]
    first = newest.json["entries"][0]
    assert first["seed"] == str(2**63 + 2) and first["steps"] == 30 and first["seconds"] == 10.0 and first["bytes"] > 1000
    bank.touch(bank.entries()[0].id, 4.5)
    assert prompts(served.get("entries", bank="default", sort="saved"))[0] == "a red fox in snow"
    assert served.get("overview", bank="default").json["seconds_saved"] == 4.5
    assert served.get("banks").json["banks"] == ["default"]


def test_an_answer_is_bounded(served: Served) -> None:
    made = Bank.open(served.root / "default", reserve_bytes=0)
    made.add(history(prompt="x" * 5000))
    (entry,) = served.get("entries", bank="default").json["entries"]
    assert len(entry["prompt"]) == 600
    assert served.get("entries", bank="default", limit=201).status == 400
    assert served.get("entries", bank="default", search="x" * 201).status == 400


def test_a_thumbnail_is_small_and_kept_for_ever(served: Served, bank: Bank) -> None:
    pixels = torch.zeros(600, 900, 3, dtype=torch.uint8)
    pixels[..., 0] = 200
    entry = bank.add(history(9, thumbnail=pixels))
    answer = served.get("thumbnail", bank="default", entry=entry)
    picture = Image.open(io.BytesIO(answer.body))
    assert answer.status == 200 and picture.format == "JPEG" and picture.size == (256, 171)
    red, green, _ = picture.getpixel((100, 80))  # type: ignore[misc]
    assert abs(red - 200) < 12 and green < 12
    assert "immutable" in answer.headers["cache-control"] and "private" in answer.headers["cache-control"]
    again = served.get("thumbnail", {"If-None-Match": answer.headers["etag"]}, bank="default", entry=entry)
    assert again.status == 304 and again.body == b""


def test_a_render_without_a_thumbnail(served: Served, bank: Bank) -> None:
    entry = bank.add(history(9, thumbnail=None))
    assert served.get("thumbnail", bank="default", entry=entry).status == 204
    assert served.get("thumbnail", bank="default", entry="0" * 24).status == 404


def test_pin_and_remove(served: Served, bank: Bank) -> None:
    first, second, third = (card.id for card in bank.entries())
    assert served.post("pin", bank="default", entry=first, pinned=True).json == {"pinned": True}
    assert [c.pinned for c in bank.entries()] == [True, False, False]
    assert prompts(served.get("entries", bank="default", sort="pinned"))[0] == "a red fox in snow"
    assert served.post("remove", bank="default", entries=[second, third]).json == {"removed": 2}
    assert [c.id for c in bank.entries()] == [first]
    assert served.post("remove", bank="default", entries=[second]).status == 404
    assert served.post("pin", bank="default", entry=second, pinned=True).status == 404


def test_forgetting_all_leaves_neither_renders_nor_prompts(served: Served, bank: Bank) -> None:
    bank.pin(bank.entries()[0].id)
    made = hit()
    verdicts.note(bank, made)
    verdicts.say(bank, made.id, "kept", 1.0)
    assert served.post("forget", bank="default").json == {"forgotten": True}
    assert bank.entries() == [] and verdicts.labels(bank.folder) == []
    left = b"".join(p.read_bytes() for p in bank.folder.rglob("*.json*"))
    assert left == b""


def test_a_hit_is_judged(served: Served, bank: Bank) -> None:
    entry = bank.entries()[0].id
    one, other = hit(1, history=entry, prompt="a red wolf in snow"), hit(2)
    for made in (one, other):
        verdicts.note(bank, made)
    newest, oldest = served.get("overview", bank="default").json["last_hits"]
    assert (newest["id"], newest["history"], newest["said"]) == (other.id, "", "")  # its history is gone
    assert (oldest["id"], oldest["history"], oldest["prompt"]) == (one.id, entry, "a red wolf in snow")
    assert served.post("verdict", bank="default", hit=one.id, said="wrong").json == {"said": "wrong"}
    (label,) = verdicts.labels(bank.folder)
    assert label.hit == one and not label.kept and abs(label.date - time.time()) < 60
    assert served.get("overview", bank="default").json["last_hits"][1]["said"] == "wrong"
    assert served.post("verdict", bank="default", hit=one.id, said="withdrawn").json == {"said": ""}
    assert verdicts.labels(bank.folder) == []
    assert served.post("verdict", bank="default", hit="f" * 24, said="kept").status == 404
    assert served.post("verdict", bank="default", hit=one.id, said="good").status == 400


def test_a_bank_travels(served: Served, bank: Bank) -> None:
    whole = served.get("export", bank="default")
    assert whole.status == 200 and whole.headers["content-disposition"] == "attachment"
    assert served.ask("POST", "/carnator/import?bank=copy", whole.body, BANK_TYPE).json == {"imported": 3}
    copy = Bank.open(served.root / "copy")
    assert [c.prompt for c in copy.entries()] == [c.prompt for c in bank.entries()]
    assert served.ask("POST", "/carnator/import?bank=copy", whole.body, BANK_TYPE).json == {"imported": 0}
    one = bank.entries()[1].id
    part = served.get("export", bank="default", entry=one)
    assert served.ask("POST", "/carnator/import?bank=part", part.body, BANK_TYPE).json == {"imported": 1}
    assert [c.id for c in Bank.open(served.root / "part").entries()] == [one]
    assert served.get("export", bank="nothing").status == 404
    assert served.get("export", bank="default", entry="0" * 24).status == 404


def test_a_bad_file_is_refused_and_leaves_nothing(served: Served, bank: Bank) -> None:
    good = served.get("export", bank="default").body
    for i, bad in enumerate((b"", b"PK\x03\x04", good[:-1], good[: len(good) // 2], good.replace(b"a blue", b"a glue"))):
        answer = served.ask("POST", f"/carnator/import?bank=other-{i}", bad, BANK_TYPE)
        assert answer.status == 409 and answer.json["error"], bad[:20]
        assert len(Bank.open(served.root / f"other-{i}").entries()) < 3
        assert not list((served.root / f"other-{i}").glob("staging/*"))
    unasked = served.ask("POST", "/carnator/import?bank=other", good, {"Content-Type": "text/plain"})
    assert unasked.status == 415


def test_a_date_that_no_database_holds_is_refused(served: Served, bank: Bank) -> None:
    """A crafted header with a sound checksum: the values themselves have to be checked."""
    import hashlib

    from carnator.carnator_core.bank.strictjson import dumps

    entry = bank.entries()[0].id
    header = bank.folder / "entries" / entry / "entry.json"
    body = json.loads(header.read_bytes())
    body.pop("checksum")
    for created in (10**30, -1, 1e300):
        crafted = {**body, "created": created}
        header.write_bytes(dumps({**crafted, "checksum": hashlib.sha256(dumps(crafted)).hexdigest()}))
        stream = io.BytesIO()
        from carnator.carnator_core.bank import exchange
        from carnator.carnator_core.bank.format import Header

        fields = {f.name for f in dataclasses.fields(Header)}
        stream.write(exchange.MAGIC)
        exchange.write_entry(stream, entry, header.parent, Header(**{k: v for k, v in crafted.items() if k in fields}))
        answer = served.ask("POST", "/carnator/import?bank=other", stream.getvalue(), BANK_TYPE)
        assert answer.status == 409 and "date" in answer.json["error"], created


def test_an_import_never_drives_out_what_is_there(served: Served, bank: Bank) -> None:
    from carnator.nodes import banks

    kept = Bank.open(served.root / "small", reserve_bytes=0).add(history(50, prompt="mine"))
    exported = served.get("export", bank="default").body
    small = banks.open_bank("small", 3.9 * bank.entries()[0].bytes / 1e9)
    answer = served.ask("POST", "/carnator/import?bank=small", exported, BANK_TYPE)
    assert answer.status == 409 and "raise the budget" in answer.json["error"]
    assert kept in {c.id for c in small.entries()} and len(small.entries()) == 3
    banks.open_bank("small", 1e-6)
    assert served.ask("POST", "/carnator/import?bank=small", exported, BANK_TYPE).status == 413


def test_two_at_most_are_moved_at_once(served: Served, bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.nodes.routes import handlers

    monkeypatch.setattr(handlers, "MOVES_AT_ONCE", 0)
    assert served.get("export", bank="default").status == 429
    assert served.ask("POST", "/carnator/import?bank=other", b"", BANK_TYPE).status == 429


def test_settings_are_kept_and_used(served: Served) -> None:
    from carnator.nodes import defaults

    assert served.get("settings").json == {"bank": "default", "budget_gb": 20.0}
    assert served.post("settings", bank="films \u96ea", budget_gb=3).json == {"bank": "films \u96ea", "budget_gb": 3}
    opened = defaults.open_bank()
    assert opened.folder == served.root / "films \u96ea" and opened.budget_bytes == 3_000_000_000
    assert served.get("banks").json == {"banks": ["films \u96ea"], "default": "films \u96ea"}
    for wrong in ({"bank": "../x"}, {"bank": 3}, *({"budget_gb": b} for b in ("much", -1, 1e99, True, None))):
        answer = served.post("settings", **{"bank": "films", "budget_gb": 3, **wrong})
        assert answer.status == 400 and answer.json["error"], wrong
    assert served.get("settings").json["bank"] == "films \u96ea"
    (served.root / defaults.FILE).write_bytes(b'{"bank": "../../etc"}')
    assert defaults.read() == defaults.Defaults()


NO_NAMES = ["../default", "a/b", "a\\b", "..", ".", "", " a", "a\x00", "\ud800", "CON", "lpt1", "x" * 65, "\U00020000" * 64]


@pytest.mark.parametrize("name", NO_NAMES)
def test_what_is_not_a_bank_s_name(name: str, comfy: Any) -> None:
    from carnator.nodes import banks

    try:
        assert banks.check_name(name)
    except UnicodeEncodeError:
        pytest.fail("the check itself fails")
    with pytest.raises(ValueError, match="cannot be used"):
        banks.folder(name)


def test_a_plain_form_changes_nothing(served: Served, bank: Bank) -> None:
    body = json.dumps({"bank": "default"}).encode()
    for kind in ("application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain", ""):
        for route in ("pin", "remove", "forget", "verdict", "settings", "import?bank=default"):
            assert served.ask("POST", f"/carnator/{route}", body, {"Content-Type": kind}).status == 415, (kind, route)
    assert len(bank.entries()) == 3


def test_another_site_is_refused_by_the_host(served: Served, bank: Bank) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://elsewhere.example"}):
        assert served.get("overview", headers, bank="default").status == 403
        answer = served.ask("POST", "/carnator/forget", b'{"bank":"default"}', {**JSON, **headers})
        assert answer.status == 403 and len(bank.entries()) == 3, headers


def test_every_change_is_a_post(served: Served, bank: Bank) -> None:
    from carnator.nodes.routes.handlers import BankRoutes

    assert {method for method, _, _ in BankRoutes().routes()} == {"GET", "POST"}
    for route in ("pin", "remove", "forget", "verdict", "import"):
        assert served.get(route, bank="default").status == 405
    for route in ("banks", "overview", "entries", "thumbnail", "export"):
        assert served.post(route, bank="default").status == 405
        assert served.ask("HEAD", f"/carnator/{route}?bank=default").status == 405


def test_the_pack_loads_where_there_is_no_server(
    comfy: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    from carnator.nodes import routes

    monkeypatch.setitem(sys.modules, "server", None)
    assert not routes.attach()
    assert "the nodes work as ever" in caplog.text


def test_the_server_takes_the_routes(comfy: Any) -> None:
    """on_load has put them on the host's own table, which the host then copies to /api as it starts."""
    from server import PromptServer

    PromptServer.instance.add_routes()
    there = {(r.method, r.resource.canonical) for r in PromptServer.instance.app.router.routes() if r.resource is not None}
    for prefix in ("", "/api"):
        assert {("GET", f"{prefix}/carnator/entries"), ("POST", f"{prefix}/carnator/forget")} <= there
