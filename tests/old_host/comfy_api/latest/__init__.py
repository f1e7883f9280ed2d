"""The V3 node interface of ComfyUI 0.3.64, as far as this pack may use it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import StrEnum
from types import SimpleNamespace
from typing import Any


class Slot:
    """An input or output; what stands in `fields` is all that it takes."""

    fields: tuple[str, ...] = ()

    def __init__(self, id: Any = None, **given: Any) -> None:
        unknown = set(given) - set(self.fields)
        if unknown:
            raise TypeError(f"{type(self).__qualname__} got an unexpected keyword argument {sorted(unknown)[0]!r}")
        self.id = id
        for name in self.fields:
            setattr(self, name, given.get(name))
        if self.extra_dict is None:
            self.extra_dict: dict[str, Any] = {}


COMMON = ("display_name", "optional", "tooltip", "lazy")
WIDGET = (*COMMON, "default", "socketless")


def kind(name: str, *more: str, extra: bool = False) -> Any:
    """A link or widget type with its Input and Output."""
    given = {"fields": (*(WIDGET if more else COMMON), *more, *(("extra_dict",) if extra else ())), "extra_dict": None}
    made = type("Input", (Slot,), {**given, "io_type": name, "output": False})
    out = type("Output", (Slot,), {"fields": ("display_name", "tooltip", "is_output_list"), "extra_dict": None, "io_type": name})
    return SimpleNamespace(Input=made, Output=out, io_type=name)


class _MultiTypeInput(Slot):
    fields = ("types", *COMMON, "extra_dict")
    extra_dict = None
    io_type = "*"

    def __init__(self, id: Any, types: list[Any], **given: Any) -> None:
        super().__init__(id, types=types, **given)


class Hidden(StrEnum):
    unique_id = "UNIQUE_ID"
    prompt = "PROMPT"
    extra_pnginfo = "EXTRA_PNGINFO"
    dynprompt = "DYNPROMPT"


@dataclass
class Schema:
    node_id: str
    display_name: str | None = None
    category: str = "sd"
    inputs: list[Any] | None = None
    outputs: list[Any] | None = None
    hidden: list[Hidden] | None = None
    description: str = ""
    is_input_list: bool = False
    is_output_node: bool = False
    is_deprecated: bool = False
    is_experimental: bool = False
    is_api_node: bool = False
    not_idempotent: bool = False
    enable_expand: bool = False

    def finish(self) -> None:
        """Number nameless outputs; ids are unique, and none is an input's and an output's."""
        for number, one in enumerate(self.outputs or []):
            one.id = one.id or f"_{number}_{one.io_type}_"
        ids = [i.id for i in self.inputs or []] + [o.id for o in self.outputs or []]
        if len(set(ids)) < len(ids):
            raise ValueError(f"Ids must be unique, but of {ids} some are not.")


class NodeOutput:
    def __init__(self, *args: Any, ui: Any = None, expand: Any = None, block_execution: str | None = None) -> None:
        self.args, self.ui, self.expand, self.block_execution = args, ui, expand, block_execution

    @property
    def result(self) -> Any:
        return self.args or None


class ComfyNode:
    hidden: Any = None

    @classmethod
    def GET_SCHEMA(cls) -> Schema:
        schema: Schema = cls.define_schema()  # type: ignore[attr-defined]
        schema.finish()
        return schema

    @classmethod
    def PREPARE_CLASS_CLONE(cls, hidden_inputs: dict[Hidden, Any]) -> type[ComfyNode]:
        """What this version hands over are the hidden inputs themselves; what was not asked for is None."""
        found = SimpleNamespace(**{h.name: hidden_inputs.get(h) for h in Hidden})
        return type(f"{cls.__name__}Clone", (cls,), {"hidden": found})


class ComfyExtension(ABC):
    async def on_load(self) -> None:
        """Nothing to load, unless an extension says so."""
        return

    @abstractmethod
    async def get_node_list(self) -> list[type[ComfyNode]]: ...


@dataclass
class _Preview:
    value: Any
    cls: Any = None
    values: dict[str, Any] = field(default_factory=dict)


NUMBER = ("min", "max", "step", "display_mode", "force_input")
io = SimpleNamespace(
    ComfyNode=ComfyNode, Schema=Schema, NodeOutput=NodeOutput, Hidden=Hidden,
    Custom=lambda name: kind(name, extra=True), MultiType=SimpleNamespace(Input=_MultiTypeInput),
    Boolean=kind("BOOLEAN", "label_on", "label_off", "force_input"), Int=kind("INT", "control_after_generate", *NUMBER),
    Float=kind("FLOAT", "round", *NUMBER),
    AnyType=kind("*"), String=kind("STRING", "multiline", "placeholder", "dynamic_prompts", "force_input"),
    Combo=kind("COMBO", "options", "control_after_generate", "upload", "image_folder", "remote"),
    **{n: kind(n.upper(), extra=True) for n in ("Clip", "Conditioning", "Image", "Latent", "Mask", "Model", "Vae", "Sampler",
                                                "Sigmas", "Guider", "Noise")},
)  # fmt: skip
ui = SimpleNamespace(PreviewText=_Preview, PreviewImage=_Preview)
