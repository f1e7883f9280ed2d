"""Wrappers around sampling and model calls, as ComfyUI 0.3.64 nests them: the first one added is the outermost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WrappersMP:
    OUTER_SAMPLE = "outer_sample"
    PREDICT_NOISE = "predict_noise"
    APPLY_MODEL = "apply_model"
    DIFFUSION_MODEL = "diffusion_model"


class Executor:
    def __init__(self, original: Callable[..., Any], class_obj: Any, wrappers: list[Callable[..., Any]]) -> None:
        self.original, self.class_obj, self.wrappers = original, class_obj, wrappers

    def execute(self, *args: Any) -> Any:
        if not self.wrappers:
            return self.original(*args)
        return self.wrappers[0](Executor(self.original, self.class_obj, self.wrappers[1:]), *args)

    __call__ = execute
