"""Load the pack the way the host does: the checkout's root as one package, never on sys.path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if "carnator" not in sys.modules:
    spec = importlib.util.spec_from_file_location("carnator", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["carnator"] = module
    spec.loader.exec_module(module)
