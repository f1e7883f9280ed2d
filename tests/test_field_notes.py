"""The list of field notes is whole and its tests exist; and those of its rows that need no host."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from bank_world import history
from carnator.carnator_core.bank import Bank
from field_notes import ROWS, Row

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
COUNTS = {"shapes": 8, "guidance, batch, samplers": 11, "what else is in the graph": 12, "memory, files, processes": 11,
          "prompts": 9}
LOAD = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("carnator", {root!r} + "/__init__.py", submodule_search_locations=[{root!r}])
module = sys.modules["carnator"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
"""


@cache
def functions(file: str) -> dict[str, str]:
    """Tests of a module that are not skipped for good, each with the source of its parameters and of the module's tables."""
    source = (TESTS / f"{file}.py").read_text(encoding="utf-8")
    tree = ast.parse(source)
    tables = "\n".join(ast.get_source_segment(source, n) or "" for n in tree.body if isinstance(n, ast.Assign | ast.AnnAssign))
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = "\n".join(ast.unparse(d) for d in node.decorator_list)
            if "mark.skip(" not in marks and "mark.xfail" not in marks:
                found[node.name] = marks + "\n" + tables
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r.name)
def test_every_row_has_tests_that_exist(row: Row) -> None:
    assert row.tests and row.then
    for test in row.tests:
        file, _, name = test.partition("::")
        name, _, words = name.partition("[")
        assert name in functions(file), test
        assert words.rstrip("]").strip("'\"") in functions(file)[name], f"{test}: no such parameter"


def test_no_row_is_missing() -> None:
    names = [(r.group, r.name) for r in ROWS]
    assert len(set(names)) == len(names)
    assert {g: sum(r.group == g for r in ROWS) for g in COUNTS} == COUNTS


def test_no_file_of_an_entry_is_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where another process maps a file, Windows refuses to open it for writing; entries are written under new names."""
    opened: list[Path] = []
    real = os.open

    def watch(path: object, flags: int, *more: object, **named: object) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).endswith(".safetensors"):
            opened.append(Path(str(path)))
        return real(path, flags, *more, **named)  # type: ignore[arg-type]

    def audit(event: str, given: tuple[object, ...]) -> None:
        if watching and event == "open" and str(given[0]).endswith((".safetensors", "header.json")) and isinstance(given[1], str):
            if set(given[1]) & set("wax+"):
                opened.append(Path(str(given[0])))

    watching = [True]
    monkeypatch.setattr(os, "open", watch)
    sys.addaudithook(audit)
    bank = Bank.open(tmp_path / "bank", 10**9, reserve_bytes=0)
    ids = [bank.add(history(seed)) for seed in (0, 0, 1)]
    bank.touch(ids[0], 1.0)
    bank.pin(ids[1], True)
    bank.load(ids[2])
    watching.clear()
    assert len(set(ids)) == 3, "the same render stored again has a place of its own"
    assert opened and len(set(opened)) == len(opened)
    assert not [p for p in opened if "staging" not in p.parts], "an entry's own folder is never written into"


def test_a_bank_of_any_name_in_a_plain_locale(tmp_path: Path) -> None:
    script = LOAD.format(root=str(ROOT)) + """
sys.path.insert(0, {tests!r})
import logging
from pathlib import Path
logging.basicConfig(level=logging.INFO)
from bank_world import history
from carnator.carnator_core.bank import Bank
folder = Path({folder!r})
def open_bank(folder):
    return Bank.open(folder, 10**9, reserve_bytes=0)
kept = open_bank(folder).add(history(prompt="\\u4e00\\u53ea\\u72d0\\u72f8 \\U0001f98a"))
assert [c.prompt for c in open_bank(folder).entries()] == ["\\u4e00\\u53ea\\u72d0\\u72f8 \\U0001f98a"]
next(folder.glob("entries/*/*.safetensors")).write_bytes(b"cut")
try:
    open_bank(folder).load(kept)
except Exception as error:
    logging.getLogger("carnator").warning("put aside: %s", ascii(str(error)))
print("done")
""".format(tests=str(TESTS), folder=str(tmp_path / "\U0001f98a\u94f6\u884c"))
    plain = {**os.environ, "LC_ALL": "C"}
    (tmp_path / "run.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", str(tmp_path / "run.py")], env=plain, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == b"done\n" and done.stderr.isascii() and b"put aside" in done.stderr


def test_it_loads_without_network_and_without_a_parser(tmp_path: Path) -> None:
    script = LOAD.format(root=str(ROOT)) + """
import importlib, pkgutil
def guard(event, given):
    if event in ("socket.connect", "socket.getaddrinfo", "urllib.Request"):
        raise RuntimeError(f"{event} {given}")
sys.addaudithook(guard)
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("spacy", "en_core_web_sm", "transformers"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Gone())
import carnator.carnator_core as core
names = [m.name for m in pkgutil.walk_packages(core.__path__, core.__name__ + ".")]
for name in names:
    importlib.import_module(name)
from carnator.carnator_core.prompt import parse
found = parse("a red ball on snow")
assert not found.entities and found.reason, found
print(len(names), found.reason)
"""
    (tmp_path / "run.py").write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, "-P", str(tmp_path / "run.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    count, _, reason = done.stdout.partition(" ")
    assert int(count) > 40 and "spacy" in reason.lower()
