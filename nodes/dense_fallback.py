"""Dense Fallback: the ordinary render, going on from the probe's own steps; it becomes a new history."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core.hosts import comfy as door
from ..carnator_core.hosts.sampling import sample
from ..carnator_core.outcome import Verdict
from ..carnator_core.request import Settings
from .status import reporter, speaker
from .types import ProbeResult, ProbeType


class CarnatorDenseFallback(io.ComfyNode):
    """probe -> LATENT; bit-identical to the stock KSampler, and recorded into the bank."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorDenseFallback", display_name="Dense Fallback", category="Carnator",
            description="Finishes the render densely from the probe's steps, exactly as KSampler would have, and remembers it "
                        "in the bank.",
            inputs=[ProbeType.Input("probe")],
            outputs=[io.Latent.Output(display_name="latent")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, probe: ProbeResult) -> io.NodeOutput:
        say, done = speaker(cls.hidden.unique_id), reporter(cls.hidden.unique_id)
        if probe.run is None:
            done({"decision": "aside", "reason": probe.reason})
            return io.NodeOutput(sample(probe.inputs))
        keep = probe.bank is not None and probe.bank.record
        settings = Settings.of({**probe.settings, "record": keep})
        taken = {"preset": (probe.run.finish_probe(), Verdict(False, probe.reason or "rendered densely"))}

        def attach(model: Any) -> Any:
            return door.attach(model, door.Attachment(settings, probe.bank.bank if probe.bank else None, vae=probe.vae, say=say,
                                                      done=done, clip=probe.bank.clip if probe.bank else None,
                                                      preset=taken.pop("preset", None)))
        return io.NodeOutput(sample(probe.inputs, attach))
