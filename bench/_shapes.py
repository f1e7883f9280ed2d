"""Real transformer shapes with random weights, and the pack's own ways through one guided evaluation of them.

The models are the host's real classes. What is reused is made up (a box as the region, random blocks as the
connectivity): for seconds and memory only the sizes matter. Quality is measured in the demo world, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from carnator.carnator_core.backbones.base import Backbone, Grid, Tokens, token_grid
from carnator.carnator_core.connectivity import Connectivity, Recorder
from carnator.carnator_core.observe import Window
from carnator.carnator_core.regions import Regions, regions
from carnator.carnator_core.sparse import Following, Recording
from carnator.kernels import BLOCK_K, BLOCK_Q, BlockMask
from carnator.kernels.masks import pack_bits
from torch import Tensor

SIGMA = 0.7  # where the evaluations stand; nothing timed here depends on it
WINDOW = (0.2, 0.8)  # share of the layers that are region-restricted, as in Settings
MODES = ("dense", "latent", "attention", "joint")


@dataclass(frozen=True)
class Shape:
    """A published text-to-video model at one clip size. latent: [C, T, H, W]; family: "wan" or "ltx"; text: token slots."""

    name: str
    family: str
    latent: tuple[int, int, int, int]
    dim: int
    ffn: int
    heads: int
    layers: int
    text: int = 512

    @property
    def patch(self) -> Grid:
        return (1, 2, 2) if self.family == "wan" else (1, 1, 1)

    @property
    def grid(self) -> Grid:
        return token_grid(self.latent, self.patch)

    @property
    def tokens(self) -> int:
        t, h, w = self.grid
        return t * h * w


WAN_480P = Shape("Wan2.1-1.3B 832x480, 81 frames", "wan", (16, 21, 60, 104), 1536, 8960, 12, 30)
SHAPES = (
    WAN_480P,
    Shape("Wan2.1-1.3B 1280x720, 81 frames", "wan", (16, 21, 90, 160), 1536, 8960, 12, 30),
    Shape("Wan2.2-5B 1280x704, 121 frames", "wan", (48, 31, 44, 80), 3072, 14336, 24, 30),
    Shape("LTX-13B 1280x704, 121 frames", "ltx", (128, 16, 22, 40), 4096, 16384, 32, 48, 256),
)


def smaller(shape: Shape, layers: int, latent: tuple[int, int, int, int] | None = None) -> Shape:
    """The same blocks in fewer layers, and on a smaller clip if one is given."""
    return replace(shape, layers=layers, latent=latent or shape.latent)


def clock(device: torch.device | str) -> Callable[[], float]:
    """Seconds: of the device once it is done, or of this process alone on a CPU, so that a busy machine disturbs little."""
    if torch.device(device).type != "cuda":
        return time.process_time

    def now() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()
    return now


class Stand:
    """A random model of a shape, the inputs of one guided evaluation (conditional and unconditional in one batch), and what
    reuse needs. share: of the tokens in the Evidence box; density: of the blocks in the connectivity."""

    def __init__(self, shape: Shape, device: str, dtype: torch.dtype, share: float = 0.1, density: float = 0.3,
                 seed: int = 0) -> None:
        from comfy.ldm.modules.attention import optimized_attention

        torch.manual_seed(seed)
        self.shape, self.device = shape, torch.device(device)
        self.model = _model(shape, device, dtype)
        self.x = torch.randn(2, *shape.latent, device=device, dtype=dtype)
        self.text = torch.randn(2, shape.text, 4096, device=device, dtype=dtype)
        self.scope = _box(shape.grid, share)
        self.density = density
        self.backbone = _backbone(shape)
        first, last = round(WINDOW[0] * shape.layers), max(round(WINDOW[1] * shape.layers), round(WINDOW[0] * shape.layers) + 1)
        tokens = Tokens.of(self.scope.active, self.scope.context)
        self.window = Window(self.backbone, self.backbone.blocks(self.model), first, last, tokens, optimized_attention)
        self.following = self._connectivity(density)

    @torch.inference_mode()
    def evaluate(self, mode: str = "dense", recorder: Recorder | None = None) -> Tensor:
        """One guided evaluation [2, C, T, H, W] by a mode of MODES; "full" is dense and fills the restricted layers'
        caches. recorder: notes its connectivity (dense). Raises KeyError for another mode."""
        from carnator.carnator_core.hosts.patching import Patched

        window = self.window if mode in ("full", "latent", "joint") else None
        restrict = mode in ("latent", "joint")
        connect: Any = None if recorder is None else Recording(recorder, SIGMA)
        if mode in ("attention", "joint"):
            connect = Following(self.following, SIGMA, self.window.tokens if restrict else None)
        elif mode not in ("dense", "full", "latent"):
            raise KeyError(mode)
        options = {"transformer_options": {"cond_or_uncond": [0, 1], "sigmas": torch.tensor([SIGMA])}}
        call = Patched(options, self.shape.layers, None, window, restrict, connect, capture=False)
        time_ = torch.full((2,), 1000 * SIGMA, device=self.device, dtype=self.x.dtype)
        arguments = [self.x, time_, self.text]
        if self.shape.family == "ltx":
            arguments.append(torch.ones(2, self.shape.text, dtype=torch.long, device=self.device))
        out: Tensor = self.model(*arguments, transformer_options=call.options["transformer_options"])
        return out

    def recorder(self) -> Recorder:
        """A recorder that wants this evaluation's sigma."""
        return Recorder(self.shape.grid, [SIGMA, 0.0], every=1)

    def seconds(self, times: int, *modes: str) -> dict[str, float]:
        """Median seconds of each mode, in turns, after one warm-up of each; "record" is dense with recording."""
        now, found = clock(self.device), {mode: [] for mode in modes}  # type: dict[str, list[float]]
        for turn in range(times + 1):
            for mode in modes:
                recorder = self.recorder() if mode == "record" else None
                began = now()
                self.evaluate("dense" if recorder else mode, recorder)
                if turn:
                    found[mode].append(now() - began)
        return {mode: sorted(values)[len(values) // 2] for mode, values in found.items()}

    def _connectivity(self, density: float) -> Connectivity:
        mask = random_mask(self.shape.tokens, density, self.shape.heads)
        bits = pack_bits(mask.kept[0])
        keys = ((0, branch, layer) for branch in (0, 1) for layer in range(self.shape.layers))
        return Connectivity(self.shape.grid, self.shape.heads, [SIGMA], dict.fromkeys(keys, bits))


def random_mask(tokens: int, density: float, heads: int, device: str = "cpu") -> BlockMask:
    """Random blocks of about this density with the diagonal kept."""
    full = BlockMask.full(tokens, tokens, BLOCK_Q, BLOCK_K)
    nq, nk = full.kept.shape[-2:]
    g = torch.Generator().manual_seed(0)
    kept = torch.rand(1, heads, nq, nk, generator=g) < density
    kept[..., torch.arange(nq), (2 * torch.arange(nq)).clamp_max(nk - 1)] = True
    return BlockMask(kept, tokens, tokens).to(device)


def _box(grid: Grid, share: float) -> Regions:
    """A centred box of this share of every frame as the Evidence Region, with the default dilations."""
    evidence = torch.zeros(grid, dtype=torch.bool)
    height, width = (max(1, round(n * share**0.5)) for n in grid[1:])
    top, left = (grid[1] - height) // 2, (grid[2] - width) // 2
    evidence[:, top:top + height, left:left + width] = True
    return regions(evidence)


def _backbone(shape: Shape) -> Backbone:
    from carnator.carnator_core.backbones.ltx import Ltx
    from carnator.carnator_core.backbones.wan import Wan

    return Wan() if shape.family == "wan" else Ltx()


def _model(shape: Shape, device: str, dtype: torch.dtype) -> Any:
    import comfy.ops

    common: dict[str, Any] = {"operations": comfy.ops.disable_weight_init, "dtype": dtype, "device": device}
    if shape.family == "wan":
        from comfy.ldm.wan.model import WanModel

        model = WanModel(in_dim=shape.latent[0], out_dim=shape.latent[0], dim=shape.dim, ffn_dim=shape.ffn,
                         num_heads=shape.heads, num_layers=shape.layers, cross_attn_norm=True, text_len=shape.text, **common)
    else:
        from comfy.ldm.lightricks.model import LTXVModel

        model = LTXVModel(in_channels=shape.latent[0], num_attention_heads=shape.heads,
                          attention_head_dim=shape.dim // shape.heads, cross_attention_dim=shape.dim,
                          num_layers=shape.layers, **common)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.02 if value.ndim == 1 else value[0].numel() ** -0.5)
    return model.eval().requires_grad_(False)
