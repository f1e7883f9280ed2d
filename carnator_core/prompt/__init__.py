"""Prompt to entities: strip the host's syntax, parse, find what is said about each thing and where its tokens are."""

from __future__ import annotations

from .parse import mention_spans, parse, parse_many
from .slots import token_slots
from .syntax import strip_host_syntax
from .types import KINDS, Entity, Modifier, Prompt

__all__ = ["KINDS", "Entity", "Modifier", "Prompt", "mention_spans", "parse", "parse_many", "strip_host_syntax",
           "token_slots"]
