"""Evidence Region Viewer: which part of the picture belongs to which word."""

from __future__ import annotations

import colorsys
from typing import Any

import torch
from comfy_api.latest import io, ui
from torch import Tensor

from ..carnator_core.hosts.pictures import frames_of
from ..carnator_core.regions import dilate
from .types import DecisionResult, DecisionType, ProbeResult, ProbeType


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
    """probe or decision -> IMAGE overlay, MASK, and a preview."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorEvidenceRegionViewer", display_name="Evidence Region Viewer", category="Carnator",
            description="Shows what the probe's steps reveal: the picture so far, each word's region outlined, one image for "
                        "each latent frame.",
            inputs=[
                io.MultiType.Input("source", types=[ProbeType, DecisionType], tooltip="A probe or a decision."),
                io.String.Input("entity", default="", tooltip="Only this word's region; empty shows all."),
                io.Vae.Input("vae", optional=True, tooltip="Optional: the picture is then decoded instead of estimated."),
            ],
            outputs=[io.Image.Output(display_name="overlay"), io.Mask.Output(display_name="mask")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, source: ProbeResult | DecisionResult, entity: str, vae: Any = None) -> io.NodeOutput:
        probe = source.probe if isinstance(source, DecisionResult) else source
        if probe.run is None:
            blank = torch.zeros(1, 64, 64, 3)
            return io.NodeOutput(blank, blank[..., 0], ui=ui.PreviewText(f"nothing to show: {probe.reason}"))
        found = probe.run.finish_probe()
        wanted = entity.strip().lower()
        regions = {name: r for name, r in found.regions.items() if not wanted or name == wanted}
        frames = frames_of(probe.inputs["model"].model, found.trajectory.predictions[-1][0], vae)
        union = torch.zeros(found.grid, dtype=torch.bool)
        for region in regions.values():
            union |= region
        image = overlay(frames, regions)
        mask = _enlarged(union, image.shape[1], image.shape[2]).float()
        return io.NodeOutput(image, mask, ui=ui.PreviewImage(image, cls=cls))
