"""The templates: the demo's, and ComfyUI's own text-to-video ones (comfyui-workflow-templates, MIT) with Carnator put in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import template_texts as texts
from .sheet import Box, Column, Section
from .template_parts import (
    LTX,
    T5,
    WAN21,
    WAN22,
    demo_models,
    demo_prompts,
    empty_latent,
    expert,
    ksampler,
    loader,
    note,
    prompts,
    real_notes,
    reuse,
    shift,
    stages,
    unet_loader,
    video,
)


def carnator_demo() -> list[Column]:
    """Every stage as a node of its own, on the model that ships with the pack."""
    guide = note("guide", "Start here", 210, texts.DEMO_GUIDE)
    wires = {"positive": ("positive", "conditioning"), "negative": ("negative", "conditioning")}
    values = {"seed": 7, "steps": 50, "cfg": 5.0, "sampler_name": "euler", "scheduler": "simple"}
    return [
        Column(330, [Section("", [guide]), Section("Model", demo_models())]),
        demo_prompts(),
        *stages(("shift", "MODEL"), wires, "demo", 1.0, 1, **values),
        Column(350, [video(8, "carnator/demo", ("joint", "latent"))]),
    ]


def carnator_demo_one_node() -> list[Column]:
    """The same in one node, in an ordinary KSampler graph."""
    guide = note("guide", "Start here", 210, texts.ONE_NODE_GUIDE)
    boxes = [
        reuse("shift", active_radius=1, context_radius=1),
        ksampler(seed=7, steps=50, cfg=5.0, sampler_name="euler"),
    ]
    return [
        Column(330, [Section("", [guide]), Section("Model", demo_models())]),
        demo_prompts(),
        Column(340, [Section("Reuse and sample", boxes)]),
        Column(380, [video(8, "carnator/demo", ("sampler", "LATENT"))]),
    ]


def carnator_calibrate() -> list[Column]:
    """Thresholds of one's own from labelled pairs; runs by itself, on the example pairs that stand in it."""
    guide = note("guide", "Start here", 330, texts.CALIBRATE_GUIDE)
    remembering = {"name": "demo", "budget_gb": 1.0, "policy": "read only"}
    bank = Box("bank", "CarnatorBankLoader", 150, values=remembering)
    values = {"profile": "example", "pairs": texts.EXAMPLE_PAIRS}
    made = Box("calibrate", "CarnatorCalibrate", 640, {"bank": ("bank", "bank")}, values)
    return [Column(420, [Section("", [guide]), Section("Verdicts", [bank])]), Column(560, [Section("Calibrate", [made])])]


