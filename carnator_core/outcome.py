"""What a run's probe showed, and what was decided on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .backbones.base import Grid
from .gate import Decision
from .history import Remembered
from .record import Trajectory
from .regions import Regions


@dataclass
class Probe:
    """What the first dense steps showed: own predictions, Evidence Regions and their soft support, token grid.

    noise [C, T, H, W]: what these steps started from (the request's own, or an adopted history's). seconds: of a sampling
    call that stopped after them, which a render that goes on from here has cost as well.
    """

    noise: Tensor
    trajectory: Trajectory
    regions: dict[str, Tensor]
    supports: dict[str, Tensor]
    grid: Grid
    patch: Grid
    seconds: float = 0.0


@dataclass(frozen=True)
class Look:
    """How a creator recognises a history: its prompt, and its first frame [h, w, 3] uint8 (None when it kept none)."""

    prompt: str
    thumbnail: Tensor | None = None


@dataclass
class Verdict:
    """The outcome of recall and gate. `history` and `regions` are set when accepted; `report` is for the creator."""

    accepted: bool
    reason: str
    history: Remembered | None = None
    history_id: str = ""
    regions: Regions | None = None
    weights: Tensor | None = None  # [T, H, W] of the latent: W of the fusion; None: everywhere the target's own
    exact: bool = False
    similarity: float = 0.0
    report: list[str] = field(default_factory=list)
    decision: Decision | None = None  # the gate's answer on `history`, or on the first that it refused
    certificate: str = ""  # what can be said of the thresholds: "certified: ..." or "uncertified: ..."
    look: Look | None = None  # of the history that `decision` is about
