"""A render of two experts (Wan2.2 A14B) for tests: two small random models, and two KSamplerAdvanced nodes on one schedule."""

from __future__ import annotations

from typing import Any

from families import ksampler_advanced
from hosting import ANYTHING, Ask, reuse
from torch import Tensor

A14B = "Wan2.2 A14B"
STEPS, SPLIT, PROBE = 10, 5, 2
Pair = tuple[Any, Any]


def asked(text: str = "a red ball on snow", **changes: Any) -> Ask:
    return Ask(text, **{"steps": STEPS, **changes})


def both(experts: Pair, bank: Any, **settings: Any) -> Pair:
    """The two with Carnator Reuse in each MODEL line."""
    high, low = (reuse(m, bank, probe_steps=PROBE, **{"strictness": ANYTHING, **settings}) for m in experts)
    return high, low


def render(models: Pair, ask: Ask, second: Ask | None = None, split: int = SPLIT) -> Tensor:
    """Two KSamplerAdvanced nodes with leftover noise between them, as ComfyUI's own template has them."""
    half = {"samples": ksampler_advanced(models[0], ask, 0, split, "enable")}
    return ksampler_advanced(models[1], second or ask, split, latent=half)
