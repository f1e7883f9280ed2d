"""The demo VAE: the stock Wan VAE of width 8, its encoder written down, its decoder trained.

python -m demo.vae --comfy PATH --out FILE.safetensors --steps N [--init FILE]

The encoder's weights compute `latents.raw_latents` (to about 1 %), so that latents never depend on training.
The decoder learns to draw the frames back from the normalised latents. The host's own normalisation
of Wan latents is folded into the 1x1x1 convolutions on both sides when the file is written.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import latents, world

WIDTH = 8
BIAS, GAIN, CONSTANT = 3.0, 4.0, 120.0  # keep the encoder's last SiLU where it is a straight line
SMALL = 0.01  # the first frame carries this share of what later frames hold as a change over time


def stock_vae(comfy: Path) -> nn.Module:
    """The host's own WanVAE, at width 8."""
    sys.path.insert(0, str(comfy))
    argv, sys.argv = sys.argv, [sys.argv[0], "--cpu"]
    import comfy.options
    comfy.options.enable_args_parsing()
    import comfy.cli_args  # noqa: F401
    sys.argv = argv
    from comfy.ldm.wan.vae import WanVAE
    return WanVAE(dim=WIDTH, z_dim=16, dim_mult=[1, 2, 4, 4], num_res_blocks=2, attn_scales=[],
                  temperal_downsample=[False, True, True], image_channels=3, conv_out_channels=3, dropout=0.0)


@torch.no_grad()
def write_encoder(vae: nn.Module) -> None:
    """Set encoder and conv1 to compute `latents.raw_latents`, then normalise."""
    encoder = vae.encoder
    for p in [*encoder.parameters(), *vae.conv1.parameters()]:
        p.zero_()
    for name, p in encoder.named_parameters():
        if name.endswith("gamma"):
            p.fill_(1.0)
    centre = 2  # the causal convolutions' newest tap
    encoder.conv1.weight[:3, :, centre, 1, 1] = torch.eye(3)
    downs = encoder.downsamples
    for i in (3, 6):  # the shortcuts that widen
        shortcut = downs[i].shortcut.weight
        shortcut[: shortcut.shape[1], :, 0, 0, 0] = torch.eye(shortcut.shape[1])
    for i in (2, 5):  # plain 2x2 averages of RGB
        for c in range(3):
            downs[i].resample[1].weight[c, c, :2, :2] = 0.25
    for c in range(3):
        downs[5].time_conv.weight[c, c, 1:, 0, 0] = 0.5
    last, over_time = downs[8].resample[1], downs[8].time_conv
    patterns = torch.tensor([[[1.0, 1], [1, 1]], [[-1, 1], [-1, 1]], [[-1, -1], [1, 1]], [[1, -1], [-1, 1]]]) / 4
    for band in range(4):
        for c in range(3):
            last.weight[3 * band + c, c, :2, :2] = patterns[band]
            over_time.weight[3 * band + c, 3 * band + c, 1:, 0, 0] = 0.5
    for c in range(3):
        last.weight[12 + c, c, :2, :2] = SMALL * patterns[0]
        last.weight[15, c, :2, :2] = SMALL * patterns[1] / 3
    for c in range(12, 16):
        over_time.weight[c, c, 1:, 0, 0] = torch.tensor([-1.0, 1.0]) / SMALL
        over_time.bias[c] = BIAS
    last.bias[:16] = BIAS
    last.bias[16] = CONSTANT
    over_time.weight[16, 16, 2, 0, 0] = 1.0
    root_mean_square = ((16 * BIAS**2 + CONSTANT**2) / 32) ** 0.5
    encoder.head[0].gamma.fill_(GAIN * root_mean_square)
    encoder.head[0].gamma[16:] = 0
    encoder.head[2].weight[:16, :16, centre, 1, 1] = torch.eye(16) / GAIN
    encoder.head[2].bias[:16] = -BIAS
    mean, scale = latents.MEAN.flatten(), latents.SCALE.flatten()
    vae.conv1.weight[:16, :16, 0, 0, 0] = torch.diag(1 / scale)
    vae.conv1.bias[:16] = -mean / scale


