"""Hostile requests to every route: never a 500, no file outside the banks' folder touched, no change by anything but POST.

What a thread of the routes opens, makes, moves or removes is seen by an audit hook, so a read elsewhere shows even where
its answer does not.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from bank_world import history
from carnator.carnator_core import verdicts
from carnator.carnator_core.bank import Bank
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import Served, serve
from test_verdicts import hit

pytestmark = pytest.mark.host
SECRET = b"nobody may read this"
TOUCHES = {
    "open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "os.scandir", "shutil.rmtree", "sqlite3.connect",
}  # fmt: skip
seen: list[tuple[str, str]] = []
watched: list[Path] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if watched and event in TOUCHES and threading.current_thread().name.startswith("carnator-"):
        paths = arguments[: 2 if event == "os.rename" else 1]
        seen.extend((event, os.fsdecode(path)) for path in paths if isinstance(path, (str, bytes, Path)))


def strangers(root: Path) -> list[tuple[str, str]]:
    """What was touched outside of the banks' folder; Python's own modules aside, which it loads where it first needs them."""
    code = [Path(p).resolve() for p in (sys.prefix, sys.base_prefix, Path(__file__).parent.parent)]
    found, seen[:] = list(seen), []
    there = [(event, Path(os.path.abspath(path))) for event, path in found if not path.startswith((":memory:", "<"))]
    return [
        (event, str(path)) for event, path in there
        if not path.is_relative_to(root) and not (event == "open" and any(path.is_relative_to(c) for c in code))
        and not root.is_relative_to(path)
    ]  # fmt: skip


def kept(root: Path) -> dict[str, str]:
    """All that lasts under a folder: the index aside, in which readers leave their marks."""
    files = [p for p in sorted(root.rglob("*")) if p.is_file() and not p.name.startswith("index.sqlite")]
    return {str(p.relative_to(root)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def served(comfy: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    from carnator.nodes import banks

    user = tmp_path_factory.mktemp("fuzz")
    root = user / "carnator"
    (user / "secret.txt").write_bytes(SECRET)
    (root / "profiles").mkdir(parents=True)
    (root / "profiles" / "mine.json").write_bytes(SECRET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(banks, "home", lambda: root)
        patch.setattr(banks, "root", lambda: root)
        sys.addaudithook(_watch)
        watched.append(root)
        with serve(root) as running:
            yield running
        watched.clear()


def filled(served: Served) -> tuple[str, str, bytes]:
    """Ids of an entry and of a hit of the bank 'default', and its export; filled again where a request has emptied it."""
    bank = Bank.open(served.root / "default", reserve_bytes=0)
    if not bank.entries():
        for i in range(2):
            bank.add(history(i))
    if not verdicts.hits(bank.folder):
        verdicts.note(bank, hit(1))
    ids = bank.entries()[0].id, verdicts.hits(bank.folder)[0].id
    bank.close()
    return *ids, served.get("export", bank="default").body


HOSTILE = [
    "..", ".", "/", "\\", "../secret.txt", "..%2f..%2fsecret.txt", "/etc/passwd", "C:\\", "\\\\host\\share", "default/../default",
    "default\x00", "\x00", "%00", "\r\nX: y", "\ud800", "\U0001f98a" * 30, "con", "profiles", "settings", "entries", "a" * 5000, "",
    " ", "default ", "Default", "true", "null", "-1", "1e9", "0x10", "\u0661", "9" * 400, "NaN", "'; drop table entries; --",
]  # fmt: skip
NO_NAMES = ("..", ".", "/", "../secret.txt", "profiles", "con", "\x00", "default/../default", "default ", "", "a" * 5000)
GET = ("banks", "overview", "entries", "thumbnail", "export", "settings")
POST = ("pin", "remove", "forget", "verdict", "import", "settings")
NAMES = ("bank", "entry", "entries", "hit", "said", "pinned", "search", "sort", "offset", "limit", "budget_gb", "x")
texts = st.one_of(st.sampled_from([*HOSTILE, "default", "ENTRY", "HIT", "kept", "newest", "2"]), st.text(max_size=20))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), texts),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=6,
)
right = {"bank": "default", "entry": "ENTRY", "entries": ["ENTRY"], "hit": "HIT"}
nearly = {name: st.just(value) for name, value in right.items()} | {"said": texts, "pinned": values, "budget_gb": values}
bodies = st.one_of(
    st.binary(max_size=200),
    st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, values)).map(lambda v: json.dumps(v).encode()),
    st.fixed_dictionaries({}, optional=nearly).map(lambda v: json.dumps(v).encode()),
    st.sampled_from([
        b"[" * 5000, b'{"bank":"default","bank":"x"}', b'{"bank":1e999}', b"\xff\xfe{}", b"9" * 5000, b'{"bank":"\\ud800"}',
        b"x" * 70_000,
    ]),
    st.integers(0, 400).map(lambda cut: b"EXPORT%d" % cut),
)  # fmt: skip
FIELDS = [
    "Content-Type", "Content-Encoding", "Accept-Encoding", "If-None-Match", "Range", "Expect", "Cookie", "X-HTTP-Method-Override",
    "Content-Length", "Transfer-Encoding", "Upgrade", "Connection", "Sec-Fetch-Site", "Accept", "If-Modified-Since",
]  # fmt: skip
SAID = [
    "application/json", "application/x-carnator-bank", "application/json; charset=\xff", "text/plain", "multipart/form-data",
    "gzip", "deflate", "identity", "br", "chunked", "bytes=0-1", "100-continue", "DELETE", "0", "-5", "99999999999999", "*",
    '"x"', "websocket", "same-origin", "/", ";;;", "close",
]  # fmt: skip
latin = st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=30)
# An Expect that is no ASCII breaks aiohttp itself, before any route is asked.
headers = st.dictionaries(st.sampled_from(FIELDS), st.sampled_from(SAID) | latin, max_size=4).filter(
    lambda said: said.get("Expect", "").isascii())
paths = st.one_of(
    st.sampled_from([*GET, *POST]),
    st.tuples(st.sampled_from([*GET, *POST]), texts).map(lambda p: f"{p[0]}/{p[1]}"),
    texts,
)
queries = st.lists(st.tuples(st.sampled_from(NAMES), texts), max_size=5)
METHODS = st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "FOO"])


def send(port: int, request: bytes) -> bytes:
    """Raw bytes to the server, and all that comes back; "" where it only hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as line:
        try:
            line.sendall(request)
            line.shutdown(socket.SHUT_WR)
            answer = b""
            while part := line.recv(65536):
                answer += part
        except ConnectionError:
            return b""
        return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(METHODS, paths, queries, headers, bodies, st.booleans(), st.booleans())
