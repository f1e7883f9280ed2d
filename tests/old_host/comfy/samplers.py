"""CFGGuider as ComfyUI 0.3.64 calls it: no packed latents, no further keywords."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .patcher_extension import Executor, WrappersMP


class KSampler:
    SAMPLERS = ["euler", "uni_pc"]
    SCHEDULERS = ["simple", "normal"]


class Euler:
    """A sampler function's name and options, and Euler's method."""

    extra_options: dict[str, Any] = {}

    def __init__(self) -> None:
        self.sampler_function = sample_euler


def sample_euler(model: Any, x: Tensor, sigmas: Tensor, callback: Any) -> Tensor:
    for i in range(len(sigmas) - 1):
        denoised = model(x, sigmas[i].reshape(1))
        if callback is not None:
            callback(i, denoised, x, len(sigmas) - 1)
        x = x + (x - denoised) / sigmas[i] * (sigmas[i + 1] - sigmas[i])
    return x


class CFGGuider:
    def __init__(self, patcher: Any, positive: Tensor, negative: Tensor, cfg: float, **extra: Any) -> None:
        self.model_patcher, self.model_options, self.cfg = patcher, patcher.model_options, cfg
        self.conds = {"positive": [{"cross_attn": positive, **extra}], "negative": [{"cross_attn": negative}]}
        self.inner_model = patcher.model

    def sample(self, noise: Tensor, latent: Tensor, sigmas: Tensor, seed: int = 0, callback: Any = None) -> Tensor:
        wrappers = self.model_patcher.get_all_wrappers(WrappersMP.OUTER_SAMPLE)
        executor = Executor(self.outer_sample, self, wrappers)
        return executor.execute(noise, latent, Euler(), sigmas, None, callback, True, seed)

    def outer_sample(self, noise: Tensor, latent: Tensor, sampler: Any, sigmas: Tensor, denoise_mask: Any = None,
                     callback: Any = None, disable_pbar: bool = False, seed: Any = None) -> Tensor:
        return self.inner_sample(noise, latent, sampler, sigmas, callback, seed)

    def inner_sample(self, noise: Tensor, latent: Tensor, sampler: Any, sigmas: Tensor, callback: Any, seed: Any) -> Tensor:
        def model(x: Tensor, sigma: Tensor) -> Tensor:
            return self(x, sigma, self.model_options, seed)

        return torch.as_tensor(sampler.sampler_function(model, noise * sigmas[0] + latent, sigmas, callback))

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.outer_predict_noise(*args, **kwargs)

    def outer_predict_noise(self, x: Tensor, timestep: Tensor, model_options: dict[str, Any], seed: Any = None) -> Tensor:
        wrappers = self.model_patcher.get_all_wrappers(WrappersMP.PREDICT_NOISE)
        return torch.as_tensor(Executor(self.predict_noise, self, wrappers).execute(x, timestep, model_options, seed))

    def predict_noise(self, x: Tensor, timestep: Tensor, model_options: dict[str, Any] | None = None,
                      seed: Any = None) -> Tensor:
        self.inner_model.calls += 1
        options = (model_options or {}).get("transformer_options", {})
        cond, uncond = (self.inner_model.diffusion_model(x, c[0]["cross_attn"], options) for c in self.conds.values())
        denoised = uncond + (cond - uncond) * self.cfg
        for function in (model_options or {}).get("sampler_post_cfg_function", []):
            denoised = function({"denoised": denoised, "uncond_denoised": uncond, "cond_denoised": cond})
        return torch.as_tensor(denoised)
