"""Whether a sampling call is one that reuse can serve; if not, why, in words for the creator."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import Tensor

from ..backbones.base import Backbone
from ..backbones.ltx import Ltx
from ..backbones.wan import Wan

PLAIN_CONDITIONING = {"cross_attn", "model_conds", "uuid", "pooled_output", "attention_mask", "frame_rate", "carnator",
                      "prompt_type", "hooks", "strength", "default"}
GUIDING = ("predict_noise", "outer_predict_noise", "__call__", "inner_sample", "outer_sample")
STEP_CACHES = ("easycache", "teacache", "magcache", "lazycache", "wavespeed", "fbcache")


class Part(Enum):
    """What of a render a sampling call is."""

    WHOLE = "whole"
    FIRST = "first"  # of two experts: from pure noise, and some noise is left over
    SECOND = "second"  # from a latent with its noise in it, to the end


def part_of(noise: Tensor, latent: Tensor | None, sigmas: Tensor) -> Part:
    """Which part of a render a call with this noise, latent and schedule [n + 1] is, if it is one that can be served."""
    pictured = latent is not None and bool(torch.count_nonzero(latent))
    if pictured and not torch.count_nonzero(noise):
        return Part.SECOND
    return Part.FIRST if len(sigmas) > 1 and float(sigmas[-1]) > 1e-3 and not pictured else Part.WHOLE


def backbone_of(model: Any) -> Backbone | None:
    """The adapter for a host's diffusion model, or None when there is none."""
    diffusion: Any = getattr(model, "diffusion_model", None)
    if type(diffusion).__name__ == "WanModel" and getattr(diffusion, "img_emb", None) is None:
        return Wan(diffusion.patch_size)
    if type(diffusion).__name__ == "LTXVModel" and not getattr(diffusion, "cross_attention_adaln", False):
        return Ltx()
    return None


def _guides_its_own_way(guider: Any) -> bool:
    """Whether a guider (STG, a dual one, a cfg for each sigma ...) does anything else than the host's own guidance."""
    from comfy.samplers import CFGGuider

    kind = type(guider)
    plain = issubclass(kind, CFGGuider) and all(getattr(kind, name, None) is getattr(CFGGuider, name, None) for name in GUIDING)
    return not plain or not guider.conds.keys() <= {"positive", "negative"}


def _on_many(patcher: Any) -> bool:
    """Whether the host evaluates the branches on several devices at once (its MultiGPU CFG Split)."""
    found = getattr(patcher, "get_additional_models_with_key", None)
    return found is not None and bool(found("multigpu"))


def _branch_problem(name: str, conds: list[dict[str, Any]]) -> str:
    if len(conds) > 1:
        return f"the {name} conditioning has {len(conds)} parts; Carnator reuses renders of one prompt at a time"
    for key, value in (conds[0] if conds else {}).items():
        if key == "strength" and value == 1.0:
            continue
        if value is not None and key not in PLAIN_CONDITIONING or key == "hooks" and value is not None:
            return f"the {name} conditioning carries {key}; Carnator serves plain text-to-video"
    return ""


def why_not(guider: Any, noise: Tensor, latent: Tensor | None, sampler: Any, sigmas: Tensor, mask: Any,
            latent_shapes: Any, probe: int) -> str:
    """One sentence when this call cannot be served, "" when it can. Looks, and changes nothing."""
    steps = len(sigmas) - 1
    if steps < 1:
        return f"the schedule has {max(steps, 0)} steps; there is nothing to render"
    part = part_of(noise, latent, sigmas)
    if part is Part.WHOLE and steps < probe + 3:
        return f"the render has {steps} steps and the probe takes {probe}; too few are left to save any"
    if part is Part.FIRST and steps < probe + 2:
        return f"the first expert has {steps} steps and the probe takes {probe}; too few are left to save any"
    model = guider.model_patcher.model
    if backbone_of(model) is None:
        return f"{type(model.diffusion_model).__name__} is not a text-to-video model Carnator knows (Wan, LTX-Video)"
    if latent_shapes is not None and len(latent_shapes) > 1 or noise.ndim != 5:
        return f"the latent is {list(noise.shape)}; Carnator serves one video latent [1, channels, frames, height, width]"
    if noise.shape[0] != 1:
        return f"the batch holds {noise.shape[0]} videos; Carnator serves one at a time"
    if mask is not None:
        return "the latent has a noise mask (image-to-video or inpainting); Carnator serves text-to-video"
    if part is not Part.SECOND and latent is not None and torch.count_nonzero(latent) > 0:
        return "the render starts from an image or another latent; Carnator serves text-to-video from pure noise"
    highest = float(guider.model_patcher.get_model_object("model_sampling").sigma_max)
    if part is not Part.SECOND and float(sigmas[0]) < 0.9 * highest or part is Part.SECOND and float(sigmas[-1]) > 1e-3:
        return (f"the schedule runs from sigma {float(sigmas[0]):.3f} to {float(sigmas[-1]):.3f}: a part of a render that "
                "Carnator does not know (a second pass, a third part)")
    if part is not Part.SECOND and torch.count_nonzero(noise) == 0:
        return "the noise is switched off; Carnator serves renders from pure noise"
    if _guides_its_own_way(guider):
        return f"{type(guider).__name__} guides with passes of its own; Carnator knows CFGGuider and BasicGuider"
    if _on_many(guider.model_patcher):
        return "the model is split over several GPUs (MultiGPU); Carnator serves one device"
    options = guider.model_options
    for name in ("context_handler", "model_function_wrapper", "sampler_cfg_function", "sampler_pre_cfg_function",
                 "sampler_post_cfg_function", "sampler_calc_cond_batch_function", "denoise_mask_function"):
        if options.get(name):
            return f"another node changes the sampling ({name}); Carnator steps aside"
    transformer = options.get("transformer_options", {})
    wrapped = {str(key).lower() for kind in transformer.get("wrappers", {}).values() for key in kind}
    for cache in STEP_CACHES:
        if cache in wrapped or cache in {str(k).lower() for k in transformer}:
            return f"{cache} is on; its skipped steps would be remembered as if computed. Keep one of the two"
    for name, conds in guider.conds.items():
        problem = _branch_problem(name, conds)
        if problem:
            return problem
    positive = guider.conds.get("positive") or []
    if not positive or positive[0].get("cross_attn") is None:
        return "there is no positive text conditioning"
    return ""
