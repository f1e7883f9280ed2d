"""The LTX-Video demo transformer for training: the mathematics of the stock model, arranged for speed on a CPU.

Weights live in a flat dict under the stock names; the rows of self-attention's queries and keys are kept in half-split
rotary order, as `dit.py` keeps Wan's. LTX-Video differs from Wan in what a small model feels: RMS norms where Wan has layer
norms, none before the text's attention, and one ladder of rotary frequencies over all heads, so that the first head sees
far and the last one near.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .dit import PRODUCTS, Weights, attend, attend_text, layer_norm, linear, padding_bias, phases
from .words import WIDTH

# Radians from one latent cell to the next of the slowest rotary frequency, in time and space, as the host counts: a cell is
# 8 frames of 1/25 s, of 20 s, and 32 pixels of 2048. The fastest turns 10,000 times as far.
SLOWEST = (math.pi * 8 / 25 / 20, math.pi * 32 / 2048, math.pi * 32 / 2048)


@dataclass(frozen=True)
class Shape:
    """Sizes of an LTX-Video transformer; a token is one latent cell."""

    channels: int = 128
    dim: int = 256
    layers: int = 5
    heads: int = 2


def config(shape: Shape) -> dict[str, Any]:
    """What the host cannot read off the weights, for their file's metadata (it assumes 32 heads)."""
    return {"num_attention_heads": shape.heads, "attention_head_dim": shape.dim // shape.heads}


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, as the stock `LTXVModel` has them."""
    d, c = shape.dim, shape.channels
    out: dict[str, tuple[int, ...]] = {"scale_shift_table": (2, d)}
    dense = {"patchify_proj": (d, c), "proj_out": (c, d), "caption_projection.linear_1": (d, WIDTH),
             "caption_projection.linear_2": (d, d), "adaln_single.emb.timestep_embedder.linear_1": (d, 256),
             "adaln_single.emb.timestep_embedder.linear_2": (d, d), "adaln_single.linear": (6 * d, d)}
    for i in range(shape.layers):
        block = f"transformer_blocks.{i}."
        out[block + "scale_shift_table"] = (6, d)
        for attention in ("attn1", "attn2"):
            dense |= {block + f"{attention}.{part}": (d, d) for part in ("to_q", "to_k", "to_v", "to_out.0")}
            out |= {block + f"{attention}.{part}.weight": (d,) for part in ("q_norm", "k_norm")}
        dense |= {block + "ff.net.0.proj": (4 * d, d), block + "ff.net.2": (d, 4 * d)}
    for name, size in dense.items():
        out[name + ".weight"], out[name + ".bias"] = size, size[:1]
    return out


def ladder(shape: Shape) -> tuple[Tensor, Tensor]:
    """Radians a cell (0: not turned) and axis (time, height, width) of each pair of rows, [dim / 2], in the stock's order."""
    steps = shape.dim // 6
    radians = 10000.0 ** torch.linspace(0, 1, steps, dtype=torch.float64)[:, None] * torch.tensor(SLOWEST, dtype=torch.float64)
    idle = shape.dim // 2 - 3 * steps
    return (torch.cat([torch.zeros(idle, dtype=torch.float64), radians.flatten()]),
            torch.cat([torch.zeros(idle, dtype=torch.long), torch.arange(3).repeat(steps)]))


def rotary(shape: Shape, frames: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every head, each [heads, frames * height * width, head_dim / 2]."""
    radians, axis = ladder(shape)
    grid = torch.stack(torch.meshgrid(*(torch.arange(n).double() for n in (frames, height, width)), indexing="ij"))
    theta = (grid.flatten(1)[axis] * radians[:, None]).view(shape.heads, -1, frames * height * width).transpose(1, 2).float()
    return theta.cos(), theta.sin()


def rms(x: Tensor, weight: Tensor | float = 1.0, eps: float = 1e-6) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


BLOCK_NAMES = [
    "scale_shift_table",
    *(f"{a}.{p}.{w}" for a in ("attn1", "attn2") for p in ("to_q", "to_k", "to_v", "to_out.0") for w in ("weight", "bias")),
    *(f"{a}.{p}_norm.weight" for a in ("attn1", "attn2") for p in "qk"),
    *(f"ff.net.{i}.{w}" for i in ("0.proj", "2") for w in ("weight", "bias")),
]


def block(x: Tensor, time: Tensor, context: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, weights: list[Tensor],
          heads: int) -> tuple[Tensor, Tensor]:
    """One block on x [B, N, D]; also returns the text's attention [B, heads, N, SLOTS]. bias: as in `dit.block`."""
    (table, sqw, sqb, skw, skb, svw, svb, sow, sob, cqw, cqb, ckw, ckb, cvw, cvb, cow, cob,
     snq, snk, cnq, cnk, f0w, f0b, f2w, f2b) = weights
    e, scale = table + time, (x.shape[2] // heads) ** -0.5
    y = (rms(x) * (1 + e[:, 1:2]) + e[:, 0:1]).to(PRODUCTS[0])
    q, k = rms(linear(y, sqw, sqb), snq * scale, 1e-5), rms(linear(y, skw, skb), snk, 1e-5)
    y = attend(q, k, linear(y, svw, svb), cos, sin, heads)
    x = x + linear(y, sow, sob).float() * e[:, 2:3]
    q, k = rms(linear(x, cqw, cqb), cnq * scale, 1e-5), rms(linear(context, ckw, ckb), cnk, 1e-5)
    y, cross = attend_text(q, k, linear(context, cvw, cvb), bias, heads)
    x = x + linear(y, cow, cob).float()
    y = (rms(x) * (1 + e[:, 4:5]) + e[:, 3:4]).to(PRODUCTS[0])
    y = linear(F.gelu(linear(y, f0w, f0b).float(), approximate="tanh"), f2w, f2b)
    return x + y.float() * e[:, 5:6], cross


class Forward:
    """The training forward, as `dit.Forward`. `vectors` [V, WIDTH] are the vocabulary's word vectors."""

    def __init__(self, shape: Shape, vectors: Tensor, compiled: bool = False) -> None:
        self.shape, self.vectors = shape, vectors
        self.block = torch.compile(block, dynamic=False) if compiled else block
        self.rotary: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, weights: Weights, x: Tensor, sigma: Tensor, mixing: Tensor, want: Collection[int] = (),
                 hidden: list[Tensor] | None = None) -> tuple[Tensor, dict[int, Tensor]]:
        """x [B, C, T, h, w] at noise level sigma [B], text mixing [B, SLOTS, V] -> velocity, cross maps of layers.

        hidden: is given what enters the first layer and what leaves each, [B, N, D].
        """
        b, c, frames, height, width = x.shape
        z = linear(x.flatten(2).transpose(1, 2), weights["patchify_proj.weight"], weights["patchify_proj.bias"]).float()
        emb, cap = "adaln_single.emb.timestep_embedder.", "caption_projection."
        e = F.linear(phases(sigma), weights[emb + "linear_1.weight"], weights[emb + "linear_1.bias"])
        e = F.linear(F.silu(e), weights[emb + "linear_2.weight"], weights[emb + "linear_2.bias"])
        time = F.linear(F.silu(e), weights["adaln_single.linear.weight"], weights["adaln_single.linear.bias"]).view(b, 6, -1)
        words = F.linear(self.vectors, weights[cap + "linear_1.weight"])
        context = F.gelu(mixing @ words + weights[cap + "linear_1.bias"], approximate="tanh")
        context = F.linear(context, weights[cap + "linear_2.weight"], weights[cap + "linear_2.bias"]).to(PRODUCTS[0])
        bias, key = padding_bias(mixing), (frames, height, width)
        if key not in self.rotary:
            self.rotary[key] = rotary(self.shape, *key)
        cos, sin = self.rotary[key]
        maps = {}
        if hidden is not None:
            hidden.append(z)
        for i in range(self.shape.layers):
            some = [weights[f"transformer_blocks.{i}.{n}"] for n in BLOCK_NAMES]
            z, cross = self.block(z, time, context, bias, cos, sin, some, self.shape.heads)
            if hidden is not None:
                hidden.append(z)
            if i in want:
                maps[i] = cross
        m = weights["scale_shift_table"] + e.unsqueeze(1)
        z = linear(layer_norm(z) * (1 + m[:, 1:2]) + m[:, 0:1], weights["proj_out.weight"], weights["proj_out.bias"])
        return z.float().transpose(1, 2).reshape(b, c, frames, height, width), maps


def _reordered(weights: Weights, order: Tensor) -> Weights:
    turned = (".to_q.", ".to_k.", ".q_norm.", ".k_norm.")
    return {name: (value[order] if ".attn1." in name and any(t in name for t in turned) else value).detach().clone().contiguous()
            for name, value in weights.items()}


def to_stock(weights: Weights, shape: Shape) -> Weights:
    """Copy with query and key rows in the stock's interleaved rotary order (pair 2i, 2i+1 <- i, i + head_dim/2)."""
    half = shape.dim // shape.heads // 2
    return _reordered(weights, torch.arange(shape.dim).view(shape.heads, 2, half).transpose(1, 2).reshape(-1))


def from_stock(weights: Weights, shape: Shape) -> Weights:
    """The inverse of `to_stock`, in float32."""
    half = shape.dim // shape.heads // 2
    order = torch.arange(shape.dim).view(shape.heads, half, 2).transpose(1, 2).reshape(-1)
    return {name: value.float() for name, value in _reordered(weights, order).items()}
