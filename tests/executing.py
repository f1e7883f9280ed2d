"""Executes shared workflows by the host's own executor, with the demo's weights under the names of the real ones.

What stands in: every file a loader names (the demo model of its family, by the latent that the graph makes; a random one of
the real class for image to video, of which the demo has none), the text encoder's loader (the demo's encoder), pictures (an
empty one), sizes, and everything behind the samplers (their latents are kept). Nodes of packs that are not there are
bypassed beforehand.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hosting
import pytest
import torch
from carnator.demo import families
from torch import Tensor

SAMPLERS = ("KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced")
SIZES = {"EmptyHunyuanLatentVideo": (80, 64, 5), "Wan22ImageToVideoLatent": (160, 128, 5), "WanImageToVideo": (80, 64, 5),
         "EmptyLTXVLatentVideo": (160, 128, 9)}  # fmt: skip
STEPS = 10
KEEP = "CarnatorTestKeep"


def shipped(family: families.Family) -> tuple[dict[str, Tensor], dict[str, str] | None]:
    """A demo model's weights and its file's metadata."""
    from carnator.demo.host import WEIGHTS
    from safetensors import safe_open

    with safe_open(WEIGHTS / family.weights, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118 (not a dict)


class Keep:
    """An output node of the tests: what reaches it is kept."""

    INPUT_TYPES = classmethod(lambda cls: {"required": {"samples": ("LATENT",)}})  # type: ignore[var-annotated]
    RETURN_TYPES = ()
    FUNCTION, CATEGORY, OUTPUT_NODE = "keep", "test", True
    kept: list[Tensor] = []

    def keep(self, samples: dict[str, Any]) -> dict[str, Any]:
        Keep.kept.append(samples["samples"].clone())
        return {}


class Studio:
    """A folder of stand-in weights, and the host's executor over it."""

    def __init__(self, folder: Path, page: hosting.Page, monkeypatch: pytest.MonkeyPatch) -> None:
        import folder_paths
        import nodes

        self.folder, self.page = folder, page
        for kind in ("diffusion_models", "checkpoints", "vae", "loras"):
            (folder / kind).mkdir(parents=True, exist_ok=True)
            paths, extensions = folder_paths.folder_names_and_paths[kind]
            monkeypatch.setitem(folder_paths.folder_names_and_paths, kind, ([str(folder / kind), *paths], extensions))
        folder_paths.filename_list_cache.clear()
        monkeypatch.setitem(nodes.NODE_CLASS_MAPPINGS, KEEP, Keep)
        for name, value in (("client_id", "page"), ("last_node_id", None), ("last_prompt_id", None), ("sockets_metadata", {}),
                            ("prompt_queue", None)):  # fmt: skip
            monkeypatch.setattr(page, name, value, raising=False)
        self.forget()

    def forget(self) -> None:
        """Start from an empty cache of node outputs, as after a restart."""
        import execution

        new = "cache_args" in inspect.signature(execution.PromptExecutor).parameters  # not in ComfyUI 0.3.64
        given = {"cache_args": {"lru": 0, "ram": 0, "ram_inactive": 0}} if new else {}
        self.executor = execution.PromptExecutor(self.page, execution.CacheType.CLASSIC, **given)

    def run(self, prompt: dict[str, Any]) -> list[Tensor]:
        """Latents of every sampler, in the order of their ids. Raises AssertionError with the host's own message."""
        import execution

        Keep.kept.clear()
        self.page.prompt_queue = SimpleNamespace(get_current_queue=lambda: ([(0, "test", prompt, {}, [])], []))
        valid = asyncio.run(execution.validate_prompt("test", prompt, None))
        assert valid[0], json.dumps([valid[1], valid[3]])[:1500]
        with torch.inference_mode():
            self.executor.execute(prompt, "test", {"client_id": "page"}, valid[2])
        assert self.executor.success, [m for m in self.executor.status_messages if m[0] == "execution_error"]
        return list(Keep.kept)

    def prepared(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """The prompt with everything replaced that has a stand-in, cut off behind its samplers."""
        prompt = json.loads(json.dumps(prompt))
        picture = any(i in n["inputs"] for n in prompt.values() for i in ("start_image",))
        large = any(n["class_type"] == "Wan22ImageToVideoLatent" for n in prompt.values())
        for entry in prompt.values():
            kind, inputs = entry["class_type"], entry["inputs"]
            if kind in SIZES:
                inputs.update(zip(("width", "height", "length"), SIZES[kind], strict=True))
            if kind == "WanImageToVideo":
                inputs.pop("clip_vision_output", None)  # optional, and its model is large
            if "steps" in inputs and kind != "KSamplerAdvanced":
                inputs["steps"] = STEPS
            if kind == "CLIPLoader":
                entry.update(class_type="CarnatorDemoTextEncoder", inputs={})
            elif kind == "LoadImage":
                entry.update(class_type="EmptyImage", inputs={"width": 64, "height": 64, "batch_size": 1, "color": 255})
            elif kind == "UNETLoader":
                self._wan(inputs["unet_name"], 48 if large else 16, picture)
            elif kind == "CheckpointLoaderSimple":
                self._ltx(inputs["ckpt_name"])
            elif kind == "VAELoader":
                self._vae(inputs["vae_name"])
            elif kind.startswith("LoraLoader"):
                inputs["lora_name"] = self._lora(inputs["lora_name"])
        wanted, queue = set(), [k for k, n in prompt.items() if n["class_type"] in SAMPLERS]
        kept = {f"keep{i}": {"class_type": KEEP, "inputs": {"samples": [k, 0]}} for i, k in enumerate(sorted(queue))}
        while queue:
            key = queue.pop()
            if key not in wanted:
                wanted.add(key)
                queue += [v[0] for v in prompt[key]["inputs"].values() if isinstance(v, list)]
        return {k: n for k, n in prompt.items() if k in wanted} | kept

    def _save(self, file: Path, state: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
        from safetensors.torch import save_file

        file.parent.mkdir(parents=True, exist_ok=True)
        save_file({k: v.contiguous() for k, v in state.items()}, file, metadata)

    def _wan(self, name: str, channels: int, picture: bool) -> None:
        file = self.folder / "diffusion_models" / name
        if file.exists():
            return
        low = "low" in name  # the two experts of a pair get weights of their own
        if picture:
            return self._save(file, hosting.wan_state(int(low), 2, channels, inputs=36))
        state, metadata = shipped(families.WAN22 if channels == 48 else families.WAN)
        self._save(file, {k: v * 1.001 if low and "ffn" in k else v for k, v in state.items()}, metadata)

    def _ltx(self, name: str) -> None:
        file = self.folder / "checkpoints" / name
        if not file.exists():
            state, metadata = shipped(families.LTX)
            self._save(file, {f"model.diffusion_model.{k}": v for k, v in state.items()}, metadata)

    def _vae(self, name: str) -> None:
        from carnator.demo.host import WEIGHTS

        file = self.folder / "vae" / name
        if not file.exists():
            file.symlink_to(WEIGHTS / "carnator_demo_wan_vae.safetensors")

    def _lora(self, name: str) -> str:
        name = name.replace("\\", "/").split("/")[-1]
        made = torch.Generator().manual_seed(5)
        base = "diffusion_model.blocks.0.self_attn.q"
        self._save(self.folder / "loras" / name, {
            f"{base}.lora_down.weight": torch.randn(4, 256, generator=made) * 0.1,
            f"{base}.lora_up.weight": torch.randn(256, 4, generator=made) * 0.1})
        return name
