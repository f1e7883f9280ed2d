"""The samplers of a workflow, what feeds them, and whether Carnator would serve them. Works on files alone.

Judged by node types, wires and typed-in settings, never by the names of model files. What cannot be told from a file
(a model's class, a setting that comes over a wire) is left to the node, which looks again when it runs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .wires import Graph, Value, running, source_of_input

OURS = "CarnatorReuse"
GUIDERS = {"CFGGuider", "BasicGuider"}
SAMPLERS = {"KSampler", "KSamplerAdvanced", "SamplerCustom", "SamplerCustomAdvanced"}
FAMILIES = {"wan": "Wan", "ltxv": "LTX-Video"}
# Latents of text-to-video, with the text encoders (CLIPLoader's types) whose models take them.
VIDEO_LATENTS = {
    "EmptyHunyuanLatentVideo": {"wan"}, "EmptyLTXVLatentVideo": {"ltxv"}, "Wan22ImageToVideoLatent": {"wan"},
    "WanImageToVideo": {"wan"},
}  # fmt: skip
# Some are also those of image-to-video: when a picture is wired to one of these inputs.
PICTURES = {"Wan22ImageToVideoLatent": ("start_image",), "WanImageToVideo": ("start_image", "clip_vision_output")}
FROM_PICTURES = re.compile(r"Ima?ge?ToVideo|ImgToVideo|I2V|FirstLast|Vace|FunControl|Inpaint|Phantom|Animate|S2V")
MASKING = re.compile(r"NoiseMask|Inpaint|AddGuide")
STEP_CACHES = re.compile(r"teacache|magcache|easycache|lazycache|fbcache|firstblockcache|wavespeed|cachedit", re.IGNORECASE)
SEVERAL_PROMPTS = re.compile(r"Combine|SetArea|SetMask|TimestepRange|ControlNet|ReferenceLatent|AddGuide|Hook")
# Typed-in values by name, in the order of the file; None stands for the control behind a seed, which not every file has.
WIDGETS: dict[str, tuple[str | None, ...]] = {
    "KSampler": ("seed", None, "steps", "cfg", "sampler_name", "scheduler", "denoise"),
    "KSamplerAdvanced": ("add_noise", "noise_seed", None, "steps", "cfg", "sampler_name", "scheduler", "start_at_step",
                         "end_at_step", "return_with_leftover_noise"),
    "CLIPLoader": ("clip_name", "type"), "CLIPLoaderGGUF": ("clip_name", "type"),
    "DualCLIPLoader": ("clip_name1", "clip_name2", "type"), "DualCLIPLoaderGGUF": ("clip_name1", "clip_name2", "type"),
    "EmptyHunyuanLatentVideo": ("width", "height", "length", "batch_size"),
    "EmptyLTXVLatentVideo": ("width", "height", "length", "batch_size"),
    "Wan22ImageToVideoLatent": ("width", "height", "length", "batch_size"),
    "WanImageToVideo": ("width", "height", "length", "batch_size"),
}  # fmt: skip
_AFTER_RUN = ("fixed", "increment", "decrement", "randomize")


@dataclass(frozen=True)
class Wire:
    """An input that another node's output feeds."""

    origin: str
    slot: int


@dataclass
class Node:
    """A node that runs. key: "outer:inner" inside of sub-graphs. inputs: wires (resolved) and typed-in values by name.

    models: names of the inputs that carry a model. graph: where the UI's file has it; None in a file of the API's form.
    """

    key: str
    kind: str
    title: str
    inputs: dict[str, Any]
    models: list[str]
    graph: Graph | None = None
    number: Any = None

    def __str__(self) -> str:
        return f"{self.title or self.kind} (#{self.key})"

    def wire(self, name: str) -> Wire | None:
        found = self.inputs.get(name)
        return found if isinstance(found, Wire) else None


@dataclass
class Finding:
    """A sampler, the node that its model is wired to (itself or its guider), and why it is not served ("": it is)."""

    sampler: Node
    consumer: Node
    reason: str = ""
    notes: list[str] = field(default_factory=list)
    encoders: list[Node] = field(default_factory=list)


