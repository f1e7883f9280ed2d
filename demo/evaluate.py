"""How well the demo transformer follows prompts it was never trained on.

python -m demo.evaluate --dit FILE [--family NAME] [--vae FILE --comfy PATH] [--held N] [--pairs N] [--counted N] [--attention]

Noise is plain Gaussian with fixed seeds; prompts are captions of held-out scenes only. Without --vae the latents are
drawn by their own formula, at a quarter of the resolution, instead of by the decoder.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw
from safetensors.torch import load_file
from torch import Tensor, nn

from . import data, dit, families, latents, ltx, scorer, vae, words, world

LOOK_AT_STEPS = (2, 4, 6, 8, 10, 15, 20)  # counted from 1
ATTRIBUTES = ("noun", "colour", "size", "count", "place", "motion")
Clips = tuple[list[world.Scene], Tensor, dict[int, Tensor]]  # scenes, videos [B, 3, 9, 128, 128], maps by step


def shape_of(weights: dit.Weights) -> dit.Shape:
    """The sizes of a transformer, read off its weights in either layout."""
    patch = weights["patch_embedding.weight"]
    layers = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    return dit.Shape(channels=patch.shape[1], dim=patch.shape[0], ffn=len(weights["blocks.0.ffn.0.bias"]),
                     layers=layers, patch=patch.shape[-1])


def sigmas(steps: int, shift: float) -> list[float]:
    """The host's `simple` schedule for a flow model: steps + 1 noise levels, the last 0."""
    t = torch.arange(1, 1001) / 1000
    table = shift * t / (1 + (shift - 1) * t)
    return [float(table[-(1 + int(i * 1000 / steps))]) for i in range(steps)] + [0.0]


@torch.no_grad()
def sample(forward: dit.Forward | ltx.Forward, weights: dit.Weights, captions: Sequence[str], seeds: Sequence[int], *,
           steps: int = 30, cfg: float = 5.0, shift: float = 3.0, look_at: Sequence[int] = (),
           family: families.Family = families.WAN) -> tuple[Tensor, dict[int, Tensor]]:
    """Euler from plain noise to latents [B, C, T, h, w]; at the steps `look_at` (from 1) also the conditional
    cross-attention, mean over heads and all layers but the first and the last, [B, tokens, SLOTS]."""
    count = len(captions)
    z = torch.stack([family.noise(s) for s in seeds])
    text = torch.stack([words.mixing(c, data.VOCABULARY) for c in [*captions, *[""] * count]])
    levels, maps = sigmas(steps, shift), {}
    for i in range(steps):
        want = range(1, forward.shape.layers - 1) if i + 1 in look_at else ()
        velocity, cross = forward(weights, torch.cat([z, z]), torch.full((2 * count,), levels[i]), text, want=want)
        if want:
            maps[i + 1] = torch.stack([cross[layer][:count].mean(1) for layer in want]).mean(0)
        conditional, plain = velocity.chunk(2)
        z = z + (plain + cfg * (conditional - plain)) * (levels[i + 1] - levels[i])
    return z, maps


def picture(z: Tensor) -> Tensor:
    """Latents of any family drawn by the inverse of their formula, enlarged: [B, 3, 9, 128, 128] in 0..1."""
    z = families.of(z).to_wan(z)
    raw = (z * latents.SCALE + latents.MEAN).transpose(1, 2)  # [B, T, 16, h, w]
    mean, change = raw[:, :, :12], raw[:, :, 12:]
    swing = torch.zeros_like(mean)
    swing[:, :, :3], swing[:, :, 3:6] = change[:, :, :3] / 2, change[:, :, 3:] / 2
    bands = torch.cat([mean[:, :1], *(mean[:, t : t + 1] + k * swing[:, t : t + 1]
                                      for t in range(1, raw.shape[1]) for k in (-1, -1, 1, 1))], 1)
    flat, across, down, diagonal = bands.chunk(4, 2)
    corners = torch.stack([flat - across - down + diagonal, flat + across - down - diagonal,
                           flat - across + down - diagonal, flat + across + down + diagonal], 3)
    small = F.pixel_shuffle(corners.flatten(0, 1).flatten(1, 2), 2)
    large = F.interpolate(small, scale_factor=4, mode="bilinear").view(*bands.shape[:2], 3, world.SIDE, world.SIDE)
    return (large.transpose(1, 2) / 2 + 0.5).clamp(0, 1)


@torch.no_grad()
def decode(decoder: nn.Module | None, z: Tensor) -> Tensor:
    """Latents -> [B, 3, 9, 128, 128] in 0..1, by the decoder or, without one, by `picture`."""
    if decoder is None:
        return picture(z)
    frames = []
    for part in families.of(z).to_wan(z).split(4):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            frames.append((vae.decode(decoder, part).float() / 2 + 0.5).clamp(0, 1))
    return torch.cat(frames)


def load_decoder(comfy: Path, file: Path) -> nn.Module:
    """The decoder in the training layout, from such a file or from one for the host."""
    decoder, weights = vae.stock_vae(comfy), load_file(file)
    decoder.load_state_dict(vae.imported(weights) if weights["conv2.weight"].dtype == torch.half else weights)
    return decoder.eval()