@torch.no_grad()
def start_decoder(vae: nn.Module) -> None:
    """Start near a smooth enlargement: damped residual branches, pass-through where channels allow."""
    for m in vae.decoder.modules():
        if isinstance(m, nn.Conv2d | nn.Conv3d):
            nn.init.kaiming_normal_(m.weight, nonlinearity="linear")
            m.weight.mul_(0.5)
            nn.init.zeros_(m.bias)
        if type(m).__name__ == "RMS_norm":
            m.gamma.fill_(1.0)
        if type(m).__name__ == "ResidualBlock":
            m.residual[6].weight.mul_(0.2)
    vae.conv2.weight.zero_()
    vae.conv2.bias.zero_()
    vae.conv2.weight[:, :, 0, 0, 0] = torch.eye(16)
    vae.decoder.conv1.weight[:16] *= 0.1
    vae.decoder.conv1.weight[:16, :, 2, 1, 1] += torch.eye(16)
    vae.decoder.middle[1].proj.weight.zero_()
    for m in vae.decoder.upsamples:
        if type(m).__name__ == "Resample":
            weight = m.resample[1].weight
            for c in range(weight.shape[0]):
                weight[c, c] += torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]) / 16
            if m.mode == "upsample3d":
                t, width = m.time_conv.weight, m.time_conv.weight.shape[1]
                t.mul_(0.3)
                for half in (0, 1):
                    t[half * width : (half + 1) * width, :, 2, 0, 0] += torch.eye(width)
        elif type(m).__name__ == "ResidualBlock" and not isinstance(m.shortcut, nn.Identity):
            weight = m.shortcut.weight
            weight.mul_(0.3)
            for c in range(min(weight.shape[:2])):
                weight[c, c] += 1.0


def decode(vae: nn.Module, z: Tensor) -> Tensor:
    """All frames at once, differentiable; equal to the stock's chunked `decode`. z [B, 16, T, h, w] normalised."""
    def conv(m: nn.Module, x: Tensor) -> Tensor:
        if m.weight.shape[2] == 1:
            return F.conv3d(x, m.weight, m.bias)
        side = m.padding[1]
        return F.conv3d(F.pad(x, (side,) * 4 + (2, 0)), m.weight, m.bias)

    def norm(m: nn.Module, x: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-12) * m.gamma.to(x.dtype)

    def residual(m: nn.Module, x: Tensor) -> Tensor:
        h = conv(m.residual[2], F.silu(norm(m.residual[0], x)))
        h = conv(m.residual[6], F.silu(norm(m.residual[3], h)))
        return h + (x if isinstance(m.shortcut, nn.Identity) else conv(m.shortcut, x))

    def enlarge(m: nn.Module, x: Tensor) -> Tensor:
        b, c, t, h, w = x.shape
        if m.mode == "upsample3d" and t > 1:
            y = F.conv3d(F.pad(x[:, :, 1:], (0, 0, 0, 0, 2, 0)), m.time_conv.weight, m.time_conv.bias)
            y = y.reshape(b, 2, c, t - 1, h, w).transpose(1, 2).transpose(2, 3).reshape(b, c, 2 * (t - 1), h, w)
            x = torch.cat([x[:, :, :1], y], 2)
        t = x.shape[2]
        y = m.resample(x.transpose(1, 2).reshape(b * t, c, h, w))
        return y.reshape(b, t, *y.shape[1:]).transpose(1, 2)

    decoder = vae.decoder
    x = conv(decoder.conv1, conv(vae.conv2, z))
    x = residual(decoder.middle[2], residual(decoder.middle[0], x))  # the attention between stays the identity
    for m in decoder.upsamples:
        x = residual(m, x) if type(m).__name__ == "ResidualBlock" else enlarge(m, x)
    return conv(decoder.head[2], F.silu(norm(decoder.head[0], x)))


