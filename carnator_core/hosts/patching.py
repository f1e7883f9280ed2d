"""One model call's own patches: attention reading, restricted layers, sparse attention. Gone after the call."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..backbones.base import Backbone, Tokens
from ..observe import AttentionReader, Window, branches
from ..regions import Regions
from ..request import Settings
from ..sparse import Connect
from .eligible import backbone_of

log = logging.getLogger("carnator")


def cfg_pp_functions(options: dict[str, Any]) -> list[Callable[[dict[str, Any]], Tensor]]:
    """The functions by which the host's `_cfg_pp` samplers listen for the unconditional prediction."""
    functions = options.get("sampler_post_cfg_function", [])
    return [f for f in functions if getattr(f, "__module__", "").endswith("k_diffusion.sampling")]


def restrictable(options: dict[str, Any], objects: Mapping[str, Any]) -> bool:
    """Whether restricted layers may stand in for the host's blocks: only where no other node works inside of them.

    objects: what stands in for parts of the model (a patcher's object patches); a block's, or a layer's of one, would be left
    out.
    """
    transformer = options.get("transformer_options", {})
    inside = any("blocks." in name for name in objects)
    return not transformer.get("patches") and not transformer.get("patches_replace") and not inside


def compiled(options: dict[str, Any], objects: Mapping[str, Any]) -> bool:
    """Whether the forward is compiled, whole (the host's TorchCompileModel and what builds on it) or block by block. Its guards
    leave `transformer_options` out, so what is patched in there would stay in every later call, or never come into any."""
    return "torch_compile_kwargs" in options or "torch.compile" in {
        key for keyed in options.get("transformer_options", {}).get("wrappers", {}).values() for key in keyed} or any(
        "blocks." in name and hasattr(held, "_orig_mod") for name, held in objects.items())


# Arguments of an attention call that leave it one that ours may compute in its place.
PLAIN = {"transformer_options", "attn_precision", "_inside_attn_wrapper"}


@dataclass
class _Place:
    """Where a forward is: the block, and how many attentions of it have begun."""

    layer: int = -1
    order: int = 0


