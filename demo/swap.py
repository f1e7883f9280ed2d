"""The demo's workflows on another family: what its creators wire in place of Wan2.1's loaders, latent and shift."""

from __future__ import annotations

import math
from typing import Any

from .families import WAN, Family

Prompt = dict[str, dict[str, Any]]


def on_family(prompt: Prompt, family: Family) -> Prompt:
    """The prompt (API form) of a demo workflow with a family's model, VAE, empty latent and noise levels; a new one."""
    if family is WAN:
        return prompt
    return {key: _swapped(prompt, node, family) for key, node in prompt.items()}


def _swapped(prompt: Prompt, node: dict[str, Any], family: Family) -> dict[str, Any]:
    kind, inputs = node["class_type"], dict(node["inputs"])
    if kind == "UNETLoader":
        return {**node, "inputs": inputs | {"unet_name": family.weights}}
    if kind == "VAELoader":
        return {**node, "class_type": "CarnatorDemoVAE", "inputs": {"model": family.title}}
    if kind == "EmptyHunyuanLatentVideo":
        size = {"width": inputs["width"] * family.coarse, "height": inputs["height"] * family.coarse,
                "length": 1 + (inputs["length"] - 1) * family.coarse, "batch_size": 1}
        if family.lifted:
            return {**node, "class_type": "EmptyLTXVLatentVideo", "inputs": size}
        vae = next(key for key, other in prompt.items() if other["class_type"] == "VAELoader")
        return {**node, "class_type": "Wan22ImageToVideoLatent", "inputs": size | {"vae": [vae, 0]}}
    if kind == "CreateVideo":
        return {**node, "inputs": inputs | {"fps": inputs["fps"] * family.coarse}}
    if kind == "ModelSamplingSD3" and family.lifted:
        shift = math.log(inputs["shift"])  # LTX-Video's node takes the logarithm, of two sizes
        return {**node, "class_type": "ModelSamplingLTXV",
                "inputs": {"model": inputs["model"], "max_shift": shift, "base_shift": shift}}
    return node