def test_hostile_requests(served: Served, method: str, path: str, query: list[tuple[str, str]], named: dict[str, str], body: bytes,
                          zipped: bool, quoted: bool) -> None:
    entry, waiting, export = filled(served)

    def known(text: str) -> str:
        return text.replace("ENTRY", entry).replace("HIT", waiting)

    def spelt(text: str) -> bytes:
        told = known(text).encode("utf-8", "surrogatepass")
        return quote(told, safe="").encode() if quoted else told.replace(b" ", b"+").replace(b"\r", b"").replace(b"\n", b"")

    if body.startswith(b"EXPORT"):
        cut = int(body[6:])
        body = export[: len(export) * cut // 300]
    body = body.replace(b"ENTRY", entry.encode()).replace(b"HIT", waiting.encode())
    if zipped:
        body = gzip.compress(body)
    target = b"/carnator/" + (path.encode() if path in GET + POST else spelt(path))
    line = target + b"?" + b"&".join(spelt(k) + b"=" + spelt(v) for k, v in query)
    lines = {"Host": "127.0.0.1", "Content-Length": str(len(body)), "Connection": "close"} | named
    head = b"".join(k.encode() + b": " + v.encode("latin-1", "replace") + b"\r\n" for k, v in lines.items())
    before = kept(served.root) if method != "POST" else {}
    seen.clear()
    answer = send(served.port, method.encode() + b" " + line + b" HTTP/1.1\r\n" + head + b"\r\n" + body)
    assert status(answer) < 500, answer[:300]
    assert SECRET not in answer
    assert strangers(served.root) == []
    if method != "POST":
        assert kept(served.root) == before
    assert (served.root.parent / "secret.txt").read_bytes() == SECRET
    assert (served.root / "profiles" / "mine.json").read_bytes() == SECRET
    assert sorted(p.name for p in served.root.parent.iterdir()) == ["carnator", "secret.txt"]


WANTS = {
    "pin": ("bank", "entry", "pinned"), "remove": ("bank", "entries"), "forget": ("bank",), "verdict": ("bank", "hit", "said"),
    "settings": ("bank", "budget_gb"), "thumbnail": ("bank", "entry"), "export": ("bank", "entry"), "overview": ("bank",),
    "entries": ("bank", "search", "sort", "offset", "limit"), "import": ("bank",),
}  # fmt: skip


@pytest.mark.parametrize("name", WANTS)
def test_every_value_of_every_route_is_checked(served: Served, name: str) -> None:
    """Each name that a route knows, in turn with each hostile value, the others right."""
    wants = WANTS[name]
    for wrong in wants:
        for value in (*HOSTILE, None):
            entry, waiting, export = filled(served)
            good: dict[str, Any] = {"bank": "default", "entry": entry, "entries": [entry], "hit": waiting}
            good |= {"said": "kept", "pinned": True, "budget_gb": 20.0}
            given = {k: v for k, v in {**good, wrong: value}.items() if k in wants}
            seen.clear()
            if name == "import":
                target = "/carnator/import?bank=" + quote((value or "").encode("utf-8", "surrogatepass"))
                answer = served.ask("POST", target, export, {"Content-Type": "application/x-carnator-bank"})
            elif name in POST:
                answer = served.post(name, **given)
            else:
                coded = [f"{k}={quote(str(v).encode('utf-8', 'surrogatepass'))}" for k, v in given.items() if v is not None]
                answer = served.ask("GET", f"/carnator/{name}?" + "&".join(coded))
            assert answer.status < 500 and SECRET not in answer.body, (wrong, value, answer)
            # A search may be anything; a name may be a free one; a number may be small; what is left out has its default.
            fine = wrong in ("search", "bank", "offset", "limit") or (wrong, value) in (("sort", None), ("entry", None))
            assert answer.status >= 400 or fine, (wrong, value, answer)
            if wrong == "bank" and value in NO_NAMES:
                assert answer.status == 400, (value, answer)
            assert strangers(served.root) == [], (wrong, value)
