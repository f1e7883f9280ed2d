"""Risk Gate: whether a remembered render is a safe start, and the numbers behind the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..carnator_core.gate import Thresholds
from ..carnator_core.hosts import comfy as door
from ..carnator_core.hosts.telling import told_of
from ..carnator_core.outcome import Verdict
from ..carnator_core.request import MODES, Settings
from . import profiles
from .status import reporter
from .types import DecisionResult, DecisionType, ProbeResult, ProbeType, advanced


class CarnatorRiskGate(io.ComfyNode):
    """probe, thresholds or a certified profile -> CARNATOR_DECISION, and a report in words and numbers."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        t = Thresholds()
        return io.Schema(
            node_id="CarnatorRiskGate", display_name="Risk Gate", category="Carnator",
            description="Compares the probe with each recalled render, discrepancy by discrepancy, and accepts the first "
                        "that stays under every threshold.",
            inputs=[
                ProbeType.Input("probe"),
                io.Float.Input("size", default=t.size, min=0.0, max=10.0, step=0.01, tooltip="Largest |log ratio| of areas."),
                io.Float.Input("shape", default=t.shape, min=0.0, max=1.0, step=0.01, tooltip="Largest 1 - Dice of the outlines."),
                io.Float.Input("colour", default=t.colour, min=0.0, max=100.0, step=0.5, tooltip="Largest CIEDE2000 difference."),
                io.Float.Input("motion", default=t.motion, min=0.0, max=1.0, step=0.01, tooltip="Largest difference of movement, as a share of the frame."),
                io.Float.Input("change", default=t.change, min=0.0, max=1.0, step=0.01, tooltip="Largest share of the picture that may change."),
                *advanced(io.Combo.Input("mode", options=list(MODES), default="ours", tooltip="What an accepted render is used for; see the help page."),
                          io.String.Input("profile", default="", multiline=False, tooltip="A profile from Carnator Calibrate, by its name or as JSON text; it replaces the thresholds above.")),
            ],
            outputs=[DecisionType.Output(display_name="decision"), io.String.Output(display_name="report")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, profile: str | None = "", **_: Any) -> str:
        """A profile written anew is another input."""
        return profiles.stamp(profile or "")

    @classmethod
    def execute(cls, probe: ProbeResult, size: float, shape: float, colour: float, motion: float, change: float,
                mode: str = "ours", profile: str = "") -> io.NodeOutput:
        held, problem = profiles.find(profile)
        thresholds = held.thresholds if held is not None else Thresholds(size, shape, colour, motion, change)
        settings = Settings.of({**probe.settings, "mode": mode})
        if probe.run is None or problem:
            verdict = Verdict(False, problem or probe.reason)
        elif not probe.candidates:
            verdict = Verdict(False, probe.reason or "nothing similar is remembered yet")
        else:
            verdict = door.judge_probe(probe.run, probe.candidates, probe.bank.bank if probe.bank else None,
                                       probe.inputs["model"], probe.vae, thresholds, settings, held)
        head = "HIT: " if verdict.accepted else "MISS: "
        text = "\n".join([head + verdict.reason, *verdict.report])
        reporter(cls.hidden.unique_id)({"decision": "hit" if verdict.accepted else "miss", "reason": verdict.reason,
                                        "report": verdict.report, **told_of(verdict)})
        # A copy: another gate may hang on the same probe.
        return io.NodeOutput(DecisionResult(replace(probe, settings=settings.plain()), verdict), text)
