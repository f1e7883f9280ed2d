"""Demo VAE: decodes the latents of every demo model with the Wan one's decoder, as a VAE of the host. No download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from comfy_api.latest import io

from ..demo import families

BY_TITLE = {family.title: family for family in families.FAMILIES.values()}
WEIGHTS = Path(families.__file__).resolve().parent / "weights" / families.WAN_VAE


class LiftedVAE(torch.nn.Module):
    """The stock Wan VAE behind another family's latents, in the scale that the host hands to a VAE."""

    def __init__(self, wan: Any, family: families.Family) -> None:
        super().__init__()
        import comfy.latent_formats

        self.wan: Any = wan
        self.family = family
        self.inner, self.outer = comfy.latent_formats.Wan21(), getattr(comfy.latent_formats, family.format)()

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """[B, C, T, h, w] -> frames [B, 3, F, H, W] in -1..1."""
        plain = self.inner.process_out(self.family.to_wan(self.outer.process_in(z.float())))
        return self.family.enlarged(self.wan.decode(plain.to(z.dtype)))

    def encode(self, frames: torch.Tensor) -> torch.Tensor:
        """The way back."""
        plain = self.inner.process_in(self.wan.encode(self.family.reduced(frames)).float())
        return self.outer.process_out(self.family.from_wan(plain)).to(frames.dtype)


def demo_vae(family: families.Family, dtype: torch.dtype | None = None) -> Any:
    """The host's VAE object for a family of the demo; dtype: that it computes in (None: as the host chooses)."""
    import comfy.sd
    import comfy.utils

    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(WEIGHTS)), dtype=dtype)
    if not family.kept:
        return vae
    side, slow = 16 * family.coarse, 4 * family.coarse  # pixels and frames of a latent cell
    vae.first_stage_model = LiftedVAE(vae.first_stage_model, family).eval()
    vae.latent_channels = family.latent[0]
    vae.upscale_ratio = (lambda count: max(0, count * slow - slow + 1), side, side)
    vae.downscale_ratio = (lambda count: max(0, (count + slow - 1) // slow), side, side)
    vae.upscale_index_formula = vae.downscale_index_formula = (slow, side, side)
    need = vae.memory_used_decode
    vae.memory_used_decode = lambda shape, dtype: need((*shape[:3], 2 * shape[3], 2 * shape[4]), dtype)
    old = vae.patcher
    vae.patcher = type(old)(vae.first_stage_model, load_device=old.load_device, offload_device=old.offload_device)
    return vae


class CarnatorDemoVAE(io.ComfyNode):
    """family -> VAE, for the demo models that ship with the pack."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorDemoVAE", display_name="Carnator Demo VAE", category="Carnator/demo",
            description="The VAE of the small demo models that ship with Carnator. Nothing is downloaded.",
            inputs=[io.Combo.Input("model", options=list(BY_TITLE), default=families.WAN.title,
                                   tooltip="Which of the demo models the latents come from.")],
            outputs=[io.Vae.Output(display_name="vae")],
        )

    @classmethod
    def execute(cls, model: str) -> io.NodeOutput:
        return io.NodeOutput(demo_vae(BY_TITLE[model]))