class Patched:
    """`options`: a copy of the call's model options with what this call needs; the original is left as it was.

    Slots that hold one value (a block's replacement, the attention override) are chained, never overwritten.
    objects: the patcher's object patches. `uncond` holds the unconditional prediction [C, T, H, W] after the call when
    `capture` was asked for, `ran` says whether the last block ran when `witness` was: a step cache of another pack, under
    whatever name, leaves it out.
    In a compiled forward nothing is patched, and nothing witnessed.
    """

    def __init__(self, options: dict[str, Any], layers: int, reader: AttentionReader | None, window: Window | None,
                 restrict: bool, connect: Connect | None, capture: bool, witness: bool = False,
                 objects: Mapping[str, Any] | None = None) -> None:
        self.options = options
        self.uncond: Tensor | None = None
        if compiled(options, objects or {}):
            reader = window = connect = None
            witness = False
        self.ran = not witness
        if reader is None and window is None and connect is None and not capture and not witness:
            return
        self.options = dict(options)
        if capture:
            self.options["sampler_post_cfg_function"] = [*options.get("sampler_post_cfg_function", []), self._capture]
        if reader is None and window is None and connect is None and not witness:
            return
        transformer = self.options["transformer_options"] = dict(options.get("transformer_options", {}))
        replace = dict(transformer.get("patches_replace", {}))
        blocks = replace["dit"] = dict(replace.get("dit", {}))
        transformer["patches_replace"] = replace
        inside = range(window.first, window.last) if window is not None else range(0)
        reading = reader.layers if reader is not None else ()
        place = _Place()
        for i in range(layers):
            if i in inside or i in reading or connect is not None:
                key = ("double_block", i)
                blocks[key] = _block(i, place, blocks.get(key), window if i in inside else None, restrict)
        if witness:
            key = ("double_block", layers - 1)
            blocks[key] = self._witness(blocks.get(key))
        if reader is not None or connect is not None:
            previous = transformer.get("optimized_attention_override")
            transformer["optimized_attention_override"] = _override(place, previous, reader, connect)

    def _witness(self, previous: Callable[..., Any] | None) -> Callable[..., dict[str, Any]]:
        def replacement(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
            self.ran = True
            return previous(call, extra) if previous is not None else extra["original_block"](call)
        return replacement

    def _capture(self, args: dict[str, Any]) -> Tensor:
        uncond = args.get("uncond_denoised")
        self.uncond = uncond[0].clone() if uncond is not None else None
        return args["denoised"]


def _block(layer: int, place: _Place, previous: Callable[..., Any] | None, window: Window | None,
           restrict: bool) -> Callable[..., dict[str, Any]]:
    def replacement(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        place.layer, place.order = layer, 0

        def original(arguments: dict[str, Any]) -> dict[str, Any]:
            return previous(arguments, extra) if previous is not None else extra["original_block"](arguments)

        if window is None:
            return original(call)
        return window.restricted(layer, call) if restrict else window.full(layer, call, original)
    return replacement


_given_up: list[str] = []  # why sparse attention is off until the host is started again


def _give_up(error: Exception) -> None:
    """Sparse attention failed: the host's own attention computes this call, and every later one. Interrupts pass through."""
    if type(error).__name__ == "InterruptProcessingException":
        raise error
    _given_up.append(f"{type(error).__name__}: {error}")
    log.warning("Carnator: sparse attention failed here and is off until ComfyUI is started again (%s).", _given_up[0])


def _override(place: _Place, previous: Callable[..., Tensor] | None, reader: AttentionReader | None,
              connect: Connect | None) -> Callable[..., Tensor]:
    def override(func: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, heads: int, *args: Any, **kwargs: Any) -> Tensor:
        place.order += 1
        options = kwargs.get("transformer_options") or {}
        plain = previous is None and not args and not {n for n, v in kwargs.items() if v is not None and v is not False} - PLAIN
        if reader is not None:
            reader.attention(place.layer, place.order, q, k, heads, options, bool(kwargs.get("skip_reshape")),
                             kwargs.get("mask") if not args else args[0])
        if connect is not None and place.order == 1 and plain and not _given_up:
            try:
                out = connect.attention(place.layer, q, k, v, heads, branches(options, q.shape[0]))
            except Exception as error:  # noqa: BLE001 - a kernel that a driver refuses must not end the render
                _give_up(error)
                out = None
            if out is not None:
                return out
        if previous is not None:
            return previous(func, q, k, v, heads, *args, **kwargs)
        return func(q, k, v, heads, *args, **kwargs)
    return override


def window_maker(guider: Any, settings: Settings) -> Callable[[Regions], Window | None]:
    """Region-restricted layers of the model that this guider has."""
    model = guider.model_patcher.model
    backbone = backbone_of(model)

    def make(scope: Regions) -> Window | None:
        if backbone is None or not restrictable(guider.model_options, getattr(guider.model_patcher, "object_patches", {})):
            return None
        window = _window(backbone, model.diffusion_model, settings, scope)
        if window is not None and (short := _short_of(window, scope, guider.model_patcher)):
            log.info("Carnator: the middle layers are computed whole: %s.", short)
            return None
        return window
    return make


def _short_of(window: Window, scope: Regions, patcher: Any) -> str:
    """Why there is no memory for what restricted layers keep between steps, in words; "" where there is."""
    import comfy.model_management

    device = patcher.load_device
    if device.type == "cpu":
        return ""
    width = next((p.shape[0] for name, p in window.blocks[0].named_parameters() if name.endswith("q.weight")), 0)
    needed, free = window.nbytes(width, scope.active.numel()), comfy.model_management.get_free_memory(device)
    if needed <= 0.5 * free:
        return ""
    return f"restricting them keeps {needed / 2**30:.1f} GB on the device, and {free / 2**30:.1f} GB are free"


def _window(backbone: Backbone, diffusion: Any, settings: Settings, scope: Regions) -> Window | None:
    from comfy.ldm.modules.attention import optimized_attention

    blocks = backbone.blocks(diffusion)
    first, last = round(settings.window[0] * len(blocks)), round(settings.window[1] * len(blocks))
    if last - first < 1:
        return None
    return Window(backbone, blocks, first, last, Tokens.of(scope.active, scope.context), optimized_attention)
