"""Joint Reuse Sampler: the rest of an accepted render; on a miss it asks for the dense one."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core.hosts import comfy as door
from ..carnator_core.hosts.sampling import sample
from ..carnator_core.hosts.telling import told_of
from ..carnator_core.request import Settings
from .status import reporter, speaker
from .types import DecisionResult, DecisionType, advanced


class CarnatorJointReuse(io.ComfyNode):
    """decision, scope settings, lazy `dense_latent` -> LATENT."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        s = Settings()
        return io.Schema(
            node_id="CarnatorJointReuseSampler", display_name="Joint Reuse Sampler", category="Carnator",
            description="On a hit, computes only what differs and takes the rest from the remembered render. On a miss, "
                        "hands on the dense render; it is asked for only then.",
            inputs=[
                DecisionType.Input("decision"),
                io.Float.Input("tolerance", default=s.tolerance, min=0.0, max=1.0, step=0.005,
                               tooltip="Error that skipped steps together may leave in the picture, as the remembered render foresees it. 0 computes every step."),
                io.Int.Input("active_radius", default=s.active, min=0, max=32, tooltip="Tokens around the evidence that are computed too."),
                io.Int.Input("context_radius", default=s.context, min=0, max=64, tooltip="Further tokens that are looked at."),
                io.Latent.Input("dense_latent", optional=True, lazy=True, tooltip="From Dense Fallback; computed only on a miss."),
                *advanced(io.Int.Input("resume", default=0, min=0, max=1000, tooltip="Steps replayed from the remembered render before computing (the paper's resume point)."),
                          io.Float.Input("window_start", default=s.window[0], min=0.0, max=1.0, step=0.05, tooltip="First region-restricted layer, as a share of all."),
                          io.Float.Input("window_end", default=s.window[1], min=0.0, max=1.0, step=0.05, tooltip="End of the region-restricted layers.")),
            ],
            outputs=[io.Latent.Output(display_name="latent")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def check_lazy_status(cls, decision: DecisionResult | None = None, dense_latent: Any = None, **_: Any) -> list[str]:
        missed = decision is not None and not decision.verdict.accepted
        return ["dense_latent"] if missed and dense_latent is None else []

    @classmethod
    def execute(cls, decision: DecisionResult, tolerance: float, active_radius: int, context_radius: int, resume: int = 0,
                window_start: float = Settings.window[0], window_end: float = Settings.window[1],
                dense_latent: Any = None) -> io.NodeOutput:
        verdict, probe = decision.verdict, decision.probe
        say = speaker(cls.hidden.unique_id)
        if not verdict.accepted or probe.run is None:
            reporter(cls.hidden.unique_id)({"decision": "miss", "reason": verdict.reason, **told_of(verdict)})
            if dense_latent is None:
                raise RuntimeError(f"this render is a miss ({verdict.reason}) and dense_latent is not connected: connect "
                                   "Dense Fallback to it, so that a miss still renders")
            return io.NodeOutput(dense_latent)
        keep = probe.bank is not None and probe.bank.record
        settings = Settings.of({**probe.settings, "record": keep, "tolerance": tolerance, "active": active_radius, "context": context_radius,
                                "resume": resume, "window": (window_start, window_end)})
        verdict = door.rescoped(probe.run, verdict, settings)
        taken = {"preset": (probe.run.finish_probe(), verdict)}  # by the first sampling call; a second one goes on from that

        def attach(model: Any) -> Any:
            return door.attach(model, door.Attachment(settings, probe.bank.bank if probe.bank else None, vae=probe.vae, say=say,
                                                      clip=probe.bank.clip if probe.bank else None,
                                                      done=reporter(cls.hidden.unique_id), preset=taken.pop("preset", None)))
        return io.NodeOutput(sample(probe.inputs, attach))
