"""What several templates have in common: notes, prompts, loaders, samplers, Carnator's stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from . import template_texts as texts
from .sheet import GREEN, NOTE, RED, Box, Column, Section

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


def reuse(from_model: str, name: str = "reuse", **values: Any) -> Box:
    chosen = {"pace": "balanced", "noise": "any seed (fastest)", **values}
    return Box(name, "CarnatorReuse", 575, {"model": (from_model, "MODEL")}, chosen)


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


def stages(model: tuple[str, str], conditioning: Mapping[str, tuple[str, str]], bank: str, gigabytes: float, radius: int,
           vae: tuple[str, str] = ("vae", "VAE"), **values: Any) -> list[Column]:
    """Bank, probe, gate, viewer, fallback and joint reuse, wired. values: of the probe; radius: of the joint sampler."""
    remembering = {"name": bank, "budget_gb": gigabytes, "policy": "read and remember"}
    memory = Box("bank", "CarnatorBankLoader", 150, values=remembering)
    wires = {"model": model, "bank": ("bank", "bank"), **conditioning, "latent_image": ("latent", "LATENT")}
    probe = Box("probe", "CarnatorEarlySignatureProbe", 540, wires, {**values, "probe_steps": 4})
    gate = Box("gate", "CarnatorRiskGate", 430, {"probe": ("probe", "probe")})
    viewer = Box("viewer", "CarnatorEvidenceRegionViewer", 630, {"source": ("gate", "decision"), "vae": vae})
    dense = Box("dense", "CarnatorDenseFallback", 232, {"probe": ("probe", "probe")})
    wires = {"decision": ("gate", "decision"), "dense_latent": ("dense", "latent")}
    scope = {"tolerance": 0.25, "active_radius": radius, "context_radius": radius}
    joint = Box("joint", "CarnatorJointReuseSampler", 450, wires, scope)
    return [
        Column(330, [Section("Remember, probe and decide", [memory, probe, gate])]),
        Column(460, [Section("What it sees", [viewer]), Section("Only on a miss", [dense])]),
        Column(330, [Section("Render", [joint])]),
    ]


def loader(name: str, kind: str, height: int, folder: str, base: str, values: Mapping[str, str]) -> Box:
    """A loader with the link under which the front end offers to download its file (the first of its values)."""
    file = next(iter(values.values()))
    return Box(name, kind, height, values=values, models=[{"name": file, "url": base + file, "directory": folder}])


def unet_loader(name: str, file: str, base: str) -> Box:
    values = {"unet_name": file, "weight_dtype": "default"}
    return loader(name, "UNETLoader", 86, "diffusion_models", base + "diffusion_models/", values)


def real_notes(name: str, loaders: Sequence[Box], text: str) -> tuple[Box, Box]:
    models = [model for box in loaders for model in box.models]
    links = "\n".join(f"- [{m['name']}]({m['url']}) in *models/{m['directory']}*" for m in models)
    guide = note("guide", "Start here", 210, text.format(name=name))
    return guide, note("files", "Model files", 150, f"**Model files**\n\n{links}")


def expert(name: str, title: str, latent: tuple[str, str], noise: str, start: int, end: int, leftover: str) -> Column:
    """One expert of the pair: its shift, its Carnator Reuse and its half of the steps."""
    wires = {
        "model": (f"{name}_reuse", "model"),
        "positive": ("positive", "conditioning"),
        "negative": ("negative", "CONDITIONING"),
        "latent_image": latent,
    }
    values = {
        "add_noise": noise, "noise_seed": 392459563371087, "steps": 20, "cfg": 3.5, "sampler_name": "euler",
        "scheduler": "simple", "start_at_step": start, "end_at_step": end, "return_with_leftover_noise": leftover,
    }  # fmt: skip
    shifted = Box(f"{name}_shift", "ModelSamplingSD3", 62, {"model": (name, "MODEL")}, {"shift": 8.0})
    return Column(340, [Section(title, [shifted, reuse(f"{name}_shift", f"{name}_reuse"),
                                        Box(f"{name}_sampler", "KSamplerAdvanced", 340, wires, values)])])
