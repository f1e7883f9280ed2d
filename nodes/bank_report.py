"""Carnator Bank Report: what is kept, and what it saved."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core import verdicts
from ..carnator_core.bank import BankUnreadable, EntryCard
from ..carnator_core.decide import short
from ..carnator_core.hosts import storing
from .status import written
from .types import BankHandle, BankType

LISTED = 10
LATE = "the last render is still being stored and may not be counted yet"


class CarnatorBankReport(io.ComfyNode):
    """CARNATOR_BANK -> STRING."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorBankReport", display_name="Carnator Bank Report", category="Carnator",
            description="What a bank keeps, what it takes, how often it was of use and how many seconds that saved.",
            inputs=[
                BankType.Input("bank", tooltip="From Cache Bank Loader."),
                io.AnyType.Input("after", optional=True, tooltip="Connect the finished render, so that the report comes after it."),
            ],
            outputs=[io.String.Output(display_name="report")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> float:
        """Never the same: a bank changes without its node's inputs."""
        return float("nan")

    @classmethod
    def execute(cls, bank: BankHandle, after: Any = None) -> io.NodeOutput:
        late = ""
        try:
            storing.flush()
        except TimeoutError:  # a slow disk: what is there is reported all the same
            late = f"\n\n{LATE}"
        try:
            text = report(bank)
        except BankUnreadable as error:
            text = f"bank '{bank.bank.folder.name}': {error.reason}"
        text += late
        return io.NodeOutput(text, ui=written(cls.hidden.unique_id, text))


def report(handle: BankHandle) -> str:
    """A bank in lines of text: its space, its hits, what was said of them, and the renders that saved most. Raises BankUnreadable."""
    bank, cards = handle.bank, handle.bank.entries()
    hits, saved = sum(c.hits for c in cards), sum(c.seconds_saved for c in cards)
    used = sum(c.bytes for c in cards)
    limit = f" of {_size(bank.budget_bytes)}" if bank.budget_bytes is not None else ""
    lines = [f"bank '{bank.folder.name}': {_count(len(cards), 'render')}, {_size(used)}{limit}, {sum(c.pinned for c in cards)} pinned",
             f"{_count(hits, 'hit')}, {_time(saved)} saved in all" + (f", {_time(saved / hits)} a hit" if hits else "")]
    said = [label.kept for label in verdicts.labels(bank.folder)]
    if said:
        lines.append(f"judged: {sum(said)} kept the scene, {len(said) - sum(said)} showed the wrong one")
    best = sorted((c for c in cards if c.hits), key=lambda c: (-c.seconds_saved, c.id))[:LISTED]
    lines += ["", "of most use:", *map(_line, best)] if best else []
    idle = sum(c.bytes for c in cards if not c.hits)
    if hits and idle:
        lines.append(f"not yet of use: {_count(sum(not c.hits for c in cards), 'render')}, {_size(idle)}")
    return "\n".join(lines)


def _line(card: EntryCard) -> str:
    return f"  {_time(card.seconds_saved):>8}  {_count(card.hits, 'hit'):<8}  {_size(card.bytes):>7}  {short(card.prompt)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _size(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
