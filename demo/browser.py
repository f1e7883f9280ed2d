"""Find a Chromium for the browser tests, or install Debian's where that is possible. Standard library only."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def find_chromium() -> Path | None:
    """The browser that `CARNATOR_CHROMIUM` names, else the first known one on the PATH."""
    if named := os.environ.get("CARNATOR_CHROMIUM"):
        return Path(named)
    return next((Path(found) for name in NAMES if (found := shutil.which(name))), None)


def ensure_chromium(say: Callable[[str], None]) -> str:
    """Install Debian's package `chromium` when there is no browser; "" or the reason why there is none."""
    if find_chromium():
        return ""
    if shutil.which("apt-get") is None:
        return "no chromium on the PATH, and no apt-get to install it with (set CARNATOR_CHROMIUM to a browser)"
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "no chromium on the PATH, and only root can install it (apt-get install chromium)"
    say("Installing chromium for the browser tests (about 0.4 GB).")
    for command in (["update"], ["install", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"]):
        reason = _apt(command, say)
        if reason:
            return f"chromium could not be installed: {reason}"
    return "" if find_chromium() else "apt-get installed chromium but it is not on the PATH"


def _apt(arguments: list[str], say: Callable[[str], None]) -> str:
    """Run apt-get, a line every few seconds; "" or its last word."""
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    process = subprocess.Popen(
        ["apt-get", "-q", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    last, shown = "", time.monotonic()
    for line in process.stdout:
        last = line.strip() or last
        if time.monotonic() - shown > 3:
            say(f"  apt-get {arguments[0]}: {last[:90]}")
            shown = time.monotonic()
    return "" if process.wait() == 0 else last
