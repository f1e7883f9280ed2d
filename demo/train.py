"""Train the demo transformer. Two data-parallel processes of one thread each serve two cores best.

python -m demo.train --data FOLDER --out FILE.safetensors --steps N [--family NAME --init FILE --hold H --images I]

The learning rate is held for a share `hold` of the steps and then falls to zero; single frames come first, for a
share `images` of the steps. Another family starts from the shipped Wan weights (`transfer.py`). The recipes of the
shipped weights are in demo/README.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import coupling, data, dit, families, transfer, words, world

ATTENDED = (1, 2, 3, 4)  # layers whose cross-attention is taught to point at the object


class Muon:
    """Momentum orthogonalised by Newton-Schulz (Jordan et al. 2024), for the blocks' matrices, batched by shape."""

    def __init__(self, weights: dit.Weights, names: list[str]) -> None:
        self.weights, self.groups = weights, {}
        for name in names:
            self.groups.setdefault(tuple(weights[name].shape), []).append(name)
        self.momentum = {s: torch.zeros(len(n), *s) for s, n in self.groups.items()}

    @staticmethod
    def orthogonal(gradient: Tensor) -> Tensor:
        x = gradient.to(dit.PRODUCTS[0])
        tall = x.shape[-2] > x.shape[-1]
        x = x.transpose(-1, -2) if tall else x
        x = x / (x.float().flatten(1).norm(dim=1).view(-1, 1, 1) + 1e-7).to(x.dtype)
        for _ in range(5):
            a = x @ x.transpose(-1, -2)
            x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
        return (x.transpose(-1, -2) if tall else x).float()

    def step(self, rate: float) -> None:
        for size, names in self.groups.items():
            gradient, momentum = torch.stack([self.weights[n].grad for n in names]), self.momentum[size]
            momentum.lerp_(gradient, 0.05)
            update = self.orthogonal(gradient.lerp(momentum, 0.95)) * (0.2 * max(size) ** 0.5)
            for name, delta in zip(names, update, strict=False):
                self.weights[name].data.mul_(1 - rate * 0.01).sub_(delta, alpha=rate)
                self.weights[name].grad = None


