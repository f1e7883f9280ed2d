"""The model families of the matrix as small random models, and what other nodes do to them, each by the host's own node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from hosting import LTX_LATENT, WAN_LATENT, Ask, custom, encode, ltx, schedule, wan
from torch import Tensor

STEPS, PROBE = 6, 2  # as few as leave room for a hit
NEAR = "a blue ball on snow"


@dataclass(frozen=True)
class Family:
    """A backbone of the matrix: its latent, and the weight that a test's LoRA changes."""

    name: str
    shape: tuple[int, ...]
    weight: str

    def ask(self, text: str = "a red ball on snow", **changes: Any) -> Ask:
        """A small request."""
        return Ask(text, **{"shape": self.shape, "steps": STEPS, **changes})


WAN = Family("Wan2.1", WAN_LATENT, "blocks.0.self_attn.q")
WAN5B = Family("Wan2.2 5B", (1, 48, *WAN_LATENT[2:]), "blocks.0.self_attn.q")
LTX = Family("LTX-Video", LTX_LATENT, "transformer_blocks.0.attn1.to_q")
FAMILIES = (WAN, WAN5B, LTX)


@lru_cache
def model_of(family: Family, seed: int = 0, options: tuple[tuple[str, Any], ...] = ()) -> Any:
    """The family's patcher, loaded once. options: of the host's loader (a weight dtype)."""
    given = dict(options)
    if family is LTX:
        return ltx(seed, **given)
    return wan(seed, channels=family.shape[1], **given)


Change = Callable[[Any, Family], Any]


def lora_of(family: Family) -> dict[str, Tensor]:
    made = torch.Generator().manual_seed(5)
    name = f"diffusion_model.{family.weight}"
    return {f"{name}.lora_A.weight": torch.randn(4, 256, generator=made) * 0.1,
            f"{name}.lora_B.weight": torch.randn(256, 4, generator=made) * 0.1}


def with_lora(model: Any, family: Family) -> Any:
    import comfy.sd

    patched, _ = comfy.sd.load_lora_for_models(model, None, lora_of(family), 0.8, 0.0)
    assert patched.patches
    return patched


