"""Carnator Reuse: the whole flow in one node in the MODEL line."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..carnator_core.hosts import comfy as door
from ..carnator_core.hosts.graph import prompt_of, unfollowed
from ..carnator_core.request import MODES, Settings
from . import defaults, profiles
from .running import executing, running
from .status import reporter, speaker
from .types import BankHandle, BankType, advanced

PACE = {"careful": 0.1, "balanced": 0.25, "fast": 0.5}
SEED = {"any seed (fastest)": "any", "my seed only": "mine"}


class CarnatorReuse(io.ComfyNode):
    """MODEL -> MODEL: remembers renders and starts similar ones from them, for any sampler node."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        s = Settings()
        return io.Schema(
            node_id="CarnatorReuse", display_name="Carnator Reuse", category="Carnator",
            description="Put it between the model (after LoRA and shift nodes) and the sampler. Renders are remembered; a "
                        "render similar to a remembered one is computed only where it differs. When it cannot help, the "
                        "render is exactly the one you would get without it, and the node says why.",
            inputs=[
                io.Model.Input("model"),
                io.Combo.Input("pace", options=list(PACE), default="balanced",
                               tooltip="How readily steps are forecast from the remembered render instead of computed."),
                io.Combo.Input("noise", options=list(SEED), default="any seed (fastest)",
                               tooltip="Whether a hit may take over the remembered render's seed, or only renders with your seed count."),
                BankType.Input("bank", optional=True, tooltip="From Cache Bank Loader; without it, the bank of the settings is used."),
                io.Vae.Input("vae", optional=True, tooltip="Optional: true colours for the comparison, and thumbnails."),
                *advanced(
                    io.Int.Input("probe_steps", default=s.probe, min=1, max=50, optional=True, tooltip="Dense steps before the decision."),
                    io.Float.Input("strictness", default=1.0, min=0.1, max=10.0, step=0.1, optional=True, tooltip="Tolerance for differences: multiplies every threshold. Larger is laxer: above 1 reuses more often, below 1 less often."),
                    io.Combo.Input("mode", options=list(MODES), default="ours", optional=True, tooltip="What is reused; see the help page."),
                    io.Int.Input("active_radius", default=s.active, min=0, max=32, optional=True, tooltip="Tokens around the evidence that are computed too."),
                    io.Int.Input("context_radius", default=s.context, min=0, max=64, optional=True, tooltip="Further tokens that are looked at."),
                    io.Float.Input("window_start", default=s.window[0], min=0.0, max=1.0, step=0.05, optional=True, tooltip="First region-restricted layer, as a share of all."),
                    io.Float.Input("window_end", default=s.window[1], min=0.0, max=1.0, step=0.05, optional=True, tooltip="End of the region-restricted layers."),
                    io.Boolean.Input("remember", default=True, optional=True, tooltip="Whether dense renders are added to the bank."),
                    io.String.Input("subject", default="", optional=True, tooltip="A short text that stands for a long prompt when renders are compared."),
                    io.String.Input("profile", default="", optional=True, tooltip="A profile from Carnator Calibrate, by its name or as JSON text; it replaces the default thresholds."),
                    io.Float.Input("miss_tolerance", default=s.miss_tolerance, min=0.0, max=1.0, step=0.01, optional=True, tooltip="On a miss: error accepted of a step forecast from the render's own course. 0 computes every step. Above 0 the render is not remembered."),
                ),
            ],
            outputs=[io.Model.Output(display_name="model")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt],
        )

    @classmethod
    def fingerprint_inputs(cls, profile: str | None = "", **_: Any) -> str:
        """Another bank in the host's settings is another input, where no bank is connected; so is a profile written anew."""
        return f"{defaults.read()} {profiles.stamp(profile or '')}"

    @classmethod
    def execute(cls, model: Any, pace: str, noise: str, probe_steps: int = Settings.probe, strictness: float = 1.0,
                mode: str = "ours", active_radius: int = Settings.active, context_radius: int = Settings.context,
                window_start: float = Settings.window[0], window_end: float = Settings.window[1], remember: bool = True,
                subject: str = "", bank: BankHandle | None = None, vae: Any = None,
                profile: str = "", miss_tolerance: float = Settings.miss_tolerance) -> io.NodeOutput:
        handle = bank if bank is not None else BankHandle(defaults.open_bank())
        settings = Settings(probe=probe_steps, noise=SEED[noise], mode=mode, tolerance=PACE[pace], active=active_radius,
                            context=context_radius, window=(window_start, window_end), strictness=strictness,
                            record=remember and handle.record, subject=subject, miss_tolerance=miss_tolerance)
        node, queued = cls.hidden.unique_id, cls.hidden.prompt

        def text() -> str:
            """Asked for when sampling starts: this node's output is kept while only the prompt changes."""
            return prompt_of(dict(running().graph) or queued, node, executing())

        def unfollowed_now() -> bool:
            return unfollowed(dict(running().graph) or queued, node, "CarnatorReuse")

        held, problem = profiles.find(profile)
        attachment = door.Attachment(settings, handle.bank, text=text, unfollowed=unfollowed_now, vae=vae, say=speaker(node),
                                     done=reporter(node), profile=held, problem=problem, clip=handle.clip)
        return io.NodeOutput(door.attach(model, attachment))
