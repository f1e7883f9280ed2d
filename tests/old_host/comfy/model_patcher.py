"""ModelPatcher as ComfyUI 0.3.64 has it: a clone's model_options are a deep copy, wrappers are kept beside them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _Flow: ...


class ModelSamplingAdvanced(_Flow):
    shift = 8.0
    sigma_max = torch.tensor(1.0)


class Sampling(ModelSamplingAdvanced): ...


class Block(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class WanModel(torch.nn.Module):
    """Stands in for the transformer: a fixed mix of latent and text, then blocks that may be replaced."""

    patch_size = (1, 2, 2)

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.weight = torch.nn.Parameter(torch.linspace(0.1, 0.9, 16))

    def forward(self, x: Tensor, text: Tensor, transformer_options: dict[str, Any]) -> Tensor:
        x = torch.tanh(x * self.weight.detach().reshape(1, 16, 1, 1, 1) * 0.3 + text.mean())
        replace = transformer_options.get("patches_replace", {}).get("dit", {})
        for i, block in enumerate(self.blocks):
            if ("double_block", i) in replace:
                whole = {"original_block": lambda call, block=block: {"img": block(call["img"])}}
                call = {"img": x, "txt": text, "vec": None, "pe": None, "transformer_options": transformer_options}
                x = replace[("double_block", i)](call, whole)["img"]
            else:
                x = block(x)
        return x


class Model(torch.nn.Module):
    latent_format = object()

    def __init__(self) -> None:
        super().__init__()
        self.diffusion_model = WanModel()
        self.calls = 0

    def process_latent_out(self, latent: Tensor) -> Tensor:
        return latent


class ModelPatcher:
    def __init__(self, model: Model) -> None:
        self.model, self.load_device = model, torch.device("cpu")
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.patches: dict[str, Any] = {}
        self.backup: dict[str, Any] = {}
        self.object_patches: dict[str, Any] = {}
        self.wrappers: dict[str, dict[str, list[Callable[..., Any]]]] = {}

    def clone(self) -> ModelPatcher:
        made = ModelPatcher(self.model)
        made.model_options = copy.deepcopy(self.model_options)
        made.wrappers = {kind: {key: list(w) for key, w in keyed.items()} for kind, keyed in self.wrappers.items()}
        return made

    def add_wrapper_with_key(self, wrapper_type: str, key: str, wrapper: Callable[..., Any]) -> None:
        self.wrappers.setdefault(wrapper_type, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, wrapper_type: str, key: str) -> None:
        self.wrappers.get(wrapper_type, {}).pop(key, None)

    def get_all_wrappers(self, wrapper_type: str) -> list[Callable[..., Any]]:
        return [w for keyed in self.wrappers.get(wrapper_type, {}).values() for w in keyed]

    def get_model_object(self, name: str) -> Any:
        assert name == "model_sampling"
        return Sampling()

    def model_dtype(self) -> torch.dtype:
        return torch.float32