def with_shift(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_lt import ModelSamplingLTXV
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    if family is LTX:
        return ModelSamplingLTXV.execute(model, 2.05, 0.95, {"samples": torch.zeros(family.shape)}).result[0]
    return ModelSamplingSD3().patch(model, 5.0)[0]


def with_merge(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_model_merging import ModelMergeSimple

    return ModelMergeSimple().merge(model, model_of(family, 1), 0.7)[0]


def with_sage(model: Any, family: Family) -> Any:
    """As KJNodes' Patch Sage Attention installs it: an override that computes by itself, whatever the host would call."""
    clone = model.clone()

    def attention_override_sage(func: Any, q: Tensor, k: Tensor, v: Tensor, heads: int, mask: Tensor | None = None,
                                attn_precision: Any = None, skip_reshape: bool = False, skip_output_reshape: bool = False,
                                **kwargs: Any) -> Tensor:
        if not skip_reshape:
            q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(q.half(), k.half(), v.half(), mask if mask is None else mask.half())
        return out.to(q) if skip_output_reshape else out.to(q).transpose(1, 2).flatten(2)

    clone.model_options["transformer_options"]["optimized_attention_override"] = attention_override_sage
    return clone


def easycache(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_easycache import EasyCacheNode

    return EasyCacheNode.execute(model, 0.2, 0.15, 0.95, False).result[0]


def lazycache(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_easycache import LazyCacheNode

    return LazyCacheNode.execute(model, 0.2, 0.15, 0.95, False).result[0]


def skip_layers(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_slg import SkipLayerGuidanceDiT

    return SkipLayerGuidanceDiT.execute(model, 3.0, 0.0, 1.0, "1", "").result[0]


def skip_layers_simple(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_slg import SkipLayerGuidanceDiTSimple

    return SkipLayerGuidanceDiTSimple.execute(model, 0.0, 1.0, "1", "").result[0]


def cfg_zero_star(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_cfg import CFGZeroStar

    return CFGZeroStar.execute(model).result[0]


def cfg_per_frame(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_video_model import VideoLinearCFGGuidance

    return VideoLinearCFGGuidance().patch(model, 2.0)[0]


def context_windows(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_context_windows import LTXVContextWindowsNode, WanContextWindowsManualNode

    node = LTXVContextWindowsNode if family is LTX else WanContextWindowsManualNode
    return node.execute(model, context_length=1, context_overlap=0, context_schedule="standard_static", fuse_method="pyramid",
                        freenoise=False, context_stride=1, closed_loop=False).result[0]


def nag(model: Any, family: Family) -> Any:
    from comfy_extras.nodes_nag import NAGuidance

    return NAGuidance.execute(model, 5.0, 0.5, 1.5).result[0]


Render = Callable[[Any, Ask], Tensor]


@torch.inference_mode()
def sampler_custom(model: Any, ask: Ask) -> Tensor:
    from comfy.samplers import sampler_object
    from comfy_extras.nodes_custom_sampler import SamplerCustom

    given = ask.inputs()
    return SamplerCustom.execute(model, True, ask.seed, ask.cfg, given["positive"], given["negative"], sampler_object(ask.sampler),
                                 schedule(model, ask.steps), given["latent_image"]).result[0]["samples"]


@torch.inference_mode()
def ksampler_advanced(model: Any, ask: Ask, start: int = 0, end: int = 10000, leftover: str = "disable",
                      latent: Any = None) -> Tensor:
    import nodes

    given = ask.inputs()
    noise, latent = ("enable", given["latent_image"]) if latent is None else ("disable", latent)
    return nodes.KSamplerAdvanced().sample(
        model, noise, ask.seed, ask.steps, ask.cfg, ask.sampler, ask.scheduler, given["positive"], given["negative"], latent,
        start, end, leftover)[0]["samples"]


def guided(make: Callable[[Any, Ask], Any]) -> Render:
    """SamplerCustomAdvanced with a guider."""
    @torch.inference_mode()
    def render(model: Any, ask: Ask) -> Tensor:
        from comfy.samplers import sampler_object
        from comfy_extras.nodes_custom_sampler import Noise_RandomNoise, SamplerCustomAdvanced

        return SamplerCustomAdvanced.execute(Noise_RandomNoise(ask.seed), make(model, ask), sampler_object(ask.sampler),
                                             schedule(model, ask.steps), ask.inputs()["latent_image"]).result[0]["samples"]
    return render


def cfg_guider(model: Any, ask: Ask) -> Any:
    from comfy_extras.nodes_custom_sampler import CFGGuider

    return CFGGuider.execute(model, encode(ask.text, mask=ask.ltx), encode(ask.negative, mask=ask.ltx), ask.cfg).result[0]


def basic_guider(model: Any, ask: Ask) -> Any:
    from comfy_extras.nodes_custom_sampler import BasicGuider

    return BasicGuider.execute(model, encode(ask.text, mask=ask.ltx)).result[0]


def dual_cfg(model: Any, ask: Ask) -> Any:
    from comfy_extras.nodes_custom_sampler import DualCFGGuider

    texts = [encode(t, mask=ask.ltx) for t in (ask.text, "on snow", ask.negative)]
    return DualCFGGuider.execute(model, *texts, 3.0, 2.0, "regular").result[0]


def dual_model(model: Any, ask: Ask) -> Any:
    from comfy_extras.nodes_custom_sampler import Guider_DualModel

    guider = Guider_DualModel(model, model)
    guider.set_conds(encode(ask.text, mask=ask.ltx), encode(ask.negative, mask=ask.ltx))
    guider.set_cfg(ask.cfg)
    return guider


def cfg_per_sigma(model: Any, ask: Ask) -> Any:
    """A guider as packs write it: the host's own, with a cfg that depends on the noise level."""
    import comfy.samplers

    class ScheduledCFGGuider(comfy.samplers.CFGGuider):
        def predict_noise(self, x: Tensor, timestep: Tensor, model_options: Any = None, seed: Any = None) -> Tensor:
            self.cfg = 5.0 if float(timestep.flatten()[0]) > 0.5 else 1.0
            return super().predict_noise(x, timestep, model_options or {}, seed)

    guider = ScheduledCFGGuider(model)
    guider.set_conds(encode(ask.text, mask=ask.ltx), encode(ask.negative, mask=ask.ltx))
    return guider


def stg(model: Any, ask: Ask) -> Any:
    """As LTX-Video's own STG guider works: a third pass with a block left out, by which the other two are corrected."""
    import comfy.samplers

    class STGGuider(comfy.samplers.CFGGuider):
        def predict_noise(self, x: Tensor, timestep: Tensor, model_options: Any = None, seed: Any = None) -> Tensor:
            given = model_options or {}
            positive, negative = self.conds["positive"], self.conds["negative"]
            skip = comfy.model_patcher.set_model_options_patch_replace(
                given.copy(), lambda call, extra: {"img": call["img"]}, "dit", "double_block", 1)
            two = comfy.samplers.calc_cond_batch(self.inner_model, [positive, negative], x, timestep, given)
            (third,) = comfy.samplers.calc_cond_batch(self.inner_model, [positive], x, timestep, skip)
            return two[1] + self.cfg * (two[0] - two[1]) + two[0] - third

    guider = STGGuider(model)
    guider.set_conds(encode(ask.text, mask=ask.ltx), encode(ask.negative, mask=ask.ltx))
    guider.set_cfg(ask.cfg)
    return guider


def by_hand(model: Any, ask: Ask) -> Tensor:
    """Sigmas given by hand: none of the host's schedules."""
    return custom(model, ask, torch.cat([torch.linspace(1, 0.2, ask.steps), torch.zeros(1)]))
