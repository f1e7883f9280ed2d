"""Evidence Region Viewer: which part of the picture belongs to which word."""

from __future__ import annotations

import colorsys
import logging
from typing import Any

import torch
from comfy_api.latest import io
from torch import Tensor

from ..carnator_core.bank import BankError
from ..carnator_core.hosts.pictures import frames_of
from ..carnator_core.regions import dilate
from ..carnator_core.request import Settings
from ..carnator_core.signature import Signature
from ..carnator_core.view import view
from .filmstrip import save_strip
from .status import stamped
from .types import DecisionResult, DecisionType, ProbeResult, ProbeType

log = logging.getLogger("carnator")


def _colour(index: int) -> Tensor:
    return torch.tensor(colorsys.hsv_to_rgb((0.11 + 0.382 * index) % 1.0, 0.85, 1.0))


def _enlarged(region: Tensor, height: int, width: int) -> Tensor:
    return torch.nn.functional.interpolate(region[:, None].float(), size=(height, width), mode="nearest")[:, 0] > 0.5


def overlay(frames: Tensor, regions: dict[str, Tensor]) -> Tensor:
    """Frames [T, h, w, 3] with every entity's region [T, H, W] tinted and outlined in a colour of its own."""
    out = frames.clone()
    height, width = frames.shape[1:3]
    for index, region in enumerate(regions.values()):
        inside = _enlarged(region, height, width)
        edge = inside & dilate(~inside, 1 + min(height, width) // 160)
        colour = _colour(index)
        out[inside] = out[inside] * 0.75 + colour * 0.25
        out[edge] = colour
    return out


class CarnatorViewer(io.ComfyNode):
    """probe or decision -> IMAGE overlay, MASK, and an interactive view on the page."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorEvidenceRegionViewer", display_name="Evidence Region Viewer", category="Carnator",
            description="Shows what the probe's steps reveal, beside the remembered render: each word's region, what would be "
                        "computed anew, and every difference against its threshold.",
            inputs=[
                io.MultiType.Input("source", types=[ProbeType, DecisionType], tooltip="A probe or a decision."),
                io.String.Input("entity", default="", tooltip="Only this word's region; empty shows all."),
                io.Vae.Input("vae", optional=True, tooltip="Optional: the picture is then decoded instead of estimated."),
            ],
            outputs=[io.Image.Output(display_name="overlay"), io.Mask.Output(display_name="mask")],
            hidden=[io.Hidden.unique_id],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, source: ProbeResult | DecisionResult, entity: str, vae: Any = None) -> io.NodeOutput:
        probe = source.probe if isinstance(source, DecisionResult) else source
        if probe.run is None:
            blank = torch.zeros(1, 64, 64, 3)
            nothing = {"decision": "aside", "reason": probe.reason}
            return io.NodeOutput(blank, blank[..., 0], ui={"carnator_view": [stamped(cls.hidden.unique_id, nothing)]})
        found = probe.run.finish_probe()
        wanted = entity.strip().lower()
        regions = {name: r for name, r in found.regions.items() if not wanted or name == wanted}
        frames = frames_of(probe.inputs["model"].model, found.trajectory.predictions[-1][0], vae)
        union = torch.zeros(found.grid, dtype=torch.bool)
        for region in regions.values():
            union |= region
        image = overlay(frames, regions)
        mask = _enlarged(union, image.shape[1], image.shape[2]).float()
        shown = interactive(source, frames, wanted, vae)
        return io.NodeOutput(image, mask, ui={"carnator_view": [stamped(cls.hidden.unique_id, shown)]})


def interactive(source: ProbeResult | DecisionResult, frames: Tensor, wanted: str, vae: Any) -> dict[str, Any]:
    """What the page's view is drawn from: `view`, and a strip of pictures of either render.

    frames [T, h, w, 3]: the target as its probe left it. wanted: the one entity to start with, "" for all.
    """
    decided = source if isinstance(source, DecisionResult) else None
    probe = decided.probe if decided is not None else source
    assert isinstance(probe, ProbeResult) and probe.run is not None
    verdict = decided.verdict if decided is not None else None
    decision = verdict.decision if verdict is not None else None
    entry = decision.history_id if decision is not None else ""
    last, remembered = _remembered(probe, entry)
    pairs = next((c.correspondence.pairs + tuple(filter(None, (c.correspondence.substituted,)))
                  for c in probe.candidates if c.card.id == entry), ())
    shown = view(probe.run.finish_probe(), verdict, remembered, pairs, Settings.of(probe.settings))
    return shown | {"prompt": probe.run.request.facts.get("text", ""), "only": wanted,
                    "all_steps": len(probe.run.request.sigmas) - 1, "target_strip": save_strip(frames),
                    "history_strip": None if last is None else save_strip(frames_of(probe.inputs["model"].model, last, vae))}


def _remembered(probe: ProbeResult, entry: str) -> tuple[Tensor | None, Signature | None]:
    """The last prediction [C, T, H, W] of a history, which is its finished clip, and what its probe saw; None of either
    when it cannot be read (any more)."""
    if not entry or probe.bank is None:
        return None, None
    try:
        with probe.bank.bank.reading(entry) as reading:
            return reading.denoised(reading.header.calls - 1), reading.signature()
    except (OSError, ValueError, BankError) as error:
        log.warning("Carnator: the remembered render %s cannot be shown (%s).", entry, error)
        return None, None
