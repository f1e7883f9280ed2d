"""On the oldest host that is supported, ComfyUI 0.3.64, as a double: the pack loads, every node registers, its seams hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_nodes_schema import FROZEN

VISIT = Path(__file__).parent / "old_host" / "visit.py"


@pytest.fixture(scope="module")
def visit(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What happened in a process in which nothing but the double is a host."""
    own = {**os.environ, "OLD_HOST_USER": str(tmp_path_factory.mktemp("user")), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-P", str(VISIT)], env=own, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def test_every_node_registers_with_its_inputs(visit: dict[str, Any]) -> None:
    assert {i: tuple(told["inputs"]) for i, told in visit["nodes"].items()} == FROZEN
    assert visit["nodes"]["CarnatorReuse"]["advanced"], "marked in the way that this host takes"


def test_its_wrappers_attach_and_a_miss_is_the_dense_render(visit: dict[str, Any]) -> None:
    assert visit["same"] == [True, True] and visit["untouched"]
    calls, computed, replayed = visit["calls"]
    assert calls == computed == 8 and replayed == 0, "clones of the patched model are patched too, and the second is replayed"
    assert visit["decisions"][:2] == ["miss", "hit"] and visit["prompt"] == "a red ball on snow"


def test_it_steps_aside_and_stops_as_elsewhere(visit: dict[str, Any]) -> None:
    said = [line for line in visit["said"] if line.startswith("dense: ")]
    assert len(said) == 1 and "the positive conditioning carries area" in said[0]
    assert visit["aside"][1] and visit["stopped"]
