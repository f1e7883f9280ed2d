"""What a creator is told after a render: one line for the log, and plain values for the page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .outcome import Verdict
from .reuse import Run


def packed(region: Tensor) -> str:
    """A boolean grid as base64 of its bits, row by row (C order), most significant bit first."""
    return base64.b64encode(np.packbits(region.flatten().to("cpu", torch.bool).numpy()).tobytes()).decode("ascii")


def summary(run: Run, seconds: float) -> dict[str, Any]:
    """Everything about a finished run that JSON can hold. seconds: of the whole sampling call.

    regions: entity -> packed Evidence Region on `grid`; active: packed Active Region of a hit, "" without.
    distances: what the gate measured against the history that was reused, or the first that it refused, as
    `Decision.to_dict` has it; history, history_prompt: of that one, "" when none was looked at.
    dense_seconds: how long the history's own dense render took, measured, for as many
    steps as this one has; saved: what this one took less. Both only on a hit.
    """
    verdict, counts = run.verdict, run.counts
    hit = verdict is not None and verdict.accepted
    out: dict[str, Any] = {
        "decision": "hit" if hit else "miss", "reason": verdict.reason if verdict else "",
        "prompt": run.request.facts.get("text", ""),
        "steps": len(run.request.sigmas) - 1, "computed": counts.computed, "restricted": counts.restricted,
        "skipped": counts.skipped, "forecast": counts.forecast, "replayed": counts.replayed,
        "seconds": seconds, "transformer_seconds": counts.seconds,
        "overhead_seconds": counts.overhead, "waited_seconds": counts.waited, "delayed_steps": counts.delayed,
        "density": sum(counts.density) / len(counts.density) if counts.density else 1.0,
        "report": verdict.report if verdict else [], "grid": list(run.grid),
        "regions": {name: packed(r) for name, r in run.probe.regions.items()} if run.probe else {}, "active": "",
        **compared(verdict),
    }
    if hit and verdict is not None and verdict.history is not None:
        dense = dense_seconds(verdict.history.facts, out["steps"])
        out |= {"similarity": verdict.similarity, "dense_seconds": dense, "saved": dense - seconds}
        if verdict.regions is not None:
            out |= {"active": packed(verdict.regions.active), "active_share": verdict.regions.share()}
    return out


def dense_seconds(facts: Mapping[str, Any], steps: int) -> float:
    """Seconds that a dense render of so many steps would have taken, from those that the history's own took; 0 for facts that
    do not say."""
    try:
        return max(0.0, float(facts["seconds"]) * steps / int(facts.get("steps") or steps))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return 0.0


def compared(verdict: Verdict | None) -> dict[str, Any]:
    """The history that a verdict is about, and every distance that the gate measured to it."""
    out: dict[str, Any] = {"history": "", "history_prompt": "", "distances": [], "unmeasured": [], "certificate": ""}
    if verdict is None:
        return out
    out |= {"history": verdict.history_id, "certificate": verdict.certificate}
    if verdict.look is not None:
        out["history_prompt"] = verdict.look.prompt
    if verdict.decision is not None:
        told = verdict.decision.to_dict()
        out |= {name: told[name] for name in ("history", "distances", "unmeasured")}
    return out


def closing_line(facts: dict[str, Any]) -> str:
    """The log's honest last line, from `summary`'s values."""
    calls = facts["computed"] + facts["forecast"] + facts["replayed"]
    # Some samplers ask the model twice a step, or as often as they like.
    of = f"{facts['steps']} steps" if calls <= facts["steps"] else f"{calls} model calls"
    if facts["decision"] == "miss":
        # What is replayed on a miss are the probe's own steps, computed by an earlier node.
        line = f"miss: {facts['reason']}; {facts['computed'] + facts['replayed']} of {of} computed, {facts['seconds']:.1f} s"
        skipped = facts.get("skipped", 0)
        return line + (f"; not remembered: another node left the model out at {skipped} of them" if skipped else "")
    parts = [f"{facts['computed']} of {of} computed"]
    if facts["restricted"]:
        parts[0] += f" ({facts['restricted']} of them in {facts.get('active_share', 1.0):.0%} of the picture)"
    parts += [f"{facts[n]} {n}" for n in ("forecast", "replayed") if facts[n]]
    if facts["delayed_steps"]:
        parts.append(f"{facts['delayed_steps']} steps waited for the disk, {facts['waited_seconds']:.1f} s in all")
    dense, saved = facts["dense_seconds"], facts["saved"]
    gain = f"{saved:.1f} s saved" if saved > 0 else "nothing saved"
    parts.append(f"{facts['seconds']:.1f} s where the whole render took {dense:.1f} s: {gain}")
    return f"hit: {facts['reason']}; " + ", ".join(parts)
