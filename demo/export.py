"""Write the demo's weights as the host loads them, and check them on the host itself.

python -m demo.export --dit FILE --comfy PATH [--family NAME | --vae-host FILE] [--out demo/weights]

--dit takes training-layout weights of demo.train, --vae-host the FILE.host.safetensors of demo.vae, which goes with Wan's.
The host's own UNETLoader and VAELoader then load what was written (on the CPU; the other families have the pack's demo VAE
node instead); a forward, an encoding and a decoding are compared with ours, and a render is timed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import data, dit, evaluate, families, latents, scorer, words, world

DIT, VAE = families.WAN.weights, families.WAN_VAE
LARGEST = 16e6  # bytes, a transformer with its VAE
CAPTION, STEPS, CFG, SHIFT = "a big red ball moving left on snow", 30, 5.0, 3.0


def write(dit_file: Path, vae_file: Path, out: Path) -> int:
    """Write both files into `out`; returns their size in bytes. Raises ValueError above LARGEST."""
    weights = load_file(dit_file)
    shape = evaluate.shape_of(weights)
    stock = {name: value.half() for name, value in dit.to_stock(weights, shape).items()}
    config = {"transformer": {"patch_size": [1, shape.patch, shape.patch], "out_dim": shape.channels}}
    out.mkdir(parents=True, exist_ok=True)
    save_file(stock, out / DIT, metadata=None if shape.patch == 2 else {"config": json.dumps(config)})
    shutil.copyfile(vae_file, out / VAE)
    size = sum((out / name).stat().st_size for name in (DIT, VAE))
    if size > LARGEST:
        raise ValueError(f"the weights take {size / 1e6:.2f} MB, more than {LARGEST / 1e6:.0f} MB")
    return size


def write_family(family: families.Family, dit_file: Path, out: Path) -> int:
    """Write the transformer of a family that has Wan's VAE; returns its size in bytes. Raises ValueError above LARGEST."""
    stock = family.to_stock(load_file(dit_file))
    out.mkdir(parents=True, exist_ok=True)
    save_file({name: value.half() for name, value in stock.items()}, out / family.weights,
              metadata={"config": json.dumps({"transformer": family.config})})
    size = (out / family.weights).stat().st_size
    if size > LARGEST:
        raise ValueError(f"the weights take {size / 1e6:.2f} MB, more than {LARGEST / 1e6:.0f} MB")
    return size


def host_nodes(comfy: Path) -> Any:
    """The host's `nodes` module, in this process, on the CPU."""
    sys.path.insert(0, str(comfy))
    argv, sys.argv = sys.argv, [sys.argv[0], "--cpu"]
    try:
        importlib.import_module("comfy.options").enable_args_parsing()
        return importlib.import_module("nodes")
    finally:
        sys.argv = argv


def psnr(a: Tensor, b: Tensor) -> float:
    """Decibels between two pictures in 0..1."""
    return float(-10 * (a - b).square().mean().log10())


@torch.no_grad()
def check_forward(model: Any, weights: dit.Weights, level: float, family: families.Family = families.WAN) -> float:
    """Relative difference of the host's velocity from ours at one noise level."""
    importlib.import_module("comfy.model_management").load_models_gpu([model])
    forward = family.forward() if family.kept else dit.Forward(evaluate.shape_of(weights), data.vectors())
    z, sigma = family.noise(3)[None], torch.tensor([level])
    ours, _ = forward(weights, z, sigma, words.mixing(CAPTION, data.VOCABULARY)[None])
    context = words.encode([(w, 1.0) for w in words.split(CAPTION)])[None]
    mask = {"attention_mask": None} if family.lifted else {}
    denoised = model.model.apply_model(z, sigma, c_crossattn=context, transformer_options={}, **mask)
    return float(((z - denoised) / level - ours).norm() / ours.norm())


