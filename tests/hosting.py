"""Small random models of the host's real classes, and what a host test needs to render with them.

Nothing here imports the host before a function is called; the `comfy` fixture has to have put it in place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

WAN_LATENT, LTX_LATENT = (1, 16, 2, 8, 10), (1, 128, 2, 4, 5)
STEPS = 8
SLOTS = 48


LARGE = 50_000_000  # values, from which weights are drawn from the same million numbers over and over


def randomised(module: torch.nn.Module, seed: int) -> dict[str, Tensor]:
    """State of a module with weights that keep activations of order one; norms stay near one, biases near zero."""
    made = torch.Generator().manual_seed(seed)
    large = sum(value.numel() for value in module.state_dict().values()) > LARGE
    pool = torch.randn(1_000_003, generator=made) if large else torch.empty(0)

    def drawn(like: Tensor) -> Tensor:
        if not large:
            return torch.randn(like.shape, generator=made)
        return pool.repeat(-(-like.numel() // len(pool)))[: like.numel()].view(like.shape)

    state: dict[str, Tensor] = {}
    for name, value in module.state_dict().items():
        noise = drawn(value)
        if value.ndim == 1:
            state[name] = 0.02 * noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0)
        elif "modulation" in name or "scale_shift_table" in name:
            state[name] = 0.3 * noise
        else:
            state[name] = noise / value[0].numel() ** 0.5
    return state


def loaded(state: dict[str, Tensor], config: dict[str, Any] | None = None, dtype: torch.dtype | None = None) -> Any:
    """A model patcher through the host's own detection and loading. dtype: of the weights, as the loader node's choice."""
    import json

    import comfy.sd

    metadata = {"config": json.dumps({"transformer": config})} if config else None
    if "metadata" in inspect.signature(comfy.sd.load_diffusion_model_state_dict).parameters:
        patcher = comfy.sd.load_diffusion_model_state_dict(dict(state), {"dtype": dtype} if dtype else {}, metadata=metadata)
    else:  # ComfyUI 0.3.64 reads it from whole checkpoints alone
        whole = {f"model.diffusion_model.{name}": value for name, value in state.items()}
        patcher = comfy.sd.load_state_dict_guess_config(whole, False, False, metadata=metadata)[0]
    assert patcher is not None, "the host did not recognise the test model"
    return patcher


def wan_state(seed: int = 0, layers: int = 2, channels: int = 16, heads: int = 2,
              inputs: int | None = None) -> dict[str, Tensor]:
    """Weights of a Wan text-to-video model: heads of 128. inputs: 36 makes it Wan 2.2's image-to-video model."""
    import comfy.ops
    from comfy.ldm.wan.model import WanModel

    return randomised(WanModel(in_dim=inputs or channels, out_dim=channels, dim=128 * heads, ffn_dim=512, num_heads=heads,
                               num_layers=layers, operations=comfy.ops.disable_weight_init, dtype=torch.float32), seed)


def wan(seed: int = 0, layers: int = 2, channels: int = 16, heads: int = 2, dtype: torch.dtype | None = None) -> Any:
    """A random Wan model patcher (48 channels: Wan 2.2 5B's kind, with its latent format and per-token times)."""
    return loaded(wan_state(seed, layers, channels, heads), dtype=dtype)


def ltx(seed: int = 0, layers: int = 2, heads: int = 4, head: int = 64, dtype: torch.dtype | None = None) -> Any:
    """A random LTX-Video model patcher. 32 heads of 64 (2B) or 128 (13B) are what the host takes it for by itself."""
    import comfy.ops
    from comfy.ldm.lightricks.model import LTXVModel

    config = {"num_attention_heads": heads, "attention_head_dim": head, "cross_attention_dim": heads * head}
    model = LTXVModel(num_layers=layers, operations=comfy.ops.disable_weight_init, dtype=torch.float32, **config)  # type: ignore[arg-type]
    return loaded(randomised(model, seed), config if heads != 32 else None, dtype)


