"""What the Evidence Region Viewer shows, as plain values: regions of both renders, bands, distances and thresholds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .outcome import Probe, Verdict
from .regions import Regions, regions
from .request import Settings
from .signature import Signature
from .summary import compared, packed


def view(probe: Probe, verdict: Verdict | None, remembered: Signature | None, pairs: Sequence[tuple[str, str]],
         settings: Settings) -> dict[str, Any]:
    """Everything but the pictures, for JSON.

    remembered: the Early Signature of the history that the verdict is about; pairs: its (target, history) entities.
    Regions are `packed` on `grid`. entities: one row for each pair and each entity that has no partner, with the region
    on either side ("" where it is not to be seen). bands: Evidence, Active and Context Region of the reuse; of a
    refusal or a probe, those around all of the target's entities, which a reuse would have started from.
    """
    partners = dict(pairs)
    theirs = {name: s.region for name, s in (remembered or {}).items()}
    rows = [_row(name, partners.get(name, name if name in theirs else ""), probe.regions, theirs) for name in probe.regions]
    shown = {row["history"] for row in rows}
    rows += [_row("", name, probe.regions, theirs) for name in theirs if name not in shown]
    bands = verdict.regions if verdict is not None and verdict.regions is not None else _around(probe, settings)
    return {
        "decision": "" if verdict is None else "hit" if verdict.accepted else "miss",
        "reason": "" if verdict is None else verdict.reason,
        "grid": list(probe.grid), "steps": len(probe.trajectory), "entities": rows,
        "bands": {name: packed(getattr(bands, name)) for name in ("evidence", "active", "context")},
        **compared(verdict),
    }


def _row(ours: str, theirs: str, target: Mapping[str, Tensor], history: Mapping[str, Tensor]) -> dict[str, str]:
    return {"target": ours, "history": theirs,
            "target_region": packed(target[ours]) if ours in target else "",
            "history_region": packed(history[theirs]) if theirs in history else ""}


def _around(probe: Probe, settings: Settings) -> Regions:
    union = torch.zeros(probe.grid, dtype=torch.bool)
    for region in probe.regions.values():
        union |= region.to("cpu", torch.bool)
    return regions(union, settings.active, settings.context)
