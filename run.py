#!/usr/bin/env python3
"""Carnator's one command: set up what it needs, then show the pack, test it, or open it. Standard library only."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

if sys.version_info < (3, 11):  # noqa: UP036 (said here in one line, before an import fails in many)
    sys.exit("carnator: needs Python 3.11 or newer; this is " + sys.version.split()[0])

from demo.browser import ensure_chromium
from demo.setup import DISK_GB, ROOT, Installed, SetupError, cache_root, ensure

# Commands whose modules may or may not be part of this checkout, and what they do.
TOOLS = {
    "explain": "compare two prompts: their entities, what corresponds, and why reuse would be refused",
    "calibrate": "choose the gate's thresholds from labelled pairs and certify them on others",
    "adopt": "put the pack's node into an existing workflow file",
}
STANDALONE = {"adopt"}  # these need the standard library alone, and no set-up


def say(line: str) -> None:
    print(line, flush=True)


def module_of(name: str) -> str | None:
    """The module behind a command: demo.NAME or bench.NAME, whichever the tree has."""
    for package in ("demo", "bench"):
        if (ROOT / package / f"{name}.py").is_file() or (ROOT / package / name / "__main__.py").is_file():
            return f"{package}.{name}"
    return None


def benches() -> list[str]:
    return sorted(p.stem for p in (ROOT / "bench").glob("*.py") if not p.stem.startswith("_"))


def become(installed: Installed, arguments: Sequence[str]) -> NoReturn:
    """Go on as the environment's Python, from the checkout's root; its exit status is ours."""
    command = [str(installed.python), *arguments]
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    environment["PYTHONUNBUFFERED"] = "1"
    os.chdir(ROOT)
    sys.stdout.flush()
    if os.name == "nt":  # there, exec leaves the console to the shell at once
        sys.exit(subprocess.call(command, env=environment))
    os.execve(command[0], command, environment)


def run_module(name: str, arguments: Sequence[str]) -> NoReturn:
    module = module_of(name)
    if module is None:
        sys.exit(f"carnator: this checkout has no {name} (no demo/{name}.py, no bench/{name}.py)")
    become(ensure(say), ["-m", module, *arguments])


def run_here(options: argparse.Namespace) -> NoReturn:
    sys.exit(importlib.import_module(str(module_of(options.command))).main(options.more))


def demo(options: argparse.Namespace) -> NoReturn:
    """Paths are taken from where the person stands, not from the checkout's root."""
    arguments = list(options.more)
    for name in ("json", "out"):
        if getattr(options, name) is not None:
            arguments += [f"--{name}", str(Path(getattr(options, name)).resolve())]
    run_module("demo", arguments)


def test(options: argparse.Namespace) -> NoReturn:
    installed = ensure(say, needs=("pytest", "hypothesis", "playwright"))
    reason = ensure_chromium(say)
    if reason:
        os.environ["CARNATOR_NO_BROWSER"] = reason
        say(f"Browser tests will be skipped: {reason}")
    names_tests = any((ROOT / a.partition("::")[0]).exists() for a in options.more if not a.startswith("-"))
    # -P keeps the checkout's root off the path, where its nodes/ would shadow the host's nodes.py.
    become(installed, ["-P", "-m", "pytest", *([] if names_tests else ["tests"]), *options.more])


def comfy(options: argparse.Namespace) -> None:
    """Serve the UI in this process's name until it is interrupted; models, results and banks stay in the cache."""
    from demo.host import Host, HostError

    installed = ensure(say)
    base = cache_root() / "comfy"
    base.mkdir(parents=True, exist_ok=True)
    say(f"Starting ComfyUI from {installed.comfy} (models, results and its log are in {base}) ...")
    try:
        with Host(base, installed=installed, port=options.port, cpu=not options.gpu, offline=False) as host:
            say(f"Open {host.url} and pick a template under the name carnator. Ctrl-C ends it.")
            status = host.wait_for_end()
            sys.exit(f"carnator: ComfyUI ended with status {status}; the end of its log:\n{host.log_tail()}")
    except HostError as error:
        sys.exit(f"carnator: {error}")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="run.py",
        description="Carnator remembers finished renders and, in a new one, computes only what differs.",
        epilog=(
            f"The first run of any of these sets up ComfyUI and PyTorch in {cache_root()} (about {DISK_GB} GB, once, "
            "2 to 10 minutes); later runs start at once. Variables: CARNATOR_CACHE puts that folder elsewhere; "
            "COMFYUI_PATH names a ComfyUI of your own to use instead, with COMFYUI_PYTHON for its Python when that is "
            "not in its venv; CARNATOR_CHROMIUM names the browser for the tests."
        ),
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    one = commands.add_parser(
        "demo",
        allow_abbrev=False,
        help="render, remember and reuse: a few prompts on a real ComfyUI, dense and with reuse",
        description=(
            "Starts a headless ComfyUI with this pack, submits the workflow files of workflows/, and prints one table: "
            "which requests hit, which were refused and why, seconds dense and with reuse, and what the clips show. "
            "Also writes every clip (mp4), a contact sheet (PNG) and report.html. At most 10 minutes on two cores."
        ),
    )
    one.add_argument("--json", metavar="FILE", help="write the table to FILE as JSON too")
    one.add_argument("--out", metavar="DIR", help="where clips, contact sheet and report.html go")
    one.set_defaults(run=demo)

    one = commands.add_parser(
        "test",
        allow_abbrev=False,
        help="run the whole test suite (pytest's options may follow)",
        description=(
            "Runs pytest on tests/, with a real ComfyUI and a real browser (Debian's chromium is installed when this "
            "runs as root). Anything after the command goes to pytest: run.py test -m 'not host' -x"
        ),
    )
    one.set_defaults(run=test)

    one = commands.add_parser(
        "comfy",
        help="start the same ComfyUI with its UI, to open in a browser",
        description="Serves ComfyUI with this pack, its templates and the demo's models on this machine only.",
    )
    one.add_argument("--port", type=int, default=8188, help="port on 127.0.0.1 (default 8188)")
    one.add_argument("--gpu", action="store_true", help="let ComfyUI use the GPU (default: the CPU only)")
    one.set_defaults(run=comfy)

    if names := benches():
        one = commands.add_parser("bench", help=f"measure: {', '.join(names)}", add_help=False)
        one.add_argument("name", choices=names, metavar="NAME", help=", ".join(names))
        one.set_defaults(run=lambda options: run_module(options.name, options.more))
    for name, text in TOOLS.items():
        if module_of(name):
            one = commands.add_parser(name, help=text, add_help=False)
            one.set_defaults(run=run_here if name in STANDALONE else lambda options: run_module(options.command, options.more))
    return top


def main(arguments: Sequence[str]) -> None:
    options, more = parser().parse_known_args(arguments)
    if more and options.command == "comfy":
        parser().error(f"unrecognized arguments: {' '.join(more)}")
    options.more = more
    try:
        options.run(options)
    except SetupError as error:
        sys.exit(f"carnator: {error}")
    except KeyboardInterrupt:
        sys.exit("\ncarnator: interrupted")


if __name__ == "__main__":
    main(sys.argv[1:])