@lru_cache
def encode(text: str, stock: bool = False, mask: bool = False) -> Any:
    """A prompt as conditioning: by Carnator Text Encode, or by the host's own node (which carries no text).

    mask: with the text's attention mask, as the encoder of LTX-Video gives it (its model requires one).
    The demo's encoder pads to 512 slots as the real one does; the first SLOTS hold every word of a test's prompt.
    """
    from carnator.nodes.demo_clip import CarnatorDemoText
    from carnator.nodes.text_encode import CarnatorTextEncode

    clip = CarnatorDemoText.execute().result[0]
    whole = clip.encode_from_tokens_scheduled
    clip.encode_from_tokens_scheduled = lambda tokens: [[t[:, :SLOTS], extra] for t, extra in whole(tokens)]
    if stock:
        import nodes

        conditioning = nodes.CLIPTextEncode().encode(clip, text)[0]
    else:
        conditioning = CarnatorTextEncode.execute(clip, text).result[0]
    if not mask:
        return conditioning
    return [[t, {**extra, "attention_mask": torch.ones(t.shape[:2], dtype=torch.long)}] for t, extra in conditioning]


def latent(shape: tuple[int, ...] = WAN_LATENT) -> dict[str, Any]:
    """An empty video latent."""
    return {"samples": torch.zeros(shape)}


@dataclass
class Ask:
    """One request to a sampler node; the defaults are a small Wan text-to-video render."""

    text: str = "a red ball on snow"
    negative: str = ""
    seed: int = 7
    steps: int = STEPS
    cfg: float = 5.0
    sampler: str = "euler"
    scheduler: str = "simple"
    shape: tuple[int, ...] = WAN_LATENT
    denoise: float = 1.0

    @property
    def ltx(self) -> bool:
        """Whether it is meant for LTX-Video, by its latent's channels."""
        return self.shape[1] == LTX_LATENT[1]

    def inputs(self) -> dict[str, Any]:
        """As the named inputs of the host's KSampler and of the probe node, without the model."""
        return {"seed": self.seed, "steps": self.steps, "cfg": self.cfg, "sampler_name": self.sampler,
                "scheduler": self.scheduler, "positive": encode(self.text, mask=self.ltx),
                "negative": encode(self.negative, mask=self.ltx),
                "latent_image": latent(self.shape), "denoise": self.denoise}


@torch.inference_mode()
def ksampler(model: Any, ask: Ask, **changes: Any) -> Tensor:
    """The host's KSampler node; `changes` replace inputs."""
    import nodes

    return nodes.KSampler().sample(model=model, **{**ask.inputs(), **changes})[0]["samples"]


@torch.inference_mode()
def custom(model: Any, ask: Ask, sigmas: Tensor, callback: Callable[..., None] | None = None,
           guider: Any = None) -> Tensor:
    """A render on given sigmas through the host's guider, as SamplerCustomAdvanced runs it."""
    import comfy.sample
    import comfy.samplers

    if guider is None:
        guider = comfy.samplers.CFGGuider(model)
        guider.set_conds(encode(ask.text, mask=ask.ltx), encode(ask.negative, mask=ask.ltx))
        guider.set_cfg(ask.cfg)
    empty = torch.zeros(ask.shape)
    return guider.sample(comfy.sample.prepare_noise(empty, ask.seed), empty, comfy.samplers.sampler_object(ask.sampler),
                         sigmas, callback=callback, disable_pbar=True, seed=ask.seed)


def schedule(model: Any, steps: int = STEPS, scheduler: str = "simple") -> Tensor:
    """The host's sigmas for a model."""
    import comfy.samplers

    return comfy.samplers.calculate_sigmas(model.get_model_object("model_sampling"), scheduler, steps)


