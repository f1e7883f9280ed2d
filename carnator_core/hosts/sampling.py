"""One whole render on the host, for the granular nodes: what its own KSampler nodes do, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Attach = Callable[[Any], Any]


def plain(model: Any) -> Any:
    """The model as it is: the stock render."""
    return model


def sample(inputs: dict[str, Any], attach: Attach = plain, probing: bool = False) -> dict[str, Any]:
    """Run the host's common KSampler on `attach(model)` with a node's inputs; returns the LATENT dict.

    inputs: model, seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise, as the host's
    KSampler. With a `low_noise_model` as well, it computes the steps from `switch_step` on, as a pair of KSamplerAdvanced
    nodes with leftover noise between them would. probing: the first sampling call alone.
    """
    import nodes

    def call(model: Any, latent: dict[str, Any], **part: Any) -> dict[str, Any]:
        (out,) = nodes.common_ksampler(
            model, inputs["seed"], inputs["steps"], inputs["cfg"], inputs["sampler_name"], inputs["scheduler"],
            inputs["positive"], inputs["negative"], latent, denoise=inputs["denoise"], **part)
        return out

    low = inputs.get("low_noise_model")
    # Held until the end: what the first half leaves for the second lives as long as its model.
    model = attach(inputs["model"])
    if low is None:
        return call(model, inputs["latent_image"])
    half = call(model, inputs["latent_image"], start_step=0, last_step=inputs["switch_step"])
    if probing:
        return half
    return call(attach(low), half, disable_noise=True, start_step=inputs["switch_step"], force_full_denoise=True)
