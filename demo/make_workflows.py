"""Draws the templates in workflows/: python -m demo.make_workflows (starts the demo's ComfyUI to ask for its nodes).

The graphs for real models are those of ComfyUI's own templates (comfyui-workflow-templates, MIT) with Carnator put in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import template_texts as texts
from .setup import ROOT
from .sheet import GREEN, NOTE, RED, Box, Column, Section, draw

FOLDER = ROOT / "workflows"
HUB = "https://huggingface.co/"
WAN21 = HUB + "Comfy-Org/Wan_2.1_ComfyUI_repackaged/resolve/main/split_files/"
WAN22 = HUB + "Comfy-Org/Wan_2.2_ComfyUI_Repackaged/resolve/main/split_files/"
LTX = HUB + "Lightricks/LTX-Video/resolve/main/"
T5 = HUB + "comfyanonymous/flux_text_encoders/resolve/main/"


def note(name: str, title: str, height: int, text: str) -> Box:
    return Box(name, NOTE, height, values={"text": text}, title=title)


def prompts(positive: str, negative: str, negative_kind: str = "CLIPTextEncode") -> list[Box]:
    clip = {"clip": ("clip", "clip")}
    return [
        Box("positive", "CarnatorTextEncode", 160, clip, {"text": positive}, title="Positive prompt", colour=GREEN),
        Box("negative", negative_kind, 160, clip, {"text": negative}, title="Negative prompt", colour=RED),
    ]


def video(frames: int, prefix: str, samples: tuple[str, str], vae: str = "vae") -> Section:
    """The end: decoding, and the clip."""
    saving = {"filename_prefix": prefix, "format": "auto", "codec": "auto"}
    return Section(
        "Video",
        [
            Box("decode", "VAEDecode", 54, {"samples": samples, "vae": (vae, "VAE")}),
            Box("clip_out", "CreateVideo", 110, {"images": ("decode", "IMAGE")}, {"fps": frames}),
            Box("save", "SaveVideo", 480, {"video": ("clip_out", "VIDEO")}, saving),
        ],
    )


def empty_latent(width: int, height: int, length: int) -> Box:
    values = {"width": width, "height": height, "length": length, "batch_size": 1}
    return Box("latent", "EmptyHunyuanLatentVideo", 146, values=values)


def shift(value: float) -> Box:
    return Box("shift", "ModelSamplingSD3", 62, {"model": ("unet", "MODEL")}, {"shift": value})


def reuse(from_model: str, **values: Any) -> Box:
    chosen = {"pace": "balanced", "noise": "any seed (fastest)", **values}
    return Box("reuse", "CarnatorReuse", 530, {"model": (from_model, "MODEL")}, chosen)


def ksampler(**values: Any) -> Box:
    wires = {
        "model": ("reuse", "model"),
        "positive": ("positive", "conditioning"),
        "negative": ("negative", "CONDITIONING"),
        "latent_image": ("latent", "LATENT"),
    }
    return Box("sampler", "KSampler", 262, wires, {**values, "scheduler": "simple", "denoise": 1.0})


def demo_models() -> list[Box]:
    unet = {"unet_name": "carnator_demo_wan_dit.safetensors", "weight_dtype": "default"}
    return [
        Box("unet", "UNETLoader", 86, values=unet),
        shift(3.0),
        Box("clip", "CarnatorDemoTextEncoder", 58),
        Box("vae", "VAELoader", 62, values={"vae_name": "carnator_demo_wan_vae.safetensors"}),
    ]


def demo_prompts() -> Column:
    boxes = [*prompts(texts.DEMO_POSITIVE, "", "CarnatorTextEncode"), empty_latent(128, 128, 9)]
    words = note("words", "Words it knows", 230, texts.DEMO_WORDS)
    return Column(330, [Section("Prompt and size", boxes), Section("", [words])])


def carnator_demo() -> list[Column]:
    """Every stage as a node of its own, on the model that ships with the pack."""
    guide = note("guide", "Start here", 210, texts.DEMO_GUIDE)
    remembering = {"name": "demo", "budget_gb": 1.0, "policy": "read and remember"}
    bank = Box("bank", "CarnatorBankLoader", 150, values=remembering)
    wires = {
        "model": ("shift", "MODEL"),
        "bank": ("bank", "bank"),
        "positive": ("positive", "conditioning"),
        "negative": ("negative", "conditioning"),
        "latent_image": ("latent", "LATENT"),
    }
    values = {"seed": 7, "steps": 50, "cfg": 5.0, "sampler_name": "euler", "scheduler": "simple", "probe_steps": 4}
    probe = Box("probe", "CarnatorEarlySignatureProbe", 410, wires, values)
    gate = Box("gate", "CarnatorRiskGate", 380, {"probe": ("probe", "probe")})
    seen = {"source": ("gate", "decision"), "vae": ("vae", "VAE")}
    viewer = Box("viewer", "CarnatorEvidenceRegionViewer", 460, seen)
    dense = Box("dense", "CarnatorDenseFallback", 230, {"probe": ("probe", "probe")})
    wires = {"decision": ("gate", "decision"), "dense_latent": ("dense", "latent")}
    scope = {"tolerance": 0.25, "active_radius": 1, "context_radius": 1}
    joint = Box("joint", "CarnatorJointReuseSampler", 410, wires, scope)
    return [
        Column(330, [Section("", [guide]), Section("Model and bank", [*demo_models(), bank])]),
        demo_prompts(),
        Column(310, [Section("Probe and decide", [probe, gate])]),
        Column(310, [Section("What it sees", [viewer]), Section("Only on a miss", [dense])]),
        Column(310, [Section("Render", [joint])]),
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


def loader(name: str, kind: str, height: int, folder: str, base: str, values: Mapping[str, str]) -> Box:
    """A loader with the link under which the front end offers to download its file (the first of its values)."""
    file = next(iter(values.values()))
    return Box(name, kind, height, values=values, models=[{"name": file, "url": base + file, "directory": folder}])


def real_notes(name: str, loaders: Sequence[Box]) -> tuple[Box, Box]:
    models = [model for box in loaders for model in box.models]
    links = "\n".join(f"- [{m['name']}]({m['url']}) in *models/{m['directory']}*" for m in models)
    guide = note("guide", "Start here", 210, texts.REAL_GUIDE.format(name=name))
    return guide, note("files", "Model files", 150, f"**Model files**\n\n{links}")


def wan(
    name: str, unet: str, vae: str, base: str, positive: str, latent: Box, sampler: Box, frames: int, prefix: str
) -> list[Column]:
    """ComfyUI's Wan text-to-video template. unet, vae: file names; base: the address they lie under."""
    unet_values = {"unet_name": unet, "weight_dtype": "default"}
    clip_values = {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan", "device": "default"}
    loaders = [
        loader("unet", "UNETLoader", 86, "diffusion_models", base + "diffusion_models/", unet_values),
        loader("clip", "CLIPLoader", 118, "text_encoders", WAN21 + "text_encoders/", clip_values),
        loader("vae", "VAELoader", 90, "vae", base + "vae/", {"vae_name": vae}),
    ]
    guide, files = real_notes(name, loaders)
    boxes = [*prompts(positive, texts.WAN_NEGATIVE), latent]
    return [
        Column(400, [Section("", [guide]), Section("Models", loaders)]),
        Column(420, [Section("Prompt and size", boxes), Section("", [files])]),
        Column(340, [Section("Reuse and sample", [shift(8.0), reuse("shift"), sampler])]),
        Column(480, [video(frames, prefix, ("sampler", "LATENT"))]),
    ]


def carnator_wan21_t2v_1_3b() -> list[Column]:
    unet, vae = "wan2.1_t2v_1.3B_fp16.safetensors", "wan_2.1_vae.safetensors"
    sampler = ksampler(seed=82628696717253, steps=30, cfg=6.0, sampler_name="uni_pc")
    name, latent, prefix = "Wan2.1 1.3B text to video", empty_latent(832, 480, 33), "video/carnator_wan21"
    return wan(name, unet, vae, WAN21, texts.WAN21_POSITIVE, latent, sampler, 16, prefix)


def carnator_wan22_t2v_5b() -> list[Column]:
    unet, vae = "wan2.2_ti2v_5B_fp16.safetensors", "wan2.2_vae.safetensors"
    sampler = ksampler(seed=898471028164125, steps=20, cfg=5.0, sampler_name="uni_pc")
    size = {"width": 1280, "height": 704, "length": 121, "batch_size": 1}
    latent = Box("latent", "Wan22ImageToVideoLatent", 170, {"vae": ("vae", "VAE")}, size)
    name, prefix = "Wan2.2 5B text to video", "video/carnator_wan22"
    return wan(name, unet, vae, WAN22, texts.WAN22_POSITIVE, latent, sampler, 24, prefix)


def carnator_ltx_t2v() -> list[Column]:
    """ComfyUI's LTX-Video text-to-video template."""
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
    times = {"steps": 30, "max_shift": 2.05, "base_shift": 0.95, "stretch": True, "terminal": 0.1}
    schedule = [
        reuse("checkpoint"),
        Box("choice", "KSamplerSelect", 62, values={"sampler_name": "euler"}),
        Box("sigmas", "LTXVScheduler", 154, {"latent": ("latent", "LATENT")}, times),
    ]
    wires = {
        "model": ("reuse", "model"),
        "positive": ("conditioning", "positive"),
        "negative": ("conditioning", "negative"),
        "sampler": ("choice", "SAMPLER"),
        "sigmas": ("sigmas", "SIGMAS"),
        "latent_image": ("latent", "LATENT"),
    }
    values = {"add_noise": True, "noise_seed": 497797676867141, "cfg": 3.0}
    sampler = Box("sampler", "SamplerCustom", 230, wires, values)
    guide, files = real_notes("LTX-Video text to video", loaders)
    boxes = [*prompts(texts.LTX_POSITIVE, texts.LTX_NEGATIVE), conditioning]
    return [
        Column(400, [Section("", [guide]), Section("Models and size", loaders), Section("", [files])]),
        Column(420, [Section("Prompt", boxes)]),
        Column(340, [Section("Reuse and schedule", schedule)]),
        Column(340, [Section("Sample", [sampler])]),
        Column(480, [video(24, "video/carnator_ltx", ("sampler", "output"), "checkpoint")]),
    ]


TEMPLATES = (carnator_demo, carnator_demo_one_node, carnator_wan21_t2v_1_3b, carnator_wan22_t2v_5b, carnator_ltx_t2v)


def build(object_info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Every template by its file's name."""
    return {f"{make.__name__}.json": draw(make.__name__, make(), object_info) for make in TEMPLATES}


def text_of(workflow: Mapping[str, Any]) -> str:
    """The file's content."""
    return json.dumps(workflow, ensure_ascii=False, indent=1) + "\n"


def main() -> None:
    from .host import Host

    FOLDER.mkdir(exist_ok=True)
    with Host(timeout=900) as host:
        for name, workflow in build(host.object_info()).items():
            (FOLDER / name).write_text(text_of(workflow), encoding="utf-8")
            print(name)


if __name__ == "__main__":
    main()
