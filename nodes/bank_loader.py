"""Cache Bank Loader: opens a bank of remembered renders."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comfy_api.latest import io

from ..carnator_core.textclip import ClipMissing, ClipText, load
from . import banks
from .status import speaker
from .types import BankHandle, BankType, advanced

log = logging.getLogger("carnator")
_told: set[str] = set()


class CarnatorBankLoader(io.ComfyNode):
    """name, budget, policy -> CARNATOR_BANK."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorBankLoader", display_name="Cache Bank Loader", category="Carnator",
            description="Opens a cache bank: finished renders kept on disk, to start similar ones from. A bank that does "
                        "not exist yet is empty.",
            inputs=[
                io.String.Input("name", default=banks.DEFAULT_NAME, tooltip="Which bank. It lives in the host's user folder."),
                io.Float.Input("budget_gb", default=banks.DEFAULT_GIGABYTES, min=0.1, max=10000.0, step=0.1,
                               tooltip="Disk space the bank may use. The least useful renders leave first."),
                io.Combo.Input("policy", options=["read and remember", "read only"], default="read and remember",
                               tooltip="Whether new renders are remembered in this bank."),
                *advanced(io.String.Input("recall_clip", default="", optional=True, tooltip="A CLIP file of your text_encoders folder that compares prompts; empty: the model's own text conditioning does.")),
            ],
            outputs=[BankType.Output(display_name="bank")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(cls, name: str = "", **_: Any) -> bool | str:
        return banks.check_name(name) or True

    @classmethod
    def execute(cls, name: str, budget_gb: float, policy: str, recall_clip: str = "") -> io.NodeOutput:
        clip = None
        try:
            clip = clip_of(recall_clip)
        except ClipMissing as error:
            _tell(f"{error}; prompts are compared by the model's own text conditioning", speaker(cls.hidden.unique_id))
        return io.NodeOutput(BankHandle(banks.open_bank(name, budget_gb), record=policy != "read only", clip=clip))


def clip_of(name: str) -> ClipText | None:
    """The CLIP of a file in the host's text_encoders folders; None for an empty name. Raises ClipMissing."""
    import folder_paths

    name = name.strip()
    if not name:
        return None
    path = folder_paths.get_full_path("text_encoders", name)
    if path is None:
        raise ClipMissing(f"{name!r} is not in the text_encoders folder")
    return load(Path(path))


def _tell(problem: str, say: Callable[[str], None]) -> None:
    """On the node each time, in the log once."""
    say(problem)
    if problem not in _told:
        _told.add(problem)
        log.warning("Carnator: %s.", problem.encode("ascii", "replace").decode())
