"""Load the pack the way the host does: the checkout's root as one package, never on sys.path."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matrix
import pytest

ROOT = Path(__file__).resolve().parent.parent

if "carnator" not in sys.modules:
    spec = importlib.util.spec_from_file_location(
        "carnator", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["carnator"] = module
    spec.loader.exec_module(module)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-matrix", action="store_true", help="write README.md's matrix from the collected tests' marks")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[matrix.COLLECTED] = list(items)
    if config.getoption("--write-matrix"):
        matrix.write(items)


@pytest.fixture(scope="session")
def host() -> Iterator[Any]:
    """One running ComfyUI with the pack, for the whole session (carnator.demo.host.Host)."""
    from carnator.demo.host import Host

    with Host(installed=_installed()) as running:
        yield running


@pytest.fixture(scope="session")
def comfy(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The host's modules in this process, on the CPU, with its nodes and ours registered: real samplers, no server.

    Afterwards `import nodes` is the host's; the value is that module.
    """
    from carnator.demo.host import lay_out

    folder = _installed().comfy
    base = tmp_path_factory.mktemp("comfy")
    lay_out(base)
    # The checkout's root is on the path under `python -m pytest`; its nodes/ would shadow the host's nodes.py.
    sys.path[:] = [str(folder), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    given, sys.argv = sys.argv, ["main.py", "--cpu", "--base-directory", str(base), "--disable-api-nodes"]
    try:
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy.cli_args  # reads the arguments once, here
    except ImportError as error:
        pytest.skip(f"this Python cannot import ComfyUI ({error}): use python3 run.py test")
    finally:
        sys.argv = given
    import torch

    # The tests' models are tiny: a second thread gains nothing and waits for the first on a busy machine.
    torch.set_num_threads(1)
    return asyncio.run(_nodes_of_host())


@pytest.fixture(scope="session")
def chromium() -> Path:
    """The browser's executable."""
    from carnator.demo.browser import find_chromium

    found = find_chromium()
    if found is None:
        pytest.skip(os.environ.get("CARNATOR_NO_BROWSER") or "no chromium (python3 run.py test installs it)")
    return found


def _installed() -> Any:
    from carnator.demo.setup import SetupError, find

    try:
        found = find()
    except SetupError as error:
        pytest.skip(str(error))
    if found is None:
        pytest.skip("no ComfyUI: python3 run.py test sets one up, or COMFYUI_PATH names one")
    return found


async def _nodes_of_host() -> Any:
    """Start what the host starts before its server listens, and register the pack's nodes as its loader would."""
    # As the host's main.py does, first: nodes.py puts the host's comfy/ on the path, whose utils.py would stand for utils/.
    importlib.import_module("utils.extra_config")
    import carnator
    import nodes
    import server

    server.PromptServer(asyncio.get_running_loop())
    await nodes.init_extra_nodes(init_custom_nodes=False, init_api_nodes=False)
    extension = await carnator.comfy_entrypoint()
    await extension.on_load()
    for node in await extension.get_node_list():
        nodes.NODE_CLASS_MAPPINGS[node.GET_SCHEMA().node_id] = node
    return nodes