@torch.no_grad()
def check_vae(vae: Any, count: int = 6) -> dict[str, float]:
    """Relative difference of the host's latents from the formula, and PSNR of the way there and back."""
    rng, worst, quality = random.Random(5), 0.0, []
    for _ in range(count):
        video = world.render(world.random_scene(rng, held=None))[0]
        frames = video.permute(1, 2, 3, 0).contiguous()
        z = vae.encode(frames)
        inner = importlib.import_module("comfy.latent_formats").Wan21().process_in(z)
        wanted = latents.normalised(video[None] * 2 - 1)
        worst = max(worst, float((inner - wanted).norm() / wanted.norm()))
        quality.append(psnr(vae.decode(z).reshape(frames.shape), frames))
    return {"latent_difference": worst, "psnr": sum(quality) / count}


@torch.no_grad()
def stock_render(nodes: Any, model: Any, vae: Any, seed: int = 7) -> tuple[str, float, float]:
    """A render by the host's own sampler: what is seen, CPU seconds sampling and decoding."""
    text = [[words.encode([(w, 1.0) for w in words.split(c)])[None], {}] for c in (CAPTION, "")]
    shifted = importlib.import_module("comfy_extras.nodes_model_advanced").ModelSamplingSD3().patch(model, SHIFT)[0]
    began = time.process_time()
    latent = nodes.common_ksampler(shifted, seed, STEPS, CFG, "euler", "simple", [text[0]], [text[1]],
                                   {"samples": torch.zeros(1, latents.CHANNELS, 3, 16, 16)})[0]["samples"]
    sampled = time.process_time()
    frames = vae.decode(latent)
    decoded = time.process_time()
    return scorer.score(frames.reshape(9, 128, 128, 3)).text(), sampled - began, decoded - sampled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dit", type=Path, required=True)
    parser.add_argument("--family", default="wan", choices=tuple(families.FAMILIES))
    parser.add_argument("--vae-host", type=Path, help="needed for Wan")
    parser.add_argument("--comfy", type=Path, required=True, help="the host's folder")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "weights")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out = args.out.resolve()
    family = families.FAMILIES[args.family]
    if family is families.WAN:
        if args.vae_host is None:
            parser.error("Wan's transformer needs --vae-host")
        size = write(args.dit, args.vae_host, args.out)
    else:
        size = write_family(family, args.dit, args.out)
    print(f"{size / 1e6:.2f} MB in {args.out}", flush=True)
    nodes = host_nodes(args.comfy.resolve())
    folders = importlib.import_module("folder_paths")
    folders.add_model_folder_path("diffusion_models", str(args.out))
    folders.add_model_folder_path("vae", str(args.out))
    model = nodes.UNETLoader().load_unet(family.weights, "default")[0]
    print("the host takes it for", type(model.model.model_config).__name__)
    weights = {name: value.half().float() for name, value in load_file(args.dit).items()}
    differences = {level: check_forward(model, weights, level, family) for level in (1.0, 0.7, 0.2)}
    print("host forward against ours:", {k: f"{v:.2%}" for k, v in differences.items()}, flush=True)
    if family is not families.WAN:
        if max(differences.values()) > 0.03:
            raise SystemExit("the host does not compute what was trained")
        return
    vae = nodes.VAELoader().load_vae(VAE)[0]
    coded = check_vae(vae)
    print(f"host latents against the formula: {coded['latent_difference']:.2%}; there and back {coded['psnr']:.1f} dB")
    seen, sampling, decoding = stock_render(nodes, model, vae)
    print(f"stock render of {CAPTION!r}: seen as {seen!r}")
    print(f"CPU seconds: {STEPS} steps {sampling:.2f}, decoding {decoding:.2f}; "
          f"the transformer's share {sampling / (sampling + decoding):.1%}")
    if max(differences.values()) > 0.03 or coded["latent_difference"] > 0.05:
        raise SystemExit("the host does not compute what was trained")


if __name__ == "__main__":
    main()
