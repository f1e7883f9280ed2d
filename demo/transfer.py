"""Wan2.2's transformer, composed from the shipped Wan2.1 one (`train.py` could go on from there).

python -m demo.transfer --family wan22 --out FILE.safetensors

It takes over everything: of the embedding the columns, and of the head the rows, of the values that its latents hold.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from . import dit
from .families import FAMILIES, WAN, Family

WEIGHTS = Path(__file__).parent / "weights"


def shipped_wan() -> dit.Weights:
    """The shipped Wan weights in the training layout."""
    return dit.from_stock(load_file(WEIGHTS / WAN.weights), dit.Shape())


def start(family: Family, wan: dit.Weights) -> dit.Weights:
    """A family's weights in the training layout, from Wan's in theirs."""
    out = {name: value.clone() for name, value in wan.items()}
    if family.kept:
        d, c, kept = len(wan["patch_embedding.bias"]), family.latent[0], list(family.kept)
        out["patch_embedding.weight"] = wan["patch_embedding.weight"][:, kept].reshape(d, c, 1, 1, 1)
        # The head's rows are (row, column, channel), a family's channels (channel, row, column).
        out["head.head.weight"] = wan["head.head.weight"].view(4, -1, d)[:, kept].transpose(0, 1).reshape(c, d)
        out["head.head.bias"] = wan["head.head.bias"].view(4, -1)[:, kept].T.reshape(c)
    return {name: value.contiguous() for name, value in out.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", required=True, choices=[name for name in FAMILIES if name != WAN.name])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    save_file(start(FAMILIES[args.family], shipped_wan()), args.out)


if __name__ == "__main__":
    main()
