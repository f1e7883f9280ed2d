"""Teach the LTX-Video demo transformer what the shipped Wan2.1 one knows.

python -m demo.distil --data FOLDER --out FILE.safetensors --steps N [--init FILE --early E]

The teacher's velocity is the target, at noisy clips as in `train.py`; latents are the same values (`families.py`), and in the
directions that hold none the clip is zero. The text's attention in the middle layers is drawn to the teacher's, too, and for a
share `early` of the steps the residual streams after corresponding layers. Two processes of one thread each serve two cores.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor

from . import data, dit, families, transfer, words
from .train import Descent, launch, levels

ENDS = tuple(layers[-1] + 1 for layers in transfer.LAYERS)  # Wan's layers done when each of LTX-Video's is
EMPTY = 0.1  # weight of an error in the directions that hold nothing


def loss_of(family: families.Family, velocity: Tensor, wanted: Tensor, noise: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, and the mean square error where something is held. wanted: Wan's velocity; inside [B, 1, T, h, w]: objects."""
    held = family.from_wan(family.to_wan(velocity))
    error = (held - family.from_wan(wanted)) ** 2
    share = 2.0  # half of the channels' directions hold something
    empty = ((velocity - held) - (noise - family.from_wan(family.to_wan(noise)))) ** 2
    return share * ((error * (1 + 2 * (inside > 0.02))).mean() / 1.4 + EMPTY * empty.mean()), share * error.mean()


def stream_loss(mine: list[Tensor], theirs: list[Tensor]) -> Tensor:
    """Mean relative square distance of the residual streams after corresponding layers."""
    parts = []
    for z, end in zip(mine[1:], ENDS, strict=True):
        wanted = theirs[end] - theirs[end].mean(-1, keepdim=True)
        parts.append(((z - wanted) ** 2).mean() / (wanted**2).mean())
    return torch.stack(parts).mean()


def worker(rank: int, world_size: int, store: str, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dit.PRODUCTS[0] = torch.float32 if args.single else torch.bfloat16
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    family, teacher = families.LTX, transfer.shipped_wan()
    weights = load_file(args.init) if args.init else transfer.start(family, teacher)
    for value in weights.values():
        value.requires_grad_(True)
    forward, theirs = family.forward(compiled=True), families.WAN.forward(compiled=True)
    pairing, null, descent = family.coupling(), words.mixing("", data.VOCABULARY), Descent(weights, args.rate)
    attended = range(1, len(ENDS) - 1)
    torch.manual_seed(args.seed * 1000 + rank + 1)
    pool = data.load(Path(args.data), set())
    if not pool:
        raise SystemExit(f"no clips in {args.data}: run python -m demo.data {args.data} first")
    log: dict[str, list[float]] = {"velocity": [], "stream": [], "attention": []}
    began = last = time.time()
    for step in range(args.steps):
        share = step / args.steps
        index = torch.randint(0, len(pool["latents"]), (args.batch,))
        batch = {k: v[index] for k, v in pool.items()}
        clean = family.from_wan(batch["latents"].float())
        sigma = levels(args.batch, args.shift)
        noise = pairing.couple(torch.randn_like(clean), batch["cells"])
        s = sigma.view(-1, 1, 1, 1, 1)
        noisy = s * noise + (1 - s) * clean
        text = torch.where((torch.rand(args.batch) < 0.15).view(-1, 1, 1), null, batch["text"])
        streams: tuple[list[Tensor], list[Tensor]] = ([], [])
        with torch.no_grad():
            wanted, looked = theirs(teacher, family.to_wan(noisy), sigma, text, [ENDS[i] - 1 for i in attended], streams[1])
        velocity, maps = forward(weights, noisy, sigma, text, attended, streams[0])
        inside = batch["masks"].float().amax(1).unsqueeze(1)
        loss, error = loss_of(family, velocity, wanted, noise, inside)
        attention = torch.stack([((maps[i] - looked[ENDS[i] - 1]) ** 2).sum(-1).mean() for i in attended]).mean()
        stream = stream_loss(*streams)
        early = max(0.0, 1 - share / args.early) if args.early > 0 else 0.0
        (loss + attention + early * stream).backward()
        descent.step(step, min(1.0, (step + 1) / 30) * (1 if share < args.hold else (1 - share) / (1 - args.hold)))
        for name, value in (("velocity", error), ("stream", stream), ("attention", attention)):
            log[name].append(value.item())
        if rank == 0 and (step + 1) % 25 == 0:
            tail = "  ".join(f"{k} {sum(v[-25:]) / 25:.4f}" for k, v in log.items())
            print(f"{step + 1}/{args.steps} {time.time() - began:.0f}s {(time.time() - last) / 25:.2f}s/step  {tail}", flush=True)
            last = time.time()
        if (step + 1) % 200 == 0 or step + 1 == args.steps:
            if rank == 0:
                descent.save(Path(args.out))
            for value in weights.values():
                dist.broadcast(value.data, 0)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--init", help="go on from these training-layout weights")
    parser.add_argument("--early", type=float, default=0.5)
    parser.add_argument("--hold", type=float, default=0.3)
    parser.add_argument("--batch", type=int, default=32, help="clips a process and step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--shift", type=float, default=3.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--single", action="store_true", help="matrix products in float32: faster without bfloat16 units")
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    launch(worker, args)


if __name__ == "__main__":
    main()
