"""The parsed command line, as ComfyUI 0.3.64 has it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

args = SimpleNamespace(fast=set[Any]())
