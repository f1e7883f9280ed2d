"""The pack's own link types, and what travels on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from comfy_api.latest import io

from ..carnator_core.bank import Bank
from ..carnator_core.decide import Candidate
from ..carnator_core.outcome import Verdict
from ..carnator_core.reuse import Run
from ..carnator_core.textclip import ClipText

BankType = io.Custom("CARNATOR_BANK")
ProbeType = io.Custom("CARNATOR_PROBE")
DecisionType = io.Custom("CARNATOR_DECISION")


@dataclass
class BankHandle:
    """An open bank, whether new renders may be added to it, and the CLIP that compares texts (None: the conditioning)."""

    bank: Bank
    record: bool = True
    clip: ClipText | None = None


@dataclass
class ProbeResult:
    """A probe and everything that is needed to go on from it: the sampler's inputs, and the run that stopped.

    run is None when the render cannot be served; `reason` says why, and the dense render still follows.
    """

    inputs: dict[str, Any]
    bank: BankHandle | None
    vae: Any
    settings: dict[str, Any]
    run: Run | None
    candidates: list[Candidate] = field(default_factory=list)
    reason: str = ""


@dataclass
class DecisionResult:
    """A probe with its verdict."""

    probe: ProbeResult
    verdict: Verdict


def advanced(*inputs: Any) -> list[Any]:
    """Mark inputs as advanced, in a way hosts from 0.3.64 on accept."""
    for one in inputs:
        one.extra_dict["advanced"] = True
    return list(inputs)
