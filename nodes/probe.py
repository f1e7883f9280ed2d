"""Early Signature Probe: the first dense steps of a render, and what they show."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core.hosts import comfy as door
from ..carnator_core.hosts.sampling import sample
from ..carnator_core.request import Settings
from .status import reporter, speaker
from .types import BankHandle, BankType, ProbeResult, ProbeType, advanced


class CarnatorProbe(io.ComfyNode):
    """Runs the first steps densely, from the creator's own noise; what follows goes on from them where it starts from the same."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        import comfy.samplers

        return io.Schema(
            node_id="CarnatorEarlySignatureProbe", display_name="Early Signature Probe", category="Carnator",
            description="Renders the first steps as ever, reads off what appears where (the Early Signature), and recalls "
                        "remembered renders that might serve. A miss goes on from these steps; so does a hit, "
                        "unless the remembered render has another seed.",
            inputs=[
                io.Model.Input("model"),
                BankType.Input("bank", tooltip="From Cache Bank Loader."),
                io.Conditioning.Input("positive", tooltip="From Carnator Text Encode, so that things can be told apart."),
                io.Conditioning.Input("negative"),
                io.Latent.Input("latent_image", tooltip="An empty video latent."),
                io.Int.Input("seed", default=0, min=0, max=0xFFFFFFFFFFFFFFFF, control_after_generate=True),
                io.Int.Input("steps", default=30, min=1, max=10000),
                io.Float.Input("cfg", default=5.0, min=0.0, max=100.0, step=0.1, round=0.01),
                io.Combo.Input("sampler_name", options=list(comfy.samplers.KSampler.SAMPLERS)),
                io.Combo.Input("scheduler", options=list(comfy.samplers.KSampler.SCHEDULERS)),
                io.Int.Input("probe_steps", default=Settings.probe, min=1, max=50,
                             tooltip="Dense steps before the decision. More see better and save less."),
                io.Vae.Input("vae", optional=True, tooltip="Optional: colours are then read off the decoded last frame."),
                *advanced(io.Float.Input("denoise", default=1.0, min=0.0, max=1.0, step=0.01,
                                         tooltip="As in KSampler; below 1 the render is a full one.")),
                io.Model.Input("low_noise_model", optional=True, tooltip="Wan2.2 A14B: the low-noise expert; model is then the high-noise one."),
                *advanced(io.Int.Input("switch_step", default=10, min=1, max=10000, optional=True,
                                       tooltip="The step from which the low-noise expert computes.")),
            ],
            outputs=[ProbeType.Output(display_name="probe")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, model: Any, bank: BankHandle, positive: Any, negative: Any, latent_image: Any, seed: int, steps: int,
                cfg: float, sampler_name: str, scheduler: str, probe_steps: int, denoise: float = 1.0,
                vae: Any = None, low_noise_model: Any = None, switch_step: int = 10) -> io.NodeOutput:
        if low_noise_model is not None and switch_step >= steps:
            raise ValueError(f"switch step is {switch_step} and the render has {steps} steps, so the low-noise model would compute "
                             f"none of them; set switch step to at most {steps - 1}, or disconnect the low-noise model")
        inputs = {"model": model, "positive": positive, "negative": negative, "latent_image": latent_image, "seed": seed,
                  "steps": steps, "cfg": cfg, "sampler_name": sampler_name, "scheduler": scheduler, "denoise": denoise,
                  "low_noise_model": low_noise_model, "switch_step": switch_step}
        settings = Settings(probe=probe_steps)
        reasons: list[str] = []
        say = speaker(cls.hidden.unique_id)

        def note(text: str) -> None:
            reasons.append(text)
            say(text)

        attachment = door.Attachment(settings, bank.bank if bank else None, vae=vae, say=note, stop_after_probe=True,
                                     clip=bank.clip if bank else None)
        sample(inputs, lambda one: door.attach(one, attachment), probing=True)
        run = attachment.last
        reason = "" if run is not None else (reasons[-1] if reasons else "this render cannot be served")
        found = ProbeResult(inputs, bank, vae, settings.plain(), run, attachment.candidates,
                            reason.removeprefix("dense: ") or attachment.recall_reason)
        reporter(cls.hidden.unique_id)(outcome(found))
        return io.NodeOutput(found)


def outcome(probe: ProbeResult) -> dict[str, Any]:
    """What the page shows of a finished probe: "probed" with the remembered renders that might serve, or why none can."""
    if probe.run is None:
        return {"decision": "aside", "reason": probe.reason}
    return {"decision": "probed", "reason": "" if probe.candidates else probe.reason, "candidates": len(probe.candidates),
            "history_prompt": probe.candidates[0].card.prompt if probe.candidates else "",
            "entities": list(probe.run.finish_probe().regions)}
