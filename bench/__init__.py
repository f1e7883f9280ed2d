"""Measurements, each a module: `python3 run.py bench NAME`. Importing this loads the checkout as package `carnator`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if "carnator" not in sys.modules:
    _spec = importlib.util.spec_from_file_location(
        "carnator", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert _spec is not None and _spec.loader is not None
    _pack = importlib.util.module_from_spec(_spec)
    sys.modules["carnator"] = _pack
    _spec.loader.exec_module(_pack)