class Descent:
    """One step of all processes: gradients averaged, blocks' matrices by Muon, the rest by AdamW; and the running average."""

    def __init__(self, weights: dit.Weights, rate: float) -> None:
        self.weights, self.rate = weights, rate
        matrices = [n for n, v in weights.items() if "blocks." in n and v.ndim == 2 and "table" not in n]
        self.others = [n for n in weights if n not in set(matrices)]
        self.muon = Muon(weights, matrices)
        self.adam = torch.optim.AdamW([weights[n] for n in self.others], lr=1.0, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
        self.average = {k: v.detach().clone() for k, v in weights.items()}

    def step(self, number: int, share: float) -> None:
        """share: of the full rate."""
        names = list(self.weights)
        flat = torch.cat([self.weights[n].grad.reshape(-1) for n in names])
        dist.all_reduce(flat)
        for n, g in zip(names, (flat / dist.get_world_size()).split([self.weights[n].numel() for n in names]), strict=True):
            self.weights[n].grad = g.view_as(self.weights[n]).clone()
        torch.nn.utils.clip_grad_norm_([self.weights[n] for n in self.others], 0.5)
        self.muon.step(self.rate * share)
        for group in self.adam.param_groups:
            group["lr"] = self.rate * 0.5 * share
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        with torch.no_grad():
            decay = min(0.997, 1 - 1 / (number * 0.1 + 1.5))
            torch._foreach_lerp_(list(self.average.values()), [self.weights[n].detach() for n in self.average], 1 - decay)

    def save(self, out: Path) -> None:
        """The average as FILE.safetensors and the weights themselves as FILE.raw.safetensors."""
        for suffix, value in ((".safetensors", self.average), (".raw.safetensors", self.weights)):
            part = out.with_suffix(".part")
            save_file({k: v.detach().contiguous() for k, v in value.items()}, part)
            part.rename(out.with_suffix(suffix))


def levels(size: int, shift: float) -> Tensor:
    """Noise levels of a batch, spread evenly over the shifted schedule, [size]."""
    u = (torch.rand(1) + torch.arange(size) / size) % 1
    u = u[torch.randperm(size)]
    return (shift * u / (1 + (shift - 1) * u)).clamp(5e-3, 1)


def attention_loss(maps: Tensor, batch: dict[str, Tensor], kept: Tensor) -> Tensor:
    """maps [A, B, N, SLOTS] (mean over heads): a noun's column follows its mask, the place's column the rest."""
    layers, b, n, _ = maps.shape
    masks = batch["masks"].float().flatten(2)  # [B, 2, N]
    present = torch.stack([torch.ones(b), (batch["cells"][:, 1] >= 0).float()], 1)
    columns = maps.gather(3, batch["nouns"].view(1, b, 1, 2).expand(layers, b, n, 2)).transpose(2, 3)
    noun = ((columns - 0.7 * masks) ** 2 * (1 + 4 * masks) * (present * kept[:, None]).view(1, b, 2, 1)).mean()
    place = maps.gather(3, batch["place"].view(1, b, 1, 1).expand(layers, b, n, 1)).squeeze(3)
    rest = 1 - masks.amax(1)
    return 10 * (noun + 0.3 * ((place - 0.5 * rest) ** 2 * kept.view(1, b, 1)).mean())


def started(family: families.Family, args: argparse.Namespace) -> dit.Weights:
    """What training starts from: random weights for Wan, what Wan's shipped weights become for the others."""
    if family is families.WAN:
        return dit.init(dit.Shape(patch=args.patch))
    return transfer.start(family, transfer.shipped_wan())


def worker(rank: int, world_size: int, store: str, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world_size)
    family = families.FAMILIES[args.family]
    torch.manual_seed(args.seed)
    weights = started(family, args)
    if args.init:
        weights = load_file(args.init)
        if family is families.WAN and weights["patch_embedding.weight"].shape[-1] > args.patch:
            weights = dit.finer(weights)
    for value in weights.values():
        value.requires_grad_(True)
    shape = dit.Shape(patch=args.patch)
    forward = dit.Forward(shape, data.vectors(), compiled=True) if family is families.WAN else family.forward(compiled=True)
    pairing = coupling.Coupling(world.Lattice(8 * args.patch)) if family is families.WAN else family.coupling()
    null = words.mixing("", data.VOCABULARY)
    descent = Descent(weights, args.rate)
    torch.manual_seed(args.seed * 1000 + rank + 1)
    pool: dict[str, Tensor] = {}
    seen: set[str] = set()

    def refill() -> None:
        new = data.load(Path(args.data), seen)
        if new:
            for k, v in new.items():
                pool[k] = torch.cat([pool[k], v]) if k in pool else v

    refill()
    if not pool:
        raise SystemExit(f"no clips in {args.data}: run python -m demo.data {args.data} first")
    log: dict[str, list[float]] = {"image": [], "clip": [], "object": [], "attention": []}
    began = last = time.time()
    for step in range(min(args.steps, args.until or args.steps)):
        share = step / args.steps
        rate = min(1.0, (step + 1) / 60) * (1 if share < args.hold else (1 - share) / (1 - args.hold))
        single = share < args.images and step % 8 != 7 or share >= args.images and step % 6 == 0
        size = args.batch * 3 if single else args.batch
        index = torch.randint(0, len(pool["latents"]), (size,))
        batch = {k: v[index] for k, v in pool.items()}
        if single:
            batch["latents"], batch["masks"] = batch["latents"][:, :, :1], batch["masks"][:, :, :1]
        clean = family.from_wan(batch["latents"].float())
        sigma = levels(size, args.shift)
        noise = pairing.couple(torch.randn_like(clean), batch["cells"])
        s = sigma.view(-1, 1, 1, 1, 1)
        dropped = torch.rand(size) < 0.1
        text = torch.where(dropped.view(-1, 1, 1), null, batch["text"])
        velocity, maps = forward(weights, s * noise + (1 - s) * clean, sigma, text, want=ATTENDED)
        error = (velocity - (noise - clean)) ** 2
        inside = F.interpolate(batch["masks"].float().amax(1), size=clean.shape[-2:]).unsqueeze(1)
        loss = (error * (1 + 2 * (inside > 0.02))).mean() / 1.4
        attention = attention_loss(torch.stack([maps[i].mean(1) for i in ATTENDED]), batch, (~dropped).float())
        (loss + args.attention * attention).backward()
        descent.step(step, rate)
        with torch.no_grad():
            log["image" if single else "clip"].append(error.mean().item())
            log["object"].append(((error * inside).sum() / (inside.sum() * error.shape[1] + 1e-6)).item())
            log["attention"].append(attention.item())
        if rank == 0 and (step + 1) % 50 == 0:
            tail = "  ".join(f"{k} {sum(v[-50:]) / max(1, len(v[-50:])):.4f}" for k, v in log.items())
            print(f"{step + 1}/{args.steps} {time.time() - began:.0f}s {(time.time() - last) / 50:.2f}s/step rate {rate:.2f} "
                  f"pool {len(pool['latents'])}  {tail}", flush=True)
            last = time.time()
        if (step + 1) % 200 == 0 or step + 1 in (args.steps, args.until):
            if rank == 0:
                descent.save(Path(args.out))
            refill()
            for n in weights:
                dist.broadcast(weights[n].data, 0)
    dist.destroy_process_group()


def launch(work: Callable[..., None], args: argparse.Namespace) -> None:
    """Run work(rank, processes, store, args) in args.processes processes of one thread each."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (args.processes, os.path.join(folder, "store"), args), nprocs=args.processes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--until", type=int, help="stop after this many steps of the schedule")
    parser.add_argument("--init", help="go on from these training-layout weights")
    parser.add_argument("--family", default="wan", choices=("wan", "wan22"), help="LTX-Video has distil.py")
    parser.add_argument("--patch", type=int, default=2, choices=(1, 2), help="latent cells a token and side")
    parser.add_argument("--hold", type=float, default=0.5)
    parser.add_argument("--images", type=float, default=0.1)
    parser.add_argument("--batch", type=int, default=32, help="clips a process and step")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--shift", type=float, default=3.5)
    parser.add_argument("--attention", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    args = parser.parse_args()
    launch(worker, args)


if __name__ == "__main__":
    main()
