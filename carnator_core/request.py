"""What a sampling run is asked for, and what it is allowed to do: the settings, and the request's own facts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from torch import Tensor

from .history import Identity
from .prompt import Prompt

MODES = ("ours", "joint", "latent", "attention", "resume", "forecast")


@dataclass(frozen=True)
class Settings:
    """What a creator may set; plain values only, so that hosts may copy it as they like.

    probe: dense steps before the decision. noise: "any" may adopt a history's noise, "mine" never does.
    mode: "ours" (region, forecasting), "joint" (the paper's section 3.3: region and connectivity, every step computed),
    "latent" and "attention" (one half of joint each), "resume" (NIRVANA: replay, then dense), "forecast" (no region).
    tolerance: error that skipped steps may leave, 1 for 30 % of the latent's norm (`course`); 0 computes every step.
    longest: steps skipped in a row, of 50. miss_tolerance: relative error accepted of a forecast step on a miss; 0 is the dense
    render. resume: steps replayed from the history (paper's resume point; 0 computes from the start). until: share of the
    schedule up to which "joint" and "latent" show the history outside the region (`systems`). refresh: after so
    many restricted steps one is computed whole (0: never). window: share of the layers that are region-restricted.
    active, context: dilations in tokens. coverage: attention mass kept by the connectivity; sparse: "auto" or "off".
    record: bank new renders.
    """

    probe: int = 4
    noise: str = "any"
    mode: str = "ours"
    tolerance: float = 0.25
    longest: int = 6
    resume: int = 0
    until: float = 1.0
    refresh: int = 2
    window: tuple[float, float] = (0.2, 0.8)
    active: int = 2
    context: int = 3
    coverage: float = 0.9
    sparse: str = "auto"
    record: bool = True
    strictness: float = 1.0
    miss_tolerance: float = 0.0
    subject: str = ""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; it has to be one of {', '.join(MODES)}")
        if self.noise not in ("any", "mine"):
            raise ValueError(f"noise is {self.noise!r}; it has to be 'any' or 'mine'")
        if self.probe < 1:
            raise ValueError(f"probe is {self.probe} steps; it has to be at least 1")

    def follows(self) -> bool:
        """Whether the history's connectivity is to be followed."""
        return self.sparse == "auto" and self.mode in ("ours", "joint", "attention")

    def plain(self) -> dict[str, Any]:
        """As a dict that JSON can hold."""
        return asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Settings:
        """From `plain()`; names it does not know are ignored, so that newer workflows open in older packs."""
        known = {f.name for f in fields(cls)}
        kept: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items() if k in known}
        return cls(**kept)


@dataclass
class Request:
    """One render as it arrives: identity, prompt, pooled conditioning [D], noise [C, T, H, W], schedule [n + 1]."""

    identity: Identity
    prompt: Prompt
    text_vector: Tensor
    noise: Tensor
    sigmas: Tensor
    columns: dict[str, tuple[int, ...]] = field(default_factory=dict)  # entity -> text slots of its head noun
    facts: dict[str, Any] = field(default_factory=dict)