def scenes(count: int, seed: int, *, pair: float = 0.0, counted: float = 0.0) -> list[world.Scene]:
    """Held-out scenes with distinct captions as far as possible."""
    rng, found = random.Random(seed), dict[str, world.Scene]()
    for _ in range(count * 20):
        scene = world.random_scene(rng, held=True, pair=pair, counted=counted)
        found.setdefault(world.caption(scene), scene)
        if len(found) == count:
            break
    return list(found.values())


def report(asked: Sequence[world.Scene], seen: Sequence[scorer.Seen]) -> dict[str, Any]:
    """Shares that follow each attribute, of objects bound right, and what was confused with what."""
    right: Counter[str] = Counter()
    confused: Counter[str] = Counter()
    bound = objects = 0
    for scene, view in zip(asked, seen, strict=True):
        ok = scorer.agrees(view, scene)
        right.update(k for k in ATTRIBUTES if ok[k])
        right["all"] += all(ok.values())
        left = [(o.noun, o.colour) for o in view.objects[: len(scene.things)]]
        for thing in scene.things:
            objects += 1
            if (thing.noun, thing.colour) in left:
                left.remove((thing.noun, thing.colour))
                bound += 1
        if len(scene.things) == 1:
            first = view.objects[0] if view.objects else None
            pairs = [(scene.place, view.place), (scene.motion, view.motion)]
            pairs += [(getattr(scene.things[0], k), getattr(first, k)) for k in ("noun", "colour", "size") if first]
            confused.update(f"{a or 'medium'} -> {b or 'medium'}" for a, b in pairs if a != b)
    n = len(asked)
    return {"clips": n, **{k: round(right[k] / n, 3) for k in (*ATTRIBUTES, "all")},
            "objects_right": [bound, objects], "confused": dict(confused.most_common())}


def token_mask(mask: Tensor, tokens: int) -> Tensor:
    """An object's mask at LOOKED_AT [5, 128, 128] -> share of each visual token covered, [tokens]."""
    m = mask.float()
    cell = world.SIDE // math.isqrt(tokens // 3)
    return F.avg_pool2d(torch.stack([m[0], m[1:3].mean(0), m[3:5].mean(0)])[:, None], cell).flatten()


def correlation(a: Tensor, b: Tensor) -> float:
    a, b = a - a.mean(), b - b.mean()
    return float((a * b).sum() / (a.norm() * b.norm() + 1e-9))


def overlap(response: Tensor, mask: Tensor) -> float:
    """IoU of a mask's tokens (covered by more than 0.4) with as many tokens of the highest response."""
    inside = mask > 0.4
    count = int(inside.sum())
    if count == 0:
        return float("nan")
    top = torch.zeros_like(inside)
    top[response.topk(count).indices] = True
    return float((top & inside).sum() / (top | inside).sum())


def attention_alone(clips: Clips) -> dict[int, dict[str, float]]:
    """One-object clips: the noun's map against its own object's mask and, as control, against another clip's."""
    asked, videos, maps = clips
    views = [scorer.look(v)[1] for v in videos]
    usable = [i for i, masks in enumerate(views) if len(masks)]
    tokens = next(iter(maps.values())).shape[1]
    own = {i: token_mask(views[i][0], tokens) for i in usable}
    rows: dict[int, dict[str, float]] = {}
    for step, cross in maps.items():
        parts: dict[str, list[float]] = {"correlation": [], "control": [], "iou": [], "control_iou": []}
        for k, i in enumerate(usable):
            response = cross[i, :, data.noun_slots(asked[i])[0]]
            other = own[usable[(k + 1) % len(usable)]]
            parts["correlation"].append(correlation(response, own[i]))
            parts["control"].append(correlation(response, other))
            parts["iou"].append(overlap(response, own[i]))
            parts["control_iou"].append(overlap(response, other))
        rows[step] = {k: round(float(torch.tensor(v).nanmean()), 3) for k, v in parts.items()}
        rows[step]["clips"] = len(usable)
    return rows


def attention_pairs(clips: Clips) -> dict[int, dict[str, float]]:
    """Two-object clips: how many nouns' maps are higher on their own object than on the other."""
    asked, videos, maps = clips
    tokens = next(iter(maps.values())).shape[1]
    usable: list[tuple[int, list[Tensor]]] = []
    for i, (scene, video) in enumerate(zip(asked, videos, strict=True)):
        view, masks = scorer.look(video)
        if view.count < 2:
            continue
        fit = [[2 * (o.colour == t.colour) + (o.noun == t.noun) for o in view.objects[:2]] for t in scene.things]
        straight, crossed = fit[0][0] + fit[1][1], fit[0][1] + fit[1][0]
        if straight != crossed:
            order = (0, 1) if straight > crossed else (1, 0)
            usable.append((i, [token_mask(masks[k], tokens) for k in order]))
    rows: dict[int, dict[str, float]] = {}
    for step, cross in maps.items():
        picked = 0
        for i, own in usable:
            for k, slot in enumerate(data.noun_slots(asked[i])):
                inside, outside = ((cross[i, :, slot] * m).sum() / m.sum() for m in (own[k], own[1 - k]))
                picked += bool(inside > outside)
        rows[step] = {"picked_own": picked, "nouns": 2 * len(usable)}
    return rows


