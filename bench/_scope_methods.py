"""One pair of prompts that differ in one thing, rendered by every method, and what each render cost and shows."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from carnator.carnator_core.systems import system
from torch import Tensor

from . import _workload as work
from ._stage import Stage, alignment, psnr, settings

ANYTHING = 1e9  # strictness at which the gate accepts whatever corresponds: this bench measures scope, not validity
OUR_MODES = ("latent", "attention", "joint", "ours")
CACHES = ("easycache", "lazycache")
NAMES = ("dense", "nirvana", "chorus", "chorus2", "latent", "attention", "joint", "ours", *CACHES)


@dataclass(frozen=True)
class Pair:
    """History and target prompt; kind: what changes; seed: of both, so that they share the noise."""

    kind: str
    history: str
    target: str
    seed: int


def pairs(count: int, seed: int) -> list[Pair]:
    """Kinds in turn. Deterministic in `seed`; the method was tuned on seed 777, which is not to be used here."""
    rng = random.Random(seed)
    out: list[Pair] = []
    for i in range(count):
        kind, scene = work.KINDS[i % len(work.KINDS)], work.first_scene(rng)
        while kind not in work.kinds_of(scene):
            scene = work.first_scene(rng)
        target = work.prompt_of(work.changed(scene, kind, rng))
        out.append(Pair(kind, work.prompt_of(scene), target, rng.randrange(2**31)))
    return out


@dataclass
class Shown:
    """One render of a target: seconds end to end (decoding included) and of the transformer, evaluations (of two branches),
    share of a dense render's token-layers computed, density of attention, and the finished latent and video."""

    name: str
    e2e: float
    dit: float
    evals: float
    tokens: float
    density: float
    latent: Tensor
    video: Tensor
    hit: bool = True
    facts: dict[str, Any] = field(default_factory=dict)


