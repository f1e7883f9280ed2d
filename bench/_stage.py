"""The demo model in this process, through the host's own samplers: renders, histories and reuse for measurements.

Every render here passes the same door as a creator's (`carnator_core.hosts.comfy`), without a server and without a bank
on disk, so that thousands fit into a measurement. Seconds are the host's sampling call, conditioning made before.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import ROOT

LATENT = (1, 16, 3, 16, 16)  # of the Wan2.1 stage; every stage has its own as `latent`


def host() -> Path:
    """Put ComfyUI's modules in reach, on the CPU, once. Raises SystemExit when there is none."""
    from carnator.demo.setup import find

    installed = find()
    if installed is None:
        raise SystemExit("carnator: no ComfyUI found; start this with python3 run.py bench NAME")
    # The checkout's root would shadow the host's nodes.py.
    sys.path[:] = [str(installed.comfy), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
    if importlib.util.find_spec("comfy") is None:
        raise SystemExit(f"carnator: {installed.comfy} holds no ComfyUI")
    device = [] if torch.cuda.is_available() else ["--cpu", "--use-pytorch-cross-attention"]  # the fastest there
    given, sys.argv = sys.argv, ["main.py", *device, "--disable-api-nodes"]
    try:
        import comfy.options

        comfy.options.enable_args_parsing()
        import comfy.cli_args  # noqa: F401 (reads the arguments once, here)
        import comfy.model_management  # noqa: F401
    finally:
        sys.argv = given
    return installed.comfy


def machine() -> str:
    """The processor and torch, for the head of a table."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ", no GPU"
    return f"{name}, {os.cpu_count()} cores{gpu}, torch {torch.__version__}"


def family_option(parser: argparse.ArgumentParser) -> None:
    """--family: which demo model."""
    parser.add_argument("--family", choices=("wan", "wan22", "ltx"), default="wan",
                        help="the demo model: Wan2.1 (default), Wan2.2 5B or LTX-Video")


class Kept(torch.nn.Module):
    """A layer that computes once for an input it has seen: the last ones, known by what the demo's texts fill, or, where
    that is not said, by their memory (a host may hand the same one on under another view; it is kept from reuse here)."""

    def __init__(self, layer: torch.nn.Module, filled: int | None, most: int = 4) -> None:
        super().__init__()
        self.layer, self.filled, self.most = layer, filled, most
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        for given, out in self.seen:
            if self._same(given, x):
                return out
        out = self.layer(x)
        kept = x if self.filled is None else x[:, : self.filled].clone()
        self.seen = [*self.seen[-self.most + 1 :], (kept, out)]
        return out

    def _same(self, given: Tensor, x: Tensor) -> bool:
        if self.filled is None:
            return (given.data_ptr(), given.shape, given.stride()) == (x.data_ptr(), x.shape, x.stride())
        return given.shape[0] == x.shape[0] and torch.equal(given[:, : self.filled], x[:, : self.filled])


def _keep_text(transformer: Any) -> None:
    """The text embedding, and each block's keys and values of the text, computed once for each text."""
    from carnator.demo.words import SLOTS

    ltx = hasattr(transformer, "caption_projection")
    text = "caption_projection" if ltx else "text_embedding"
    setattr(transformer, text, Kept(getattr(transformer, text), SLOTS))  # the slots after these are empty
    for block in transformer.transformer_blocks if ltx else transformer.blocks:
        attention = block.attn2 if ltx else block.cross_attn
        for name in ("to_k", "to_v") if ltx else "kv":
            setattr(attention, name, Kept(getattr(attention, name), None))


@dataclass
class Rendered:
    """One render: latent [C, T, H, W] as the model knows it, the run behind it (None without ours), seconds of the call."""

    latent: Tensor
    run: Any
    seconds: float


class Stage:
    """A demo model, its VAE and its text encoder. steps, cfg, sampler, shift: of every render made here.

    family: "wan" (Wan2.1), "wan22" (Wan2.2 5B) or "ltx" (LTX-Video), of `demo/families.py`; all on the same noise levels.

    halved: matrix products in bfloat16 and the text's layers computed once a prompt, not once a step: about three times as
    fast, for all methods alike. (Text is a large share of this small model's work, and a small one of a real model's.)
    half_vae: the VAE in bfloat16, in which real ones run: three times as fast, and 0.1 % off on average.
    """

    def __init__(self, steps: int = 50, cfg: float = 5.0, sampler: str = "euler", shift: float = 3.0,
                 halved: bool = False, half_vae: bool = False, family: str = "wan") -> None:
        host()
        import comfy.sd
        from carnator.demo.families import FAMILIES
        from carnator.nodes.demo_vae import demo_vae

        if halved:
            torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        self.steps, self.cfg, self.sampler = steps, cfg, sampler
        self.family = FAMILIES[family]
        self.latent = (1, *self.family.latent)
        model = comfy.sd.load_diffusion_model(str(ROOT / "demo" / "weights" / self.family.weights))
        self.model = self._shifted(model, shift)
        if halved:
            _keep_text(model.model.diffusion_model)
        self.vae = demo_vae(self.family, torch.bfloat16 if half_vae else None)
        from carnator.nodes.demo_clip import CarnatorDemoText

        self.clip = CarnatorDemoText.execute().result[0]
        self.text = lru_cache(maxsize=16)(self._text)  # 8 MB each

    def _shifted(self, model: Any, shift: float) -> Any:
        """The model on the noise levels of this shift, by the host's node for its family."""
        if self.family.name == "ltx":
            from comfy_extras.nodes_lt import ModelSamplingLTXV

            return ModelSamplingLTXV.execute(model, math.log(shift), math.log(shift), None).result[0]
        from comfy_extras.nodes_model_advanced import ModelSamplingSD3

        return ModelSamplingSD3().patch(model, shift)[0]

    @property
    def patch(self) -> tuple[int, int, int]:
        """Latent cells of a token."""
        time, height, width = getattr(self.model.model.diffusion_model, "patch_size", (1, 1, 1))
        return time, height, width

    @property
    def layers(self) -> int:
        """Blocks of the transformer."""
        return self.family.shape.layers

    def _text(self, prompt: str) -> Any:
        from carnator.nodes.text_encode import CarnatorTextEncode

        return CarnatorTextEncode.execute(self.clip, prompt).result[0]

    def sigmas(self, steps: int | None = None) -> Tensor:
        """The `simple` schedule, [steps + 1]."""
        import comfy.samplers

        return comfy.samplers.calculate_sigmas(self.model.get_model_object("model_sampling"), "simple", steps or self.steps)

    def noise(self, seed: int) -> Tensor:
        """The host's starting noise, [1, C, T, H, W]."""
        import comfy.sample

        return comfy.sample.prepare_noise(torch.zeros(self.latent), seed)

    @torch.inference_mode()
    def sample(self, model: Any, prompt: str, seed: int, steps: int | None = None) -> tuple[Tensor, float]:
        """The host's guider on `model`: latent [C, T, H, W] as the model knows it (not yet the VAE's scale), seconds."""
        import comfy.samplers

        guider = comfy.samplers.CFGGuider(model)
        guider.set_conds(self.text(prompt), self.text(""))
        guider.set_cfg(self.cfg)
        began = time.perf_counter()
        out = guider.sample(self.noise(seed), torch.zeros(self.latent), comfy.samplers.sampler_object(self.sampler),
                            self.sigmas(steps), disable_pbar=True, seed=seed)
        seconds = time.perf_counter() - began
        return self.model.model.process_latent_in(out)[0], seconds

    def render(self, prompt: str, seed: int, settings: Any = None, preset: Any = None, *, model: Any = None,
               bank: Any = None, steps: int | None = None, **attachment: Any) -> Rendered:
        """Through the pack, without a bank unless one is given. settings None: stock, without the pack.
        preset: (probe, verdict) to go on from.
        attachment: further fields of `hosts.comfy.Attachment`; model: another patcher than the stage's (with neighbours)."""
        from carnator.carnator_core.hosts import comfy as door

        base = model or self.model
        if settings is None:
            latent, seconds = self.sample(base, prompt, seed, steps)
            return Rendered(latent, None, seconds)
        attached = door.Attachment(settings, bank, preset=preset, keeps=True, **attachment)
        latent, seconds = self.sample(door.attach(base, attached), prompt, seed, steps)
        return Rendered(latent, attached.last, seconds)

    def history(self, rendered: Rendered, seed: int) -> Any:
        """The history that a dense render leaves, as the bank would be given it."""
        from carnator.carnator_core.hosts import storing

        with torch.inference_mode():
            return storing.history_of(rendered.run, self.model, None, seed, rendered.seconds)

    def signature(self, probe: Any) -> Any:
        """The Early Signature of a probe, coloured by the latent format's RGB factors."""
        from carnator.carnator_core.hosts.pictures import tail_frame
        from carnator.carnator_core.signature import signature

        last = probe.trajectory.predictions[-1][0]
        return signature(probe.regions, tail_frame(self.model.model, last), last, probe.patch)

    @torch.inference_mode()
    def video(self, latent: Tensor) -> Tensor:
        """Decoded by the demo VAE, in the size that the scorer reads: [3, 9, 128, 128] in 0..1."""
        images = self.vae.decode(self.model.model.process_latent_out(latent[None].float()))
        clip = images.reshape(-1, *images.shape[-3:]).permute(3, 0, 1, 2).float().clamp(0, 1)
        return self.family.reduced(clip[None])[0]


def settings(**values: Any) -> Any:
    """The pack's Settings, recording off; `values` replace defaults."""
    from carnator.carnator_core.request import Settings

    return replace(Settings(record=False), **values)


def psnr(a: Tensor, b: Tensor, peak: float | None = None) -> float:
    """Decibels between two tensors of one shape; peak: the value range (None: of `b`). inf when they are equal."""
    error = float((a.float() - b.float()).square().mean())
    span = float(b.max() - b.min()) if peak is None else peak
    return float("inf") if error == 0 else 10 * float(torch.log10(torch.tensor(span**2 / error)))


def alignment(video: Tensor, prompt: str) -> tuple[float, dict[str, bool]]:
    """Share of what the prompt states that the clip shows, and each statement (noun, colour, size, count, place, motion)."""
    from carnator.demo import scorer

    found = scorer.agrees(scorer.score(video), prompt)
    return sum(found.values()) / len(found), found


Progress = Callable[[str], None]


def progress(total: int, every: float = 20.0) -> Progress:
    """A function that counts calls and prints a line at most every so many seconds."""
    state = {"done": 0, "began": time.perf_counter(), "last": 0.0}

    def step(what: str) -> None:
        state["done"] += 1
        now = time.perf_counter() - state["began"]
        if now - state["last"] >= every:
            state["last"] = now
            print(f"  {what}: {int(state['done'])} of {total}, {now:.0f} s", file=sys.stderr, flush=True)
    return step
