"""The other families' transformers, from the shipped Wan2.1 one.

python -m demo.transfer --family NAME --out FILE.safetensors

Wan2.2's is composed whole: of the embedding the columns, and of the head the rows, of the values that its latents hold.
LTX-Video's starts from Wan's blocks as far as they correspond, and is then taught (`distil.py`).
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import dit, families, ltx
from .families import FAMILIES, WAN, Family

WEIGHTS = Path(__file__).parent / "weights"
LAYERS = ((0,), (1, 2), (3,), (4,), (5,))  # Wan's layers that each of LTX-Video's stands for: 1 and 2 matter least alone
STREAM = 4.0  # root mean square of Wan's residual stream in the middle layers


def shipped_wan() -> dit.Weights:
    """The shipped Wan weights in the training layout."""
    return dit.from_stock(load_file(WEIGHTS / WAN.weights), dit.Shape())


def start(family: Family, wan: dit.Weights) -> dit.Weights:
    """A family's weights in the training layout, from Wan's in theirs."""
    if family.lifted:
        out = ltx_start(wan)
    else:
        out = {name: value.clone() for name, value in wan.items()}
        if family.kept:
            d, c, kept = len(wan["patch_embedding.bias"]), family.latent[0], list(family.kept)
            out["patch_embedding.weight"] = wan["patch_embedding.weight"][:, kept].reshape(d, c, 1, 1, 1)
            # The head's rows are (row, column, channel), a family's channels (channel, row, column).
            out["head.head.weight"] = wan["head.head.weight"].view(4, -1, d)[:, kept].transpose(0, 1).reshape(c, d)
            out["head.head.bias"] = wan["head.head.bias"].view(4, -1)[:, kept].T.reshape(c)
    return {name: value.contiguous() for name, value in out.items()}


def ltx_start(wan: dit.Weights) -> dit.Weights:
    """LTX-Video's weights before they are taught. Exact, but where two layers become one: time, text, modulation, feed-forward,
    latents. Near: the norms (the stream's mean is small) and the rotary frequencies (the nearest ones of the same axis)."""
    shape, lift = ltx.Shape(), families.lift()
    d = shape.dim
    patch = wan["patch_embedding.weight"].view(d, -1)
    # The empty directions of the latents enter where Wan's embedding leaves room.
    spare = torch.linalg.qr(torch.cat([patch, torch.randn(d, d, generator=torch.Generator().manual_seed(29))], 1))[0]
    empty = torch.linalg.qr(torch.cat([lift, torch.eye(len(lift))], 1))[0][:, 64:128]
    out = {
        "patchify_proj.weight": patch @ lift.T + spare[:, 64:128] @ empty.T, "patchify_proj.bias": wan["patch_embedding.bias"],
        "scale_shift_table": wan["head.modulation"][0],
        "proj_out.weight": lift @ wan["head.head.weight"].view(4, -1, d).transpose(0, 1).reshape(-1, d),
        "proj_out.bias": lift @ wan["head.head.bias"].view(4, -1).T.reshape(-1),
    }
    for theirs, mine in {"time_embedding.0": "adaln_single.emb.timestep_embedder.linear_1",
                         "time_embedding.2": "adaln_single.emb.timestep_embedder.linear_2",
                         "time_projection.1": "adaln_single.linear", "text_embedding.0": "caption_projection.linear_1",
                         "text_embedding.2": "caption_projection.linear_2"}.items():
        out |= {f"{mine}.{w}": wan[f"{theirs}.{w}"] for w in ("weight", "bias")}
    rows = turned_rows(shape)
    for i, layers in enumerate(LAYERS):
        out |= {f"transformer_blocks.{i}.{n}": v for n, v in _block(wan, layers, rows, d).items()}
    return {name: out[name].clone() for name in ltx.shapes(shape)}


def _block(wan: dit.Weights, layers: tuple[int, ...], rows: Tensor, d: int) -> dit.Weights:
    def of(name: str, layer: int = layers[0]) -> Tensor:
        return wan[f"blocks.{layer}.{name}"]

    out = {"scale_shift_table": of("modulation")[0]}
    for theirs, mine in (("self_attn", "attn1"), ("cross_attn", "attn2")):
        for part, name in (("q", "to_q"), ("k", "to_k"), ("v", "to_v"), ("o", "to_out.0")):
            for w in ("weight", "bias"):
                value = of(f"{theirs}.{part}.{w}")
                out[f"{mine}.{name}.{w}"] = value[rows] if mine == "attn1" and part in "qk" else value
        for part in "qk":
            value = of(f"{theirs}.norm_{part}.weight")
            out[f"{mine}.{part}_norm.weight"] = value[rows] if mine == "attn1" else value
    # Wan normalises before the text's queries; LTX-Video only after, where the length goes out but for the bias.
    query, scale, shift = of("cross_attn.q.weight"), of("norm3.weight"), of("norm3.bias")
    out["attn2.to_q.weight"] = query * scale
    out["attn2.to_q.bias"] = STREAM * (of("cross_attn.q.bias") + query @ shift)
    width = of("ffn.0.bias").shape[0]
    second = layers[1] if len(layers) > 1 else None
    first_w = [of("ffn.0.weight"), of("ffn.0.weight", second) if second else 0.02 * torch.randn(
        4 * d - width, d, generator=torch.Generator().manual_seed(31))]
    first_b = [of("ffn.0.bias"), of("ffn.0.bias", second) if second else torch.zeros(4 * d - width)]
    last_w = [of("ffn.2.weight"), of("ffn.2.weight", second) if second else torch.zeros(d, 4 * d - width)]
    out |= {"ff.net.0.proj.weight": torch.cat(first_w), "ff.net.0.proj.bias": torch.cat(first_b),
            "ff.net.2.weight": torch.cat(last_w, 1),
            "ff.net.2.bias": of("ffn.2.bias") + (of("ffn.2.bias", second) if second else 0)}
    return out


def turned_rows(shape: ltx.Shape) -> Tensor:
    """Wan's rows [dim] for LTX-Video's, both half-split: in each head, pairs that turn about as fast along the same axis."""
    from scipy.optimize import linear_sum_assignment

    half = shape.dim // shape.heads // 2
    side = 2 * half // 6
    radians = torch.cat([10000.0 ** -(torch.arange(n) / n) for n in (half - 2 * side, side, side)])
    axes = torch.cat([torch.full((n,), a) for a, n in enumerate((half - 2 * side, side, side))])
    mine, my_axes = (z.view(shape.heads, half) for z in ltx.ladder(shape))
    still = math.radians(1.0)  # a pair that turns less in a step has no say in where things are
    out = []
    for head in range(shape.heads):
        ours, theirs = mine[head].clamp(min=still).log(), radians.clamp(min=still).log()
        cost = (ours[:, None] - theirs[None]).abs() + (my_axes[head][:, None] != axes[None]) * (
            torch.maximum(ours[:, None], theirs[None].expand(half, half)) - math.log(still))
        chosen = torch.as_tensor(linear_sum_assignment(cost.numpy())[1])
        out += [2 * half * head + chosen, 2 * half * head + half + chosen]
    return torch.cat(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", required=True, choices=[name for name in FAMILIES if name != WAN.name])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    save_file(start(FAMILIES[args.family], shipped_wan()), args.out)


if __name__ == "__main__":
    main()
