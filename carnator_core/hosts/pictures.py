"""Predictions as pictures: decoded with a VAE, or estimated with the latent format's RGB factors."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("carnator")


def frames_of(model: Any, denoised: Tensor, vae: Any = None) -> Tensor:
    """A prediction [C, T, H, W] as one picture for each latent frame, [T, h, w, 3] sRGB 0..1: decoded with a VAE, or
    estimated with the latent format's RGB factors (grey without either). A VAE that fails is left out."""
    if vae is not None:
        try:
            images = vae.decode(model.process_latent_out(denoised[None].float()))
        except (RuntimeError, ValueError, TypeError) as error:
            log.warning("Carnator: this VAE cannot decode the model's latent (%s); colours are estimated without it.",
                        type(error).__name__)
        else:
            images = images.reshape(-1, *images.shape[-3:]).float().cpu().clamp(0, 1)
            last = torch.linspace(0, len(images) - 1, denoised.shape[1]).round().long()
            return images[last]
    raw = model.process_latent_out(denoised[None].float())[0].cpu()
    factors = getattr(model.latent_format, "latent_rgb_factors", None)
    if factors is None:
        return raw.mean(0).sigmoid().unsqueeze(-1).expand(-1, -1, -1, 3)
    bias = torch.tensor(getattr(model.latent_format, "latent_rgb_factors_bias", None) or [0.0, 0.0, 0.0])
    rgb = torch.einsum("cthw,cr->thwr", raw, torch.tensor(factors, dtype=torch.float32)) + bias
    return (rgb * 0.5 + 0.5).clamp(0, 1)


def room_for(vae: Any, patcher: Any, denoised: Tensor) -> Any:
    """The VAE, where it can decode two frames of a prediction [C, T, H, W] beside the sampling model; None where the host
    would have to drive that model out for it, in the middle of its render, and with it what LoRAs have patched into it."""
    import comfy.model_management as management

    if vae is None or patcher.load_device.type == "cpu":
        return vae
    try:
        if all(getattr(p, "is_dynamic", lambda: False)() for p in (patcher, vae.patcher)):
            return vae  # the host pages single layers in and out
        shape = (1, denoised.shape[0], min(2, denoised.shape[1]), *denoised.shape[2:])
        needed = vae.memory_used_decode(shape, vae.vae_dtype) + vae.patcher.model_size()
        free = management.get_free_memory(patcher.load_device)
    except (AttributeError, TypeError):
        return None
    if 1.2 * needed <= free:
        return vae
    log.info("Carnator: there is no room for the VAE beside the model (%.1f GB needed, %.1f GB free); colours are estimated "
             "without it.", needed / 2**30, free / 2**30)
    return None


def tail_frame(model: Any, denoised: Tensor, vae: Any = None) -> Tensor:
    """The last frame of a prediction, [h, w, 3] sRGB 0..1; a VAE decodes two latent frames at most."""
    return frames_of(model, denoised[:, -2:], vae)[-1]