@dataclass(frozen=True)
class Wan:
    """One of ComfyUI's Wan text-to-video templates. base: the address its unet and vae lie under."""

    name: str
    unet: str
    vae: str
    base: str
    positive: str
    latent: Box
    frames: int
    prefix: str
    sampling: Mapping[str, Any]  # seed, steps, cfg, sampler_name
    gigabytes: float

    def loaders(self) -> list[Box]:
        clip_values = {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan", "device": "default"}
        return [
            unet_loader("unet", self.unet, self.base),
            loader("clip", "CLIPLoader", 118, "text_encoders", WAN21 + "text_encoders/", clip_values),
            loader("vae", "VAELoader", 90, "vae", self.base + "vae/", {"vae_name": self.vae}),
        ]

    def left(self, text: str) -> list[Column]:
        """Models, prompts and size: what both forms begin with."""
        loaders = self.loaders()
        guide, files = real_notes(self.name, loaders, text)
        boxes = [*prompts(self.positive, texts.WAN_NEGATIVE), self.latent]
        return [
            Column(400, [Section("", [guide]), Section("Models", loaders)]),
            Column(420, [Section("Prompt and size", boxes), Section("", [files])]),
        ]

    def one_node(self) -> list[Column]:
        return [
            *self.left(texts.REAL_GUIDE),
            Column(340, [Section("Reuse and sample", [shift(8.0), reuse("shift"), ksampler(**self.sampling)])]),
            Column(480, [video(self.frames, self.prefix, ("sampler", "LATENT"))]),
        ]

    def stages(self) -> list[Column]:
        wires = {"positive": ("positive", "conditioning"), "negative": ("negative", "CONDITIONING")}
        first, second = self.left(texts.REAL_STAGES_GUIDE)
        values = {**self.sampling, "scheduler": "simple"}
        return [
            Column(first.width, [*first.sections, Section("Shift", [shift(8.0)])]),
            second,
            *stages(("shift", "MODEL"), wires, "default", self.gigabytes, 2, **values),
            Column(480, [video(self.frames, self.prefix, ("joint", "latent"))]),
        ]


def wan21() -> Wan:
    sampling = {"seed": 82628696717253, "steps": 30, "cfg": 6.0, "sampler_name": "uni_pc"}
    return Wan("Wan2.1 1.3B text to video", "wan2.1_t2v_1.3B_fp16.safetensors", "wan_2.1_vae.safetensors", WAN21,
               texts.WAN21_POSITIVE, empty_latent(832, 480, 33), 16, "video/carnator_wan21", sampling, 20.0)


def wan22_5b() -> Wan:
    sampling = {"seed": 898471028164125, "steps": 20, "cfg": 5.0, "sampler_name": "uni_pc"}
    size = {"width": 1280, "height": 704, "length": 121, "batch_size": 1}
    latent = Box("latent", "Wan22ImageToVideoLatent", 170, {"vae": ("vae", "VAE")}, size)
    return Wan("Wan2.2 5B text to video", "wan2.2_ti2v_5B_fp16.safetensors", "wan2.2_vae.safetensors", WAN22,
               texts.WAN22_POSITIVE, latent, 24, "video/carnator_wan22", sampling, 20.0)


def carnator_wan21_t2v_1_3b() -> list[Column]:
    return wan21().one_node()


def carnator_wan21_t2v_1_3b_stages() -> list[Column]:
    return wan21().stages()


def carnator_wan22_t2v_5b() -> list[Column]:
    return wan22_5b().one_node()


def carnator_wan22_t2v_5b_stages() -> list[Column]:
    return wan22_5b().stages()


def experts_left(text: str) -> tuple[Column, Column]:
    """Models, size and prompts of ComfyUI's Wan2.2 14B template: what both forms begin with."""
    high, low = "wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors", "wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors"
    clip_values = {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan", "device": "default"}
    loaders = [
        unet_loader("high", high, WAN22),
        unet_loader("low", low, WAN22),
        loader("clip", "CLIPLoader", 118, "text_encoders", WAN21 + "text_encoders/", clip_values),
        loader("vae", "VAELoader", 90, "vae", WAN22 + "vae/", {"vae_name": "wan_2.1_vae.safetensors"}),
    ]
    guide, files = real_notes("Wan2.2 14B text to video", loaders, text)
    boxes = [*prompts(texts.WAN22_14B_POSITIVE, texts.WAN_NEGATIVE), empty_latent(640, 640, 81)]
    return (
        Column(400, [Section("", [guide]), Section("Models", loaders)]),
        Column(420, [Section("Prompt and size", boxes), Section("", [files])]),
    )


def carnator_wan22_t2v_14b() -> list[Column]:
    """ComfyUI's Wan2.2 14B template without its four-step LoRAs: one expert for the noisy steps, one for the rest."""
    return [
        *experts_left(texts.EXPERTS_GUIDE),
        expert("high", "Noisy steps", ("latent", "LATENT"), "enable", 0, 10, "enable"),
        expert("low", "Remaining steps", ("high_sampler", "LATENT"), "disable", 10, 10000, "disable"),
        Column(480, [video(16, "video/carnator_wan22_14b", ("low_sampler", "LATENT"))]),
    ]


def carnator_wan22_t2v_14b_stages() -> list[Column]:
    """The same with a node for each stage: the probe looks with the high-noise expert, and what follows goes on with both."""
    wires = {"positive": ("positive", "conditioning"), "negative": ("negative", "CONDITIONING"),
             "low_noise_model": ("low_shift", "MODEL")}  # fmt: skip
    values = {"seed": 392459563371087, "steps": 20, "cfg": 3.5, "sampler_name": "euler", "scheduler": "simple", "switch_step": 10}
    shifts = [Box(f"{e}_shift", "ModelSamplingSD3", 62, {"model": (e, "MODEL")}, {"shift": 8.0}) for e in ("high", "low")]
    first, second = experts_left(texts.EXPERTS_STAGES_GUIDE)
    return [
        Column(first.width, [*first.sections, Section("Shift", shifts)]),
        second,
        *stages(("high_shift", "MODEL"), wires, "default", 20.0, 2, **values),
        Column(480, [video(16, "video/carnator_wan22_14b", ("joint", "latent"))]),
    ]


def ltx_left(text: str) -> list[Column]:
    """Model, size and prompts of ComfyUI's LTX-Video text-to-video template: what both forms begin with."""
    t5_values = {"clip_name": "t5xxl_fp16.safetensors", "type": "ltxv", "device": "default"}
    checkpoint = {"ckpt_name": "ltx-video-2b-v0.9.safetensors"}
    size = {"width": 768, "height": 512, "length": 97, "batch_size": 1}
    loaders = [
        loader("checkpoint", "CheckpointLoaderSimple", 130, "checkpoints", LTX, checkpoint),
        loader("clip", "CLIPLoader", 118, "text_encoders", T5, t5_values),
        Box("latent", "EmptyLTXVLatentVideo", 146, values=size),
    ]
    wires = {"positive": ("positive", "conditioning"), "negative": ("negative", "CONDITIONING")}
    conditioning = Box("conditioning", "LTXVConditioning", 82, wires, {"frame_rate": 25.0})
    guide, files = real_notes("LTX-Video text to video", loaders, text)
    boxes = [*prompts(texts.LTX_POSITIVE, texts.LTX_NEGATIVE), conditioning]
    return [
        Column(400, [Section("", [guide]), Section("Models and size", loaders), Section("", [files])]),
        Column(420, [Section("Prompt", boxes)]),
    ]


CONDITIONED = {"positive": ("conditioning", "positive"), "negative": ("conditioning", "negative")}


def carnator_ltx_t2v() -> list[Column]:
    """ComfyUI's LTX-Video text-to-video template."""
    times = {"steps": 30, "max_shift": 2.05, "base_shift": 0.95, "stretch": True, "terminal": 0.1}
    schedule = [
        reuse("checkpoint"),
        Box("choice", "KSamplerSelect", 62, values={"sampler_name": "euler"}),
        Box("sigmas", "LTXVScheduler", 154, {"latent": ("latent", "LATENT")}, times),
    ]
    wires = {
        "model": ("reuse", "model"),
        **CONDITIONED,
        "sampler": ("choice", "SAMPLER"),
        "sigmas": ("sigmas", "SIGMAS"),
        "latent_image": ("latent", "LATENT"),
    }
    values = {"add_noise": True, "noise_seed": 497797676867141, "cfg": 3.0}
    sampler = Box("sampler", "SamplerCustom", 230, wires, values)
    return [
        *ltx_left(texts.REAL_GUIDE),
        Column(340, [Section("Reuse and schedule", schedule)]),
        Column(340, [Section("Sample", [sampler])]),
        Column(480, [video(24, "video/carnator_ltx", ("sampler", "output"), "checkpoint")]),
    ]


def carnator_ltx_t2v_stages() -> list[Column]:
    """The same with a node for each stage. LTX-Video's shift, which its scheduler makes otherwise, is put on the model."""
    shifts = {"max_shift": 2.05, "base_shift": 0.95}
    shifted = Box("shift", "ModelSamplingLTXV", 106, {"model": ("checkpoint", "MODEL"), "latent": ("latent", "LATENT")}, shifts)
    values = {"seed": 497797676867141, "steps": 30, "cfg": 3.0, "sampler_name": "euler", "scheduler": "simple"}
    first, second = ltx_left(texts.REAL_STAGES_GUIDE)
    return [
        first,
        Column(second.width, [*second.sections, Section("Shift", [shifted])]),
        *stages(("shift", "MODEL"), CONDITIONED, "default", 20.0, 2, ("checkpoint", "VAE"), **values),
        Column(480, [video(24, "video/carnator_ltx", ("joint", "latent"), "checkpoint")]),
    ]