class Flow:
    """All nodes of a workflow that run, by key."""

    def __init__(self, nodes: Iterator[Node]) -> None:
        self.nodes = {node.key: node for node in nodes}

    @classmethod
    def of_ui(cls, workflow: Mapping[str, Any]) -> Flow:
        definitions = {d["id"]: d for d in (workflow.get("definitions") or {}).get("subgraphs") or []}
        return cls(_of_ui(graph, node) for graph, node in running(Graph(workflow, definitions)))

    @classmethod
    def of_api(cls, prompt: Mapping[str, Any]) -> Flow:
        return cls(_of_api(key, entry) for key, entry in prompt.items())

    def source(self, node: Node, name: str) -> Node | None:
        wire = node.wire(name)
        return self.nodes.get(wire.origin) if wire else None

    def upstream(self, node: Node, names: Any) -> Iterator[Node]:
        """Each node behind the inputs of which names(node) lists the names, nearest first; every one once."""
        queue, seen = [node], {node.key}
        while queue:
            one = queue.pop(0)
            for name in names(one):
                source = self.source(one, name)
                if source is not None and source.key not in seen:
                    seen.add(source.key)
                    queue.append(source)
                    yield source


def _of_ui(graph: Graph, node: Mapping[str, Any]) -> Node:
    inputs: dict[str, Any] = _typed_in(node)
    models = []
    for entry in node.get("inputs") or []:
        source = source_of_input(graph, entry, str(entry.get("type")))
        if isinstance(source, Value):
            inputs[entry["name"]] = source.value
        elif source is not None:
            inputs[entry["name"]] = Wire(*source)
            if entry.get("type") == "MODEL":
                models.append(entry["name"])
    key = f"{graph.prefix}{node['id']}"
    return Node(key, node["type"], str(node.get("title") or ""), inputs, models, graph, node["id"])


def _typed_in(node: Mapping[str, Any]) -> dict[str, Any]:
    values = node.get("widgets_values") or []
    if isinstance(values, Mapping):
        return dict(values)
    found, left = {}, list(values)
    for name in WIDGETS.get(node["type"], ()):
        if name is None:
            if left and left[0] in _AFTER_RUN:
                left.pop(0)
        elif left:
            found[name] = left.pop(0)
    return found


def _of_api(key: str, entry: Mapping[str, Any]) -> Node:
    inputs = {n: Wire(str(v[0]), v[1]) if _is_wire(v) else v for n, v in entry["inputs"].items()}
    models = [n for n, v in inputs.items() if isinstance(v, Wire) and n.startswith("model")]
    title = (entry.get("_meta") or {}).get("title") or ""
    return Node(key, entry["class_type"], str(title), inputs, models, None, key)


def _is_wire(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str | int) and type(value[1]) is int


def findings(flow: Flow) -> list[Finding]:
    """Every sampler of the workflow, judged."""
    found = {node.key: _judged(flow, node) for node in flow.nodes.values() if node.kind in SAMPLERS}
    for one in found.values():  # the halves of one render are served together or not at all
        before = _earlier(flow, one.sampler)
        while before is not None:
            first = found[before.key]
            for this, other in ((one, first), (first, one)):
                if other.reason and not this.reason:
                    this.reason = f"{other.sampler} is the other half of its render, and there: {other.reason}"
            before = _earlier(flow, before)
    return list(found.values())


def _judged(flow: Flow, sampler: Node) -> Finding:
    guider = flow.source(sampler, "guider") if sampler.kind == "SamplerCustomAdvanced" else sampler
    if guider is None:
        return Finding(sampler, sampler, "no guider is wired to it")
    finding = Finding(sampler, guider)
    if guider is not sampler and guider.kind not in GUIDERS:
        finding.reason = f"{guider.kind} guides with passes of its own; Carnator knows CFGGuider and BasicGuider"
    elif not guider.models:
        finding.reason = "no model is wired to it"
    else:
        finding.reason = _of_latent(flow, sampler, finding) or _of_text(flow, guider, finding) or _of_model(flow, guider)
    return finding


def _earlier(flow: Flow, sampler: Node) -> Node | None:
    """The sampler whose leftover noise this one goes on with: the first half of a two-expert render."""
    source = flow.source(sampler, "latent_image")
    if source is None or not source.kind == sampler.kind == "KSamplerAdvanced":
        return None
    leftover, adding = source.inputs.get("return_with_leftover_noise"), sampler.inputs.get("add_noise")
    return source if leftover == "enable" and adding == "disable" else None


