"""One model call's own patches: attention reading, restricted layers, sparse attention. Gone after the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from ..observe import AttentionReader, Window
from ..reuse import Run


def cfg_pp_functions(options: dict[str, Any]) -> list[Callable[[dict[str, Any]], Tensor]]:
    """The functions by which the host's `_cfg_pp` samplers listen for the unconditional prediction."""
    functions = options.get("sampler_post_cfg_function", [])
    return [f for f in functions if getattr(f, "__module__", "").endswith("k_diffusion.sampling")]


def restrictable(options: dict[str, Any]) -> bool:
    """Whether restricted layers may stand in for the host's blocks: only where no other node works inside of them."""
    transformer = options.get("transformer_options", {})
    return not transformer.get("patches") and not transformer.get("patches_replace")


class Patched:
    """`options`: a copy of the call's model options with what this call needs; the original is left as it was.

    Slots that hold one value (a block's replacement, the attention override) are chained, never overwritten.
    `uncond` holds the unconditional prediction [C, T, H, W] after the call when `capture` was asked for.
    """

    def __init__(self, options: dict[str, Any], run: Run, reader: AttentionReader | None, window: Window | None,
                 restrict: bool, sparse: float | None, capture: bool) -> None:
        self.options = options
        self.uncond: Tensor | None = None
        if reader is None and window is None and not capture:
            return
        self.options = dict(options)
        if capture:
            self.options["sampler_post_cfg_function"] = [*options.get("sampler_post_cfg_function", []), self._capture]
        if reader is None and window is None:
            return
        transformer = self.options["transformer_options"] = dict(options.get("transformer_options", {}))
        replace = dict(transformer.get("patches_replace", {}))
        blocks = replace["dit"] = dict(replace.get("dit", {}))
        transformer["patches_replace"] = replace
        layers = set(range(window.first, window.last)) if window is not None else set()
        for i in sorted(layers | (set(reader.layers) if reader is not None else set())):
            blocks[("double_block", i)] = _block(i, blocks.get(("double_block", i)), reader, window if i in layers else None, restrict)
        if reader is not None:
            transformer["optimized_attention_override"] = _override(transformer.get("optimized_attention_override"), reader)

    def _capture(self, args: dict[str, Any]) -> Tensor:
        uncond = args.get("uncond_denoised")
        self.uncond = uncond[0].clone() if uncond is not None else None
        return args["denoised"]


def _block(layer: int, previous: Callable[..., Any] | None, reader: AttentionReader | None, window: Window | None,
           restrict: bool) -> Callable[..., dict[str, Any]]:
    def replacement(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        if reader is not None:
            reader.enter(layer)

        def original(arguments: dict[str, Any]) -> dict[str, Any]:
            return previous(arguments, extra) if previous is not None else extra["original_block"](arguments)

        if window is None:
            return original(call)
        return window.restricted(layer, call) if restrict else window.full(layer, call, original)
    return replacement


def _override(previous: Callable[..., Tensor] | None, reader: AttentionReader) -> Callable[..., Tensor]:
    def override(func: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, heads: int, *args: Any, **kwargs: Any) -> Tensor:
        reader.attention(q, k, heads, kwargs.get("transformer_options") or {}, bool(kwargs.get("skip_reshape")))
        if previous is not None:
            return previous(func, q, k, v, heads, *args, **kwargs)
        return func(q, k, v, heads, *args, **kwargs)
    return override