class KernelMuon(torch.optim.Optimizer):
    """Momentum orthogonalised over (out, in x taps), for convolution kernels (Jordan et al. 2024)."""

    def __init__(self, parameters: list[nn.Parameter], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.lerp_(p.grad, 0.1)
                x = p.grad.lerp(momentum, 0.9).reshape(p.shape[0], -1)
                tall = x.shape[0] > x.shape[1]
                x = x.T if tall else x
                x = x / (x.norm() + 1e-9)
                for _ in range(5):
                    a = x @ x.T
                    x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
                p.add_((x.T if tall else x).reshape(p.shape), alpha=-group["lr"] * 0.2 * max(x.shape) ** 0.5)


def batch(rng: random.Random, count: int, side: int) -> tuple[Tensor, Tensor]:
    """Random crops around objects: latents [count, 16, 3, side/8, side/8] and frames [count, 3, 9, side, side]."""
    z, x = [], []
    for _ in range(count):
        scene = world.random_scene(rng, held=None, jitter=8)
        video = world.render(scene)[0] * 2 - 1
        near = rng.random() < 0.85
        thing = rng.choice(scene.things)
        corner = []
        for centre in (thing.y, thing.x):
            at = centre - side / 2 + rng.uniform(-side / 2, side / 2) if near else rng.uniform(0, world.SIDE - side)
            corner.append(8 * round(min(max(at, 0), world.SIDE - side) / 8))
        crop = video[:, :, corner[0] : corner[0] + side, corner[1] : corner[1] + side]
        x.append(crop)
        z.append(latents.normalised(crop[None])[0])
    return torch.stack(z), torch.stack(x)


def export(vae: nn.Module) -> dict[str, Tensor]:
    """Half-precision weights for the host, whose Wan latents are (ours * std + mean)."""
    import comfy.latent_formats
    wan = comfy.latent_formats.Wan21()
    mean, std = wan.latents_mean.flatten(), wan.latents_std.flatten()
    out = {k: v.detach().clone().float() for k, v in vae.state_dict().items()}
    out["conv1.weight"][:16] *= std.view(-1, 1, 1, 1, 1)
    out["conv1.bias"][:16] = out["conv1.bias"][:16] * std + mean
    mix = out["conv2.weight"].clone()
    out["conv2.weight"] = mix / std.view(1, -1, 1, 1, 1)
    out["conv2.bias"] = out["conv2.bias"] - mix[:, :, 0, 0, 0] @ (mean / std)
    return {k: v.half().contiguous() for k, v in out.items()}


def imported(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `export`, for what decodes."""
    import comfy.latent_formats
    wan = comfy.latent_formats.Wan21()
    mean, std = wan.latents_mean.flatten(), wan.latents_std.flatten()
    out = {k: v.float() for k, v in weights.items()}
    out["conv2.bias"] = out["conv2.bias"] + out["conv2.weight"][:, :, 0, 0, 0] @ mean
    out["conv2.weight"] = out["conv2.weight"] * std.view(1, -1, 1, 1, 1)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--comfy", type=Path, required=True, help="the host's folder")
    parser.add_argument("--out", type=Path, required=True, help="training weights; FILE.host.safetensors is for the host")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--until", type=int, help="stop after this many steps of the schedule")
    parser.add_argument("--init", type=Path)
    parser.add_argument("--rate", type=float, default=3e-3, help="learning rate of biases and norms (AdamW)")
    parser.add_argument("--muon", type=float, default=6e-3, help="learning rate of kernels")
    parser.add_argument("--noise", type=float, default=0.06, help="noise added to latents while training")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    from safetensors.torch import load_file, save_file
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    vae = stock_vae(args.comfy)
    if args.init:
        vae.load_state_dict(load_file(args.init))
    else:
        start_decoder(vae)
    write_encoder(vae)
    parameters = [p for n, p in vae.decoder.named_parameters() if "middle.1" not in n] + list(vae.conv2.parameters())
    kernels = [p for p in parameters if p.ndim >= 4]
    optimisers: list[torch.optim.Optimizer] = [
        KernelMuon(kernels, lr=args.muon),
        torch.optim.AdamW([p for p in parameters if p.ndim < 4], lr=args.rate, betas=(0.9, 0.98), weight_decay=0.0)]
    full = [group["lr"] for o in optimisers for group in o.param_groups]
    draw = torch.compile(lambda z: decode(vae, z), dynamic=False)
    began, log = time.time(), []
    for step in range(min(args.steps, args.until or args.steps)):
        share = step / args.steps
        rate = min(1, (step + 1) / 50) * (1 if share < 0.3 else max(0.01, (1 - share) / 0.7))
        for group, most in zip([g for o in optimisers for g in o.param_groups], full, strict=False):
            group["lr"] = rate * most
        z, x = batch(rng, 6, 64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = draw(z + args.noise * torch.rand(len(z), 1, 1, 1, 1) * torch.randn_like(z))
        error = y.float() - x
        edge = (error[..., 1:] - error[..., :-1]).abs().mean() + (error[..., 1:, :] - error[..., :-1, :]).abs().mean()
        loss = error.abs().mean() + 0.5 * edge + 0.5 * error.square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 0.5)
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        log.append(error.square().mean().item() / 4)
        if (step + 1) % 50 == 0:
            psnr = -10 * torch.tensor(log[-50:]).mean().log10().item()
            print(f"{step + 1}/{args.steps} {time.time() - began:.0f}s  psnr {psnr:.2f}", flush=True)
        if (step + 1) % 200 == 0 or step + 1 in (args.steps, args.until):
            save_file({k: v.contiguous() for k, v in vae.state_dict().items()}, args.out)
            save_file(export(vae), args.out.with_suffix(".host.safetensors"))


if __name__ == "__main__":
    main()