def sheet(clips: Clips, seen: Sequence[scorer.Seen], file: Path, *, limit: int = 48, columns: int = 4) -> None:
    """A contact sheet: frames 0, 4 and 8 of each clip, its caption, and what was seen when that differs."""
    asked, videos = clips[0][:limit], clips[1][:limit]
    width, height = 3 * 128 + 8, 128 + 30
    rows = -(-len(asked) // columns)
    canvas = Image.new("RGB", (columns * width, rows * height), "white")
    pen = ImageDraw.Draw(canvas)
    for i, (scene, video, view) in enumerate(zip(asked, videos, seen[:limit], strict=True)):
        left, top = i % columns * width, i // columns * height
        strip = torch.cat([video[:, t] for t in (0, 4, 8)], 2)
        canvas.paste(Image.fromarray((strip.permute(1, 2, 0) * 255).byte().numpy()), (left, top))
        wrong = [k for k, ok in scorer.agrees(view, scene).items() if not ok]
        pen.text((left + 2, top + 128), world.caption(scene), fill="#a00000" if wrong else "#006000")
        if wrong:
            pen.text((left + 2, top + 141), f"{', '.join(wrong)}: {view.text()}"[:70], fill="#808080")
    canvas.save(file)


def render(args: argparse.Namespace, forward: dit.Forward | ltx.Forward, weights: dit.Weights, decoder: nn.Module | None,
           asked: list[world.Scene], seed: int) -> Clips:
    """Sample and decode clips for scenes, `args.batch` at a time."""
    videos: list[Tensor] = []
    maps: dict[int, list[Tensor]] = {s: [] for s in LOOK_AT_STEPS} if args.attention else {}
    for start in range(0, len(asked), args.batch):
        part = asked[start : start + args.batch]
        z, looked = sample(forward, weights, [world.caption(s) for s in part],
                           range(seed + start, seed + start + len(part)), steps=args.steps, cfg=args.cfg,
                           shift=args.shift, look_at=LOOK_AT_STEPS if args.attention else (),
                           family=families.FAMILIES[args.family])
        videos.append(decode(decoder, z))
        for step, cross in looked.items():
            maps[step].append(cross)
    return asked, torch.cat(videos), {s: torch.cat(v) for s, v in maps.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dit", type=Path, required=True, help="training-layout weights (or stock ones: --stock)")
    parser.add_argument("--family", default="wan", choices=tuple(families.FAMILIES))
    parser.add_argument("--stock", action="store_true", help="the transformer's file has the host's layout")
    parser.add_argument("--vae", type=Path, help="the decoder, in the training layout or as the host has it")
    parser.add_argument("--comfy", type=Path, help="the host's folder, for --vae")
    parser.add_argument("--held", type=int, default=104, help="one-object clips")
    parser.add_argument("--pairs", type=int, default=0, help="two-object clips")
    parser.add_argument("--counted", type=int, default=0, help='clips of "two ..."')
    parser.add_argument("--attention", action="store_true")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--cfg", type=float, default=5.0)
    parser.add_argument("--shift", type=float, default=3.0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sheet", type=Path, help="FILE.png; pairs and counted clips go to FILE.pairs.png and so on")
    args = parser.parse_args()
    if args.vae and not args.comfy:
        parser.error("--vae needs --comfy")
    torch.set_num_threads(1)
    weights = load_file(args.dit)
    family = families.FAMILIES[args.family]
    forward = family.forward() if family.kept else dit.Forward(shape_of(weights), data.vectors())
    if args.stock:
        weights = family.from_stock(weights)
    decoder = load_decoder(args.comfy, args.vae) if args.vae else None
    result: dict[str, Any] = {"family": family.name, "steps": args.steps, "cfg": args.cfg, "shift": args.shift,
                              "drawn_by": "decoder" if decoder else "formula"}
    kinds = {"held": scenes(args.held, 11), "pairs": scenes(args.pairs, 12, pair=1.0),
             "counted": scenes(args.counted, 13, counted=1.0)}
    for k, (kind, asked) in enumerate(kinds.items()):
        if not asked:
            continue
        began = time.time()
        clips = render(args, forward, weights, decoder, asked, 5000 + 1000 * k)
        seen = [scorer.score(v) for v in clips[1]]
        result[kind] = report(asked, seen)
        if args.attention and kind != "counted":
            result[kind]["attention"] = (attention_alone if kind == "held" else attention_pairs)(clips)
        result[kind]["seconds"] = round(time.time() - began, 1)
        print(kind, json.dumps(result[kind]), flush=True)
        if args.sheet:
            sheet(clips, seen, args.sheet if kind == "held" else args.sheet.with_suffix(f".{kind}.png"))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
