"""kill -9 at random points of a store, with a second process reading and writing: nothing torn, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_writers_leave_a_sound_bank() -> None:
    # In memory where there is such a place: a killed process loses nothing that it wrote, so the disk only costs time.
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        report = killed_at_random(Path(folder) / "bank", rounds=15)
    assert (report["lost"], report["torn"], report["wrong"], report["left"]) == ([], [], [], [])
    assert report["killed_while_storing"] >= 5, "the kills did hit stores"
    assert report["here"] >= report["published"] > 0


def killed_at_random(folder: Path, rounds: int) -> dict[str, Any]:
    """The report of bank_kill.py."""
    script = Path(__file__).with_name("bank_kill.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(folder), str(rounds), "7"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report
