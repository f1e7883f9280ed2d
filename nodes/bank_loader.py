"""Cache Bank Loader: opens a bank of remembered renders."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import banks
from .types import BankHandle, BankType


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
            ],
            outputs=[BankType.Output(display_name="bank")],
        )

    @classmethod
    def validate_inputs(cls, name: str = "", **_: Any) -> bool | str:
        return banks.check_name(name) or True

    @classmethod
    def execute(cls, name: str, budget_gb: float, policy: str) -> io.NodeOutput:
        return io.NodeOutput(BankHandle(banks.open_bank(name, budget_gb), record=policy != "read only"))