@dataclass
class Page:
    """Stands for the host's server with one web page, which queued the render: keeps what nodes send to it."""

    lines: list[str] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)
    client_id: str | None = "page"

    def send_sync(self, event: str, data: Any, sid: str | None = None) -> None:
        if sid != self.client_id:
            return
        if event == "carnator.status":
            self.lines.append(data["text"])
        elif event == "carnator.summary":
            self.told.append(data)

    @property
    def said(self) -> str:
        return "\n".join(self.lines)

    @property
    def summaries(self) -> list[dict[str, Any]]:
        """Of whole renders; what a probe, a gate and a node that steps aside tell is in `told` too."""
        return [data for data in self.told if "steps" in data]

    @property
    def last(self) -> dict[str, Any]:
        return self.summaries[-1]

    @property
    def outcomes(self) -> tuple[str, ...]:
        """What of the matrix this can be: a hit works; a dense render that says why is one of the other two."""
        made = [s["decision"] for s in self.summaries if s["decision"] in ("hit", "miss")]
        if "hit" in made:
            return ("works",)
        kept_out = not made and any(x.startswith("dense: ") for x in self.lines)
        return ("steps aside", "declines") if kept_out or "not remembered" in self.said else ()



def bank_at(folder: Path) -> Any:
    """A bank handle as Cache Bank Loader gives it."""
    from carnator.carnator_core.bank import Bank
    from carnator.nodes.types import BankHandle

    return BankHandle(Bank.open(folder, 10**9, reserve_bytes=0))


def entries(handle: Any) -> list[Any]:
    """The bank's entries, once all that is under way is stored."""
    from carnator.carnator_core.hosts import storing

    storing.settle()
    return handle.bank.entries()


def node(name: str, graph: dict[str, Any] | None = None) -> Any:
    """A node's class as the host runs it: a clone with its hidden inputs."""
    from carnator.nodes import NODE_CLASS_MAPPINGS

    hidden = {"UNIQUE_ID": "1", "PROMPT": graph or {}}
    prepare = NODE_CLASS_MAPPINGS[name].PREPARE_CLASS_CLONE
    # ComfyUI 0.3.64 takes the hidden inputs themselves.
    return prepare(hidden if "hidden_inputs" in inspect.signature(prepare).parameters else {"hidden_inputs": hidden})


def run_node(kind: Any, *values: Any, **named: Any) -> Any:
    """A host node's first output, whichever of the host's two ways of writing nodes it has in this version.

    named: those of them count that the node has in this version.
    """
    new = hasattr(kind, "execute")
    call = kind.execute if new else getattr(kind(), kind.FUNCTION)
    known = inspect.signature(call).parameters
    output = call(*values, **{name: value for name, value in named.items() if name in known})
    return (output.result if new else output)[0]


def reuse(model: Any, bank: Any, pace: str = "balanced", noise: str = "any seed (fastest)", **settings: Any) -> Any:
    """The model with Carnator Reuse in its line."""
    return node("CarnatorReuse").execute(model, pace, noise, bank=bank, **settings).result[0]


GATE_DEFAULTS = {"size": 0.7, "shape": 0.5, "colour": 20.0, "motion": 0.12, "change": 1.0}
NOTHING_FITS = {"size": 0.0, "shape": 0.0, "colour": 0.0, "motion": 0.0, "change": 0.0}
NOTHING, ANYTHING = 1e-9, 1e9  # strictness of Carnator Reuse at which no history, or any that corresponds, is accepted


@torch.inference_mode()
def granular(model: Any, bank: Any, ask: Ask, thresholds: dict[str, float] | None = None, probe_steps: int = 4,
             low_noise: dict[str, Any] | None = None, **scope: Any) -> tuple[Tensor, Any]:
    """Probe, gate, and joint reuse or the dense fallback, as the host's executor would run them: (latent, decision).
    low_noise: the probe's inputs for a second expert."""
    limits = thresholds or GATE_DEFAULTS
    probing = node("CarnatorEarlySignatureProbe")
    probe = probing.execute(model=model, bank=bank, probe_steps=probe_steps, **ask.inputs(), **(low_noise or {})).result[0]
    decision = node("CarnatorRiskGate").execute(probe, **limits).result[0]
    sampler = node("CarnatorJointReuseSampler")
    scope = {"tolerance": 0.03, "active_radius": 1, "context_radius": 1, **scope}
    dense = None
    if "dense_latent" in sampler.check_lazy_status(decision=decision, dense_latent=None, **scope):
        dense = node("CarnatorDenseFallback").execute(probe).result[0]
    return sampler.execute(decision, dense_latent=dense, **scope).result[0]["samples"], decision