def _of_latent(flow: Flow, sampler: Node, finding: Finding) -> str:
    """Why its latent is not that of a text-to-video render; "" when it is."""
    before = _earlier(flow, sampler)
    if before is not None:
        finding.notes.append(f"it goes on where {before} stops, as in a pair of experts; both carry the node")
        return ""
    latent = flow.source(sampler, "latent_image")
    if latent is None:
        return "no latent is wired to it"
    if latent.kind in SAMPLERS or "Upscal" in latent.kind or "Upsampl" in latent.kind:
        return f"it starts from the result of {latent}: a second pass; Carnator serves whole renders from pure noise"
    if MASKING.search(latent.kind):
        return f"{latent} gives the latent a noise mask; Carnator serves text-to-video"
    if latent.kind == "LTXVConcatAVLatent":
        return f"{latent} joins video and audio; Carnator serves one video latent"
    if latent.kind in VIDEO_LATENTS:
        pictures = [n for n in PICTURES.get(latent.kind, ()) if latent.wire(n)]
        if pictures:
            return f"{latent} starts from a picture ({', '.join(pictures)}): image-to-video; Carnator serves text-to-video"
        batch = latent.inputs.get("batch_size", 1)
        if isinstance(batch, int) and batch > 1:
            return f"{latent} makes a batch of {batch} videos; Carnator serves one at a time"
        denoise = sampler.inputs.get("denoise", 1.0)
        if isinstance(denoise, int | float) and denoise < 1.0:
            return f"its denoise is {denoise:g}: a part of a render; Carnator serves whole ones"
        return ""
    if FROM_PICTURES.search(latent.kind):
        return f"{latent} starts from pictures: image-to-video; Carnator serves text-to-video"
    if latent.kind.startswith("Empty"):
        return f"{latent} is no latent of Wan or LTX-Video; there is no video model that Carnator knows"
    return f"its latent comes from {latent}, and whether that is an empty video cannot be told from the file"


def _of_text(flow: Flow, guider: Node, finding: Finding) -> str:
    """Why its conditioning is not one plain prompt of a model that Carnator knows; "" when it is, or cannot be told."""
    start = "positive" if "positive" in guider.inputs else "conditioning"
    if guider.wire(start) is None:
        return "no positive conditioning is wired to it"

    def conditioning(node: Node) -> list[str]:
        if node is guider:
            return [start]
        return [n for n in node.inputs if re.match(r"(positive|conditioning)(_?\d+|_to|_from)?$", n)]

    nodes = list(flow.upstream(guider, conditioning))
    for node in nodes:
        if SEVERAL_PROMPTS.search(node.kind):
            return f"{node} makes its conditioning more than one plain prompt; Carnator reuses renders of one prompt at a time"
        if FROM_PICTURES.search(node.kind) and any(node.wire(n) for n in PICTURES.get(node.kind, node.inputs)):
            return f"{node} puts pictures into its conditioning: image-to-video; Carnator serves text-to-video"
    finding.encoders = [n for n in nodes if n.wire("clip")]
    latent = flow.source(finding.sampler, "latent_image")
    wanted = VIDEO_LATENTS.get(latent.kind, set(FAMILIES)) if latent else set(FAMILIES)
    known = False
    for encoder in finding.encoders:
        for loader in flow.upstream(encoder, lambda n: [i for i in n.inputs if i.startswith("clip")]):
            kind = loader.inputs.get("type")
            if loader.kind in WIDGETS and isinstance(kind, str):
                if kind not in FAMILIES:
                    return f"{loader} loads the text encoder of {kind}; Carnator knows Wan and LTX-Video"
                if kind not in wanted:
                    return f"{loader} loads {FAMILIES[kind]}'s text encoder, but {latent} is another model's latent"
                known = True
    if not known and latent is not None and latent.kind == "EmptyHunyuanLatentVideo":
        finding.notes.append("which model it is cannot be told from the file; the node looks when it runs")
    return ""


def _of_model(flow: Flow, guider: Node) -> str:
    """What in the MODEL line keeps Carnator from serving it; "" for nothing."""
    for node in flow.upstream(guider, lambda n: n.models):
        if node.kind == OURS:
            return f"{node} is in its MODEL line already"
        if STEP_CACHES.search(node.kind):
            return (f"{node} is in its MODEL line, and the steps that it skips would be remembered as if computed; "
                    "bypass it, or keep it and leave Carnator out")
        if "ContextWindows" in node.kind:
            return f"{node} renders in windows; Carnator serves whole clips"
    return ""
