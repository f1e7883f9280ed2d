"""What a node gives Carnator to work with, on a patched clone of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ..bank import Bank
from ..change import ChangeScale
from ..decide import Candidate
from ..gate import Thresholds
from ..outcome import Probe, Verdict
from ..profile import Profile
from ..request import Settings
from ..reuse import Run
from ..textclip import ClipText
from . import relay


@dataclass
class Attachment:
    """What a node gives Carnator to work with. One per patched clone; the runs in it live for one sampling call each.

    bank: None remembers nothing. text(): prompt text, asked for when the conditioning does not carry it. vae: decodes
    the probe's last frame for colours (None: the latent format's RGB factors). say(text): the node's status line.
    preset: goes on from a probe (granular nodes) instead of deciding anew. profile: replaces thresholds and scale.
    unfollowed(): whether the workflow shows that a first half's second does not carry Carnator. left: what a first half
    leaves for its second (hosts/relay.py).
    clip: texts are compared by its vectors instead of by their conditioning.
    problem: why no reuse may be considered ("a profile that does not exist"); only the very same render is replayed then.
    """

    settings: Settings
    bank: Bank | None
    thresholds: Thresholds = field(default_factory=Thresholds)
    scale: ChangeScale = field(default_factory=ChangeScale)
    text: Callable[[], str] = lambda: ""
    vae: Any = None
    say: Callable[[str], None] = lambda text: None
    done: Callable[[dict[str, Any]], None] = lambda summary: None
    stop_after_probe: bool = False
    keeps: bool = False  # the finished run stays at `last`, predictions and all (a probe always does)
    preset: tuple[Probe, Verdict] | None = None
    profile: Profile | None = None
    problem: str = ""
    unfollowed: Callable[[], bool] = lambda: False
    left: relay.Relay | None = None
    clip: ClipText | None = None
    runs: dict[int, Run] = field(default_factory=dict)
    last: Run | None = None
    candidates: list[Candidate] = field(default_factory=list)
    recall_reason: str = ""

    def __post_init__(self) -> None:
        if self.profile is not None:
            self.thresholds = self.profile.thresholds
            self.scale = self.profile.scale or self.scale
