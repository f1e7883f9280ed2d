"""Shards of rendered clips as latents, made in the background while training runs.

python -m demo.data FOLDER --clips N --seed S      writes FOLDER/clips_S_K.safetensors of SHARD clips each
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import latents, words, world

SHARD = 1024
_PLURALS = [n + ("es" if n == "cross" else "s") for n in world.NOUNS]
VOCABULARY = [words.END, "a", "and", "two", "moving", "on", "at", "small", "big", "left", "right", "up", "down",
              *world.NOUNS, *_PLURALS, *world.COLOURS, *world.PLACES]


def vectors() -> Tensor:
    """The vocabulary's word vectors, [V, WIDTH]."""
    return torch.stack([words.word_vector(w) for w in VOCABULARY])


def noun_slots(scene: world.Scene) -> list[int]:
    """Text slot of each thing's noun (twice the same for a counted scene)."""
    split = words.split(world.caption(scene))
    if scene.counted:
        slot = next(i for i, w in enumerate(split) if w in _PLURALS)
        return [slot, slot]
    found = [split.index(t.noun) for t in scene.things]
    return (found * 2)[:2]


def place_slot(scene: world.Scene) -> int:
    """Text slot of the place word."""
    return words.split(world.caption(scene)).index(scene.place)


def cell_index(scene: world.Scene, lattice: world.Lattice) -> list[int]:
    """Index into the lattice's cells of the first and the second thing (-1: none)."""
    cells = [lattice.cells.index(t.cell) for t in scene.things]
    return (cells + [-1])[:2]


def shard(rng: random.Random, lattice: world.Lattice, count: int = SHARD) -> dict[str, Tensor]:
    """`count` random trained scenes: latents, token masks, text mixing, slots and cells."""
    parts: dict[str, list[Tensor]] = {}
    for start in range(0, count, 8):
        scenes = [world.random_scene(rng, lattice=lattice) for _ in range(min(8, count - start))]
        drawn = [world.render(s) for s in scenes]
        masks = torch.stack([m for _, m in drawn])
        for j, scene in enumerate(scenes):
            if scene.counted:  # one noun stands for both things
                masks[j] = masks[j].amax(0, keepdim=True)
        batch = {
            "latents": latents.normalised(torch.stack([v for v, _ in drawn]) * 2 - 1).half(),
            "masks": latents.token_masks(masks, lattice.cell).half(),
            "text": torch.stack([words.mixing(world.caption(s), VOCABULARY) for s in scenes]),
            "nouns": torch.tensor([noun_slots(s) for s in scenes]),
            "place": torch.tensor([place_slot(s) for s in scenes]),
            "cells": torch.tensor([cell_index(s, lattice) for s in scenes]),
        }
        for name, value in batch.items():
            parts.setdefault(name, []).append(value)
    return {name: torch.cat(values) for name, values in parts.items()}


def load(folder: Path, seen: set[str]) -> dict[str, Tensor] | None:
    """All shards in `folder` that are not yet in `seen`, as one batch; None when there are none."""
    new = sorted(p for p in folder.glob("clips_*.safetensors") if p.name not in seen)
    seen.update(p.name for p in new)
    parts = [load_file(p) for p in new]
    return {k: torch.cat([p[k] for p in parts]) for k in parts[0]} if parts else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clips", type=int, default=20480)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cell", type=int, default=16, choices=(8, 16), help="pixels a token and side")
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.folder.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    for k in range(args.clips // SHARD):
        target = args.folder / f"clips_{args.seed}_{k}.safetensors"
        save_file(shard(rng, world.Lattice(args.cell)), target.with_suffix(".part"))
        target.with_suffix(".part").rename(target)
        print(f"{target.name}: {(k + 1) * SHARD} clips", flush=True)


if __name__ == "__main__":
    main()
