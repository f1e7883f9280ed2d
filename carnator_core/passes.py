"""What a sampling run's passes are made of: where one stands, how it is begun anew, its model call, and its counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from torch import Tensor

from .observe import AttentionReader, Window
from .sparse import Connect


class Phase(Enum):
    """Where a run stands."""

    PROBE = "probe"
    DENSE = "dense"
    REUSE = "reuse"
    REPLAY = "replay"
    ALONE = "alone"  # the history was lost on the way: from then on every step is computed


class Restart(Exception):
    """Raised inside the sampler: start it again, from `noise` [C, T, H, W]. Not an error."""

    def __init__(self, noise: Tensor) -> None:
        super().__init__("Carnator starts this render again from the noise of the history it reuses")
        self.noise = noise


class ProbeDone(Exception):
    """Raised inside the sampler when a run was asked for its probe alone. Not an error."""


class Compute(Protocol):
    """One real model call: returns the prediction [S, C, T, H, W] as a tensor that nobody else holds."""

    def __call__(self, *, reader: AttentionReader | None = None, window: Window | None = None,
                 restrict: bool = False, connect: Connect | None = None) -> Tensor: ...


@dataclass
class Counts:
    """What a run did: model calls computed (whole or restricted), forecast, replayed; transformer seconds."""

    computed: int = 0
    restricted: int = 0
    forecast: int = 0
    replayed: int = 0
    skipped: int = 0  # of the computed ones: those in which another node left the model out
    seconds: float = 0.0
    overhead: float = 0.0  # recall and set-up before the first call
    waited: float = 0.0  # seconds that the render stood still for the bank, all in all
    delayed: int = 0  # model calls that stood still for it
    density: list[float] = field(default_factory=list)  # of the attention that followed a history, a value a call
