"""Loads the pack against this double and renders with it; prints what happened as JSON. Run by tests/test_old_host.py."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from comfy.model_patcher import Model, ModelPatcher  # noqa: E402
from comfy.samplers import CFGGuider  # noqa: E402
from comfy_api.latest import Hidden  # noqa: E402
from server import PromptServer  # noqa: E402


def pack() -> Any:
    spec = importlib.util.spec_from_file_location("carnator", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)])
    assert spec is not None and spec.loader is not None
    module = sys.modules["carnator"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> dict[str, Any]:
    async def load() -> list[Any]:
        extension = await pack().comfy_entrypoint()
        await extension.on_load()
        return await extension.get_node_list()  # type: ignore[no-any-return]

    nodes = {n.GET_SCHEMA().node_id: n for n in asyncio.run(load())}
    shown = {i: {"inputs": [s.id for s in n.GET_SCHEMA().inputs],
                 "advanced": [s.id for s in n.GET_SCHEMA().inputs if s.extra_dict.get("advanced")]} for i, n in nodes.items()}

    graph = {"6": {"class_type": "CarnatorReuse", "inputs": {"model": ["1", 0]}},
             "3": {"class_type": "CLIPTextEncode", "inputs": {"text": "a red ball on snow", "clip": ["2", 0]}},
             "7": {"class_type": "KSampler", "inputs": {"model": ["6", 0], "positive": ["3", 0]}}}
    reuse = nodes["CarnatorReuse"].PREPARE_CLASS_CLONE({Hidden.unique_id: "6", Hidden.prompt: graph})
    model = Model()
    patcher = ModelPatcher(model)
    patched = reuse.execute(patcher, "balanced", "any seed (fastest)").result[0].clone().clone()
    made = torch.Generator().manual_seed(0)
    noise, text = torch.randn(1, 16, 2, 8, 10, generator=made), torch.randn(2, 1, 6, 32, generator=made)
    sigmas = torch.linspace(1, 0, 9)
    empty = torch.zeros_like(noise)

    def render(which: Any, **more: Any) -> tuple[torch.Tensor, int]:
        before = model.calls
        return CFGGuider(which, text[:1, 0], text[1:, 0], 5.0).sample(noise, empty, sigmas, **more), model.calls - before

    dense, calls = render(patcher)
    first, computed = render(patched)
    from carnator.carnator_core.hosts import storing

    storing.settle()
    again, replayed = render(patched)
    masked = CFGGuider(patched, text[:1, 0], text[1:, 0], 5.0, area=(1, 2)).sample(noise, empty, sigmas)

    import comfy.model_management as management

    def stop(i: int, *_: Any) -> None:
        management.wanted = i == 3

    other = ModelPatcher(Model())
    torch.nn.init.constant_(other.model.diffusion_model.weight, 0.5)
    stopped = False
    try:
        CFGGuider(reuse.execute(other, "balanced", "any seed (fastest)").result[0], text[:1, 0], text[1:, 0], 5.0).sample(
            noise, empty, sigmas, callback=stop)
    except management.InterruptProcessingException:
        stopped = True
    return {"nodes": shown, "calls": [calls, computed, replayed], "same": [torch.equal(dense, first), torch.equal(dense, again)],
            "aside": [PromptServer.instance.lines[-1], torch.equal(masked, dense)],
            "said": PromptServer.instance.lines, "decisions": [d["decision"] for e, d in PromptServer.instance.sent
                                                               if e == "carnator.summary"],
            "prompt": next(d["prompt"] for e, d in PromptServer.instance.sent if e == "carnator.summary"),
            "untouched": patcher.wrappers == {} and patcher.model_options == {"transformer_options": {}}, "stopped": stopped}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()) + "\n")
