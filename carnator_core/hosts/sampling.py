"""One whole render on the host, for the granular nodes: what its own KSampler node does, nothing else."""

from __future__ import annotations

from typing import Any


def sample(inputs: dict[str, Any], model: Any) -> dict[str, Any]:
    """Run the host's common KSampler on `model` with a node's inputs; returns the LATENT dict.

    inputs: seed, steps, cfg, sampler_name, scheduler, positive, negative, latent_image, denoise, as the host's KSampler.
    """
    import nodes

    (latent,) = nodes.common_ksampler(
        model, inputs["seed"], inputs["steps"], inputs["cfg"], inputs["sampler_name"], inputs["scheduler"],
        inputs["positive"], inputs["negative"], inputs["latent_image"], denoise=inputs["denoise"])
    return latent