class Meter:
    """Counts the evaluations and seconds of a transformer: processor seconds of this process on a CPU, so that others on the
    machine disturb little; of the device on a GPU. Attached while the context lasts."""

    def __init__(self, model: Any, device: str = "cpu") -> None:
        from ._shapes import clock

        self.now, self.model = clock(device), model.model.diffusion_model
        self.evals = self.seconds = 0.0

    @contextmanager
    def attached(self) -> Iterator[Meter]:
        name = "forward_orig" if hasattr(self.model, "forward_orig") else "_forward"  # Wan's, LTX-Video's
        inner: Callable[..., Any] = getattr(self.model, name)

        def counted(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            began = self.now()
            out = inner(x, *args, **kwargs)
            self.seconds += self.now() - began
            self.evals += x.shape[0] / 2
            return out
        setattr(self.model, name, counted)
        try:
            yield self
        finally:
            delattr(self.model, name)

    def take(self) -> tuple[float, float]:
        """Evaluations and seconds since the last time."""
        found = self.evals, self.seconds
        self.evals = self.seconds = 0.0
        return found


class Studio:
    """Renders pairs by every method: through the pack with a bank that holds the history, or with the host's own nodes."""

    def __init__(self, stage: Stage, meter: Meter, folder: Path) -> None:
        self.stage, self.meter, self.folder = stage, meter, folder

    def bank_of(self, pair: Pair) -> tuple[Any, Any]:
        """A bank with the pair's history in it, rendered as a creator's first request, and that render."""
        from carnator.carnator_core.bank import Bank
        from carnator.carnator_core.hosts import storing

        bank = Bank.open(self.folder / str(pair.seed), 10**9, reserve_bytes=0)
        rendered = self.stage.render(pair.history, pair.seed, settings(record=True), bank=bank)
        storing.settle()
        self.meter.take()
        return bank, rendered

    def show(self, name: str, pair: Pair, bank: Any, **options: Any) -> Shown:
        """One render by a method of NAMES, or "steps" (steps=n), "alone" (miss_tolerance=t: forecasting without history);
        options: further Settings of ours, or the arguments of the host's cache node."""
        stage, began = self.stage, self.meter.now()
        run: Any = None
        if name in ("dense", "steps"):
            latent, _ = stage.sample(stage.model, pair.target, pair.seed, options.get("steps"))
        elif name in CACHES:
            latent, _ = stage.sample(cached(stage.model, name, **options), pair.target, pair.seed)
        elif name == "alone":
            rendered = stage.render(pair.target, pair.seed, settings(**options))
            latent, run = rendered.latent, rendered.run
        else:
            rendered = self._reused(name, pair, bank, options)
            latent, run = rendered.latent, rendered.run
        video = stage.video(latent)
        seconds = self.meter.now() - began
        evals, dit = self.meter.take()
        return Shown(name, seconds, dit, evals, self._tokens(run, evals), _density(run), latent, video, _hit(name, run))

    def _reused(self, name: str, pair: Pair, bank: Any, options: dict[str, Any]) -> Any:
        if name in OUR_MODES:
            return self.stage.render(pair.target, pair.seed, settings(mode=name, strictness=ANYTHING, **options), bank=bank)
        chosen = settings(strictness=ANYTHING, **system(name, self.similarity(pair), self.stage.steps), **options)
        if name == "nirvana":  # it looks at nothing before it resumes: no probe
            return self.stage.render(pair.target, pair.seed, chosen, self._unseen(pair, bank))
        return self.stage.render(pair.target, pair.seed, chosen, bank=bank)

    def similarity(self, pair: Pair) -> float:
        """Cosine of the two prompts' pooled conditionings, as recall has it."""
        from carnator.carnator_core.recall import text_vector

        ours, theirs = (text_vector(self.stage.text(p)[0][0].float()) for p in (pair.target, pair.history))
        return float(ours @ theirs)

    def _unseen(self, pair: Pair, bank: Any) -> tuple[Any, Any]:
        from carnator.carnator_core.outcome import Probe, Verdict
        from carnator.carnator_core.record import Trajectory

        (card,) = bank.entries()
        history = bank.load(card.id)
        probe = Probe(history.noise, Trajectory(), {}, {}, (3, 8, 8), self.stage.patch)
        return probe, Verdict(True, "similar text", history, card.id)

    def _tokens(self, run: Any, evals: float) -> float:
        """Share of the dense render's token-layers that was computed."""
        spared = 0.0
        if run is not None and run.verdict is not None and run.verdict.regions is not None and run.counts.restricted:
            first, last = run.settings.window
            spared = run.counts.restricted * (last - first) * (1 - run.verdict.regions.share())
        return (evals - spared) / self.stage.steps


def _density(run: Any) -> float:
    found = run.counts.density if run is not None else []
    return sum(found) / len(found) if found else 1.0


def _hit(name: str, run: Any) -> bool:
    return name in ("dense", "steps", "alone", *CACHES) or (run is not None and run.verdict is not None and run.verdict.accepted)


def cached(model: Any, name: str, reuse_threshold: float = 0.2, start_percent: float = 0.15, end_percent: float = 0.95) -> Any:
    """The model with the host's own step cache in its line, at the node's defaults."""
    from comfy_extras.nodes_easycache import EasyCacheNode, LazyCacheNode

    node = EasyCacheNode if name == "easycache" else LazyCacheNode
    return node.execute(model, reuse_threshold, start_percent, end_percent, False).result[0]


def ssim(a: Tensor, b: Tensor) -> float:
    """Mean structural similarity of two videos [3, F, H, W] in 0..1, frame by frame, windows of 11 (Wang et al. 2004)."""
    from kornia.metrics import ssim as maps

    return float(maps(a.transpose(0, 1), b.transpose(0, 1), 11).mean())


def quality(shown: Shown, dense: Shown, prompt: str) -> dict[str, float]:
    """alignment (share of the prompt's statements the clip shows), and likeness to the dense render of the same noise: PSNR
    (of the decoded video, values 0..1; at most 99 dB) and SSIM, and PSNR of the latent (range of the dense one)."""
    return {"alignment": alignment(shown.video, prompt)[0], "psnr": min(99.0, psnr(shown.video, dense.video, 1.0)),
            "ssim": ssim(shown.video, dense.video), "psnr_latent": min(99.0, psnr(shown.latent, dense.latent))}


def quiet() -> None:
    """The host's and the pack's own lines are no part of a table."""
    import logging

    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
