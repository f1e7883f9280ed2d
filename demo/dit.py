"""The demo transformer for training: the mathematics of the stock Wan model, arranged for speed on a CPU.

Weights live in a flat dict under the stock names. Query and key rows are kept in half-split rotary order
while training and permuted to the stock's interleaved order by `to_stock`; everything else is the stock layout.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from .words import PADDED, SLOTS, WIDTH

PRODUCTS = [torch.bfloat16]  # what matrix products are computed in; float32 is faster where a processor has no bfloat16 units
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a Wan transformer. The host reads them off the weights (heads = dim // 128); a patch other than 2 x 2
    latent cells a token has to stand in the file's metadata.
    """

    channels: int = 16
    dim: int = 256
    ffn: int = 512
    layers: int = 6
    patch: int = 2

    @property
    def heads(self) -> int:
        return self.dim // 128


def shapes(shape: Shape) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every weight, as the stock `WanModel` (t2v) has them."""
    d, f, c, p = shape.dim, shape.ffn, shape.channels, shape.patch
    out: dict[str, tuple[int, ...]] = {
        "patch_embedding.weight": (d, c, 1, p, p), "patch_embedding.bias": (d,),
        "text_embedding.0.weight": (d, WIDTH), "text_embedding.0.bias": (d,),
        "text_embedding.2.weight": (d, d), "text_embedding.2.bias": (d,),
        "time_embedding.0.weight": (d, 256), "time_embedding.0.bias": (d,),
        "time_embedding.2.weight": (d, d), "time_embedding.2.bias": (d,),
        "time_projection.1.weight": (6 * d, d), "time_projection.1.bias": (6 * d,),
        "head.modulation": (1, 2, d), "head.head.weight": (p * p * c, d), "head.head.bias": (p * p * c,),
    }
    for i in range(shape.layers):
        block = f"blocks.{i}."
        out[block + "modulation"] = (1, 6, d)
        for attention in ("self_attn", "cross_attn"):
            for part in "qkvo":
                out[block + f"{attention}.{part}.weight"], out[block + f"{attention}.{part}.bias"] = (d, d), (d,)
            out[block + f"{attention}.norm_q.weight"] = out[block + f"{attention}.norm_k.weight"] = (d,)
        out[block + "norm3.weight"] = out[block + "norm3.bias"] = (d,)
        out[block + "ffn.0.weight"], out[block + "ffn.0.bias"] = (f, d), (f,)
        out[block + "ffn.2.weight"], out[block + "ffn.2.bias"] = (d, f), (d,)
    return out


def init(shape: Shape) -> Weights:
    """Random starting weights (uses torch's global generator)."""
    weights = {}
    for name, size in shapes(shape).items():
        if name.endswith("modulation"):
            value = torch.randn(size) * size[-1] ** -0.5
            if name.startswith("blocks"):
                value[:, 2] += 0.3
                value[:, 5] += 0.3
        elif "norm" in name and name.endswith("weight"):
            value = torch.ones(size)
        elif len(size) >= 2:
            value = torch.nn.init.xavier_uniform_(torch.empty(size[0], math.prod(size[1:]))).view(size)
        else:
            value = torch.zeros(size)
        if name in ("time_embedding.0.weight", "time_embedding.2.weight"):
            value = torch.randn(size) * 0.02
        if name == "time_projection.1.weight":
            value = torch.randn(size) * 0.01
        if name == "head.head.weight":
            value = value * 0
        weights[name] = value
    return weights


def rotary(frames: int, height: int, width: int, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the 3D rotary embedding, each [frames * height * width, head_dim / 2]."""
    side = 2 * (head_dim // 6)
    grid = torch.meshgrid(*(torch.arange(n).double() for n in (frames, height, width)), indexing="ij")
    angles = []
    for position, size in zip(grid, (head_dim - 2 * side, side, side), strict=False):
        omega = 1.0 / 10000.0 ** torch.linspace(0, (size - 2) / size, size // 2, dtype=torch.float64)
        angles.append(position.reshape(-1, 1) * omega)
    theta = torch.cat(angles, 1).float()
    return theta.cos(), theta.sin()


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    x = x.float()
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def layer_norm(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.linear(x.to(PRODUCTS[0]), weight.to(PRODUCTS[0]), bias.to(PRODUCTS[0]))


def split(z: Tensor, heads: int) -> Tensor:
    """[B, N, heads * d] -> [B, heads, N, d]."""
    return z.view(z.shape[0], -1, heads, z.shape[2] // heads).transpose(1, 2)


def attend(q: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, heads: int) -> Tensor:
    """Self-attention of scaled q, k and v [B, N, D] after the rotary embedding (rows in half-split order); [B, N, D]."""
    def rotate(z: Tensor) -> Tensor:
        first, second = split(z, heads).chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(PRODUCTS[0])

    probability = torch.softmax((rotate(q) @ rotate(k).transpose(-1, -2)).float(), -1).to(PRODUCTS[0])
    return (probability @ split(v, heads)).transpose(1, 2).reshape(q.shape)


def attend_text(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Cross-attention of scaled q [B, N, D] to k and v [B, SLOTS, D]; [B, N, D] and the probabilities [B, heads, N, SLOTS].

    bias [B, SLOTS] is added to the text slots' logits.
    """
    products = split(q.to(PRODUCTS[0]), heads) @ split(k.to(PRODUCTS[0]), heads).transpose(-1, -2)
    cross = torch.softmax(products.float() + bias[:, None, None], -1)
    return (cross.to(PRODUCTS[0]) @ split(v, heads)).transpose(1, 2).reshape(q.shape), cross


def phases(sigma: Tensor) -> Tensor:
    """The sinusoids of noise levels [B] from which both families embed time, [B, 256]."""
    phase = torch.outer(sigma * 1000, torch.pow(10000, -torch.arange(128).float() / 128))
    return torch.cat([phase.cos(), phase.sin()], 1)


def padding_bias(mixing: Tensor) -> Tensor:
    """What the empty slots of a text mixing [B, SLOTS, V] stand for, [B, SLOTS].

    The host pads text to PADDED slots of zeros, as it does for the real model. Equal slots attract attention in proportion
    to their number, so here the few empty ones stand for all of them by a bias of log(number).
    """
    empty = mixing.abs().sum(2) == 0
    return empty * torch.log((PADDED - SLOTS) / empty.sum(1, keepdim=True).clamp(min=1) + 1.0)


BLOCK_NAMES = [
    "modulation",
    *(f"{a}.{p}.{w}" for a in ("self_attn", "cross_attn") for p in "qkvo" for w in ("weight", "bias")),
    *(f"{a}.norm_{p}.weight" for a in ("self_attn", "cross_attn") for p in "qk"),
    "norm3.weight", "norm3.bias", *(f"ffn.{i}.{w}" for i in (0, 2) for w in ("weight", "bias")),
]


def block(x: Tensor, time: Tensor, context: Tensor, bias: Tensor, cos: Tensor, sin: Tensor, weights: list[Tensor],
          heads: int) -> tuple[Tensor, Tensor]:
    """One Wan block on x [B, N, D]; also returns the cross-attention probabilities [B, heads, N, SLOTS].

    bias [B, SLOTS] is added to the text slots' logits.
    """
    (modulation, sqw, sqb, skw, skb, svw, svb, sow, sob, cqw, cqb, ckw, ckb, cvw, cvb, cow, cob,
     snq, snk, cnq, cnk, n3w, n3b, f0w, f0b, f2w, f2b) = weights
    e, scale = modulation + time, (x.shape[2] // heads) ** -0.5
    y = (layer_norm(x) * (1 + e[:, 1:2]) + e[:, 0:1]).to(PRODUCTS[0])
    q, k = rms_norm(linear(y, sqw, sqb), snq * scale), rms_norm(linear(y, skw, skb), snk)
    y = attend(q, k, linear(y, svw, svb), cos, sin, heads)
    x = x + linear(y, sow, sob).float() * e[:, 2:3]
    y = (layer_norm(x) * n3w + n3b).to(PRODUCTS[0])
    q, k = rms_norm(linear(y, cqw, cqb), cnq * scale), rms_norm(linear(context, ckw, ckb), cnk)
    y, cross = attend_text(q, k, linear(context, cvw, cvb), bias, heads)
    x = x + linear(y, cow, cob).float()
    y = (layer_norm(x) * (1 + e[:, 4:5]) + e[:, 3:4]).to(PRODUCTS[0])
    y = linear(F.gelu(linear(y, f0w, f0b).float(), approximate="tanh"), f2w, f2b)
    return x + y.float() * e[:, 5:6], cross


class Forward:
    """The training forward. `vectors` [V, WIDTH] are the vocabulary's word vectors."""

    def __init__(self, shape: Shape, vectors: Tensor, compiled: bool = False) -> None:
        self.shape, self.vectors = shape, vectors
        self.block = torch.compile(block, dynamic=False) if compiled else block
        self.rotary: dict[tuple[int, ...], tuple[Tensor, Tensor]] = {}

    def __call__(self, weights: Weights, x: Tensor, sigma: Tensor, mixing: Tensor, want: Collection[int] = (),
                 hidden: list[Tensor] | None = None) -> tuple[Tensor, dict[int, Tensor]]:
        """x [B, C, T, H, W] at noise level sigma [B], text mixing [B, SLOTS, V] -> velocity, cross maps of layers.

        hidden: is given what enters the first layer and what leaves each, [B, N, D].
        """
        b, c, frames, height, width = x.shape
        d, heads, p = self.shape.dim, self.shape.heads, self.shape.patch
        h, w = height // p, width // p
        tokens = x.view(b, c, frames, h, p, w, p).permute(0, 2, 3, 5, 1, 4, 6).reshape(b, frames * h * w, p * p * c)
        z = F.linear(tokens.to(PRODUCTS[0]), weights["patch_embedding.weight"].view(d, p * p * c).to(PRODUCTS[0])).float()
        z = z + weights["patch_embedding.bias"]
        e = F.linear(phases(sigma), weights["time_embedding.0.weight"],
                     weights["time_embedding.0.bias"])
        e = F.linear(F.silu(e), weights["time_embedding.2.weight"], weights["time_embedding.2.bias"])
        time = F.linear(F.silu(e), weights["time_projection.1.weight"], weights["time_projection.1.bias"]).view(b, 6, d)
        words = F.linear(self.vectors, weights["text_embedding.0.weight"])
        context = F.gelu(mixing @ words + weights["text_embedding.0.bias"], approximate="tanh")
        context = F.linear(context, weights["text_embedding.2.weight"], weights["text_embedding.2.bias"]).to(PRODUCTS[0])
        bias, key = padding_bias(mixing), (frames, h, w)
        if key not in self.rotary:
            self.rotary[key] = rotary(frames, h, w, d // heads)
        cos, sin = self.rotary[key]
        maps = {}
        if hidden is not None:
            hidden.append(z)
        for i in range(self.shape.layers):
            z, cross = self.block(z, time, context, bias, cos, sin, [weights[f"blocks.{i}.{n}"] for n in BLOCK_NAMES], heads)
            if hidden is not None:
                hidden.append(z)
            if i in want:
                maps[i] = cross
        m = weights["head.modulation"] + e.unsqueeze(1)
        z = linear(layer_norm(z) * (1 + m[:, 1:2]) + m[:, 0:1], weights["head.head.weight"], weights["head.head.bias"])
        v = z.float().view(b, frames, h, w, 1, p, p, c).permute(0, 7, 1, 4, 2, 5, 3, 6).reshape(x.shape)
        return v, maps


def finer(weights: Weights) -> Weights:
    """Weights of a 2 x 2 patch model as the start of a 1 x 1 one: the patch's kernel summed, its outputs averaged."""
    out = dict(weights)
    out["patch_embedding.weight"] = weights["patch_embedding.weight"].sum((-1, -2), keepdim=True)
    for name in ("head.head.weight", "head.head.bias"):
        out[name] = weights[name].unflatten(0, (4, -1)).mean(0)  # rows are (row, column, channel)
    return {k: v.clone().contiguous() for k, v in out.items()}


def to_stock(weights: Weights, shape: Shape) -> Weights:
    """Copy with query and key rows in the stock's interleaved rotary order (pair 2i, 2i+1 <- i, i + head_dim/2)."""
    half = shape.dim // shape.heads // 2
    order = torch.arange(shape.dim).view(shape.heads, 2, half).transpose(1, 2).reshape(-1)
    out = {}
    for name, value in weights.items():
        if ".self_attn." in name and (".q." in name or ".k." in name or "norm_" in name):
            value = value[order]
        out[name] = value.detach().clone().contiguous()
    return out


def from_stock(weights: Weights, shape: Shape) -> Weights:
    """The inverse of `to_stock`, in float32: shipped weights back to the training layout."""
    half = shape.dim // shape.heads // 2
    order = torch.arange(shape.dim).view(shape.heads, half, 2).transpose(1, 2).reshape(-1)
    out = {}
    for name, value in weights.items():
        if ".self_attn." in name and (".q." in name or ".k." in name or "norm_" in name):
            value = value[order]
        out[name] = value.detach().float().clone().contiguous()
    return out
