"""Requests against remembered renders in the demo world: what each rule would take, and whether that was right.

A `Lab` renders what is asked for and nothing more: of a history only the probe, until it is accepted somewhere. Two
renders are compared by what the clip shows (the scorer's reading of the prompt's statements) and by how well its
outlines are drawn; `is_safe` is the paper's label y (appendix F), against the dense render of the same prompt from the
noise that the reuse starts from.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import torch
from carnator.carnator_core import certify, change, gate, recall
from carnator.carnator_core.change import ChangeScale
from carnator.carnator_core.decide import reuse_scope
from carnator.carnator_core.gate import Decision, Thresholds
from carnator.carnator_core.outcome import Probe, Verdict
from carnator.carnator_core.prompt import Prompt, parse
from carnator.carnator_core.regions import latent_weights, token_weights
from carnator.carnator_core.signature import Signature
from carnator.demo import scorer
from torch import Tensor

from . import _stage as stage
from ._workload import Ask, Workload

RULES = ("text", "paper", "change_map", "ours")
REUSE = {"text": "joint", "paper": "joint", "change_map": "ours", "ours": "ours"}  # each rule with the reuse it was made for
NAMES = {"text": (), "paper": ("size", "shape", "colour"), "change_map": ("change",),
         "ours": ("size", "shape", "colour", "motion", "change", "latent")}
TOLERANCE = {"alignment": 0.0, "quality": 0.1}  # Delta_m
TOP = 10
OPEN = Thresholds(*[float("inf")] * 6)
cached_parse = lru_cache(maxsize=8192)(parse)


@dataclass
class Seen:
    """What a probe showed: its Early Signature, its last prediction [C, T, H, W] and that one's sigma."""

    signature: Signature
    last: Tensor
    sigma: float


@dataclass
class Target:
    """A request rendered densely from one noise."""

    rendered: stage.Rendered
    probe: Probe
    seen: Seen
    quality: dict[str, float]


@dataclass(frozen=True)
class Choice:
    """A candidate under a rule: the history's index, which noise the render starts from, the distances that count."""

    history: int
    seed: int
    distances: dict[str, float]
    decision: Decision

    def within(self, limits: Thresholds) -> bool:
        """Accepted by the gate, whatever the thresholds, and every counted distance under its threshold."""
        return self.decision.accepted and all(v <= getattr(limits, n) for n, v in self.distances.items())


def quality_of(video: Tensor, prompt: str) -> dict[str, float]:
    """Of a decoded clip [3, 9, 128, 128] in 0..1, as a creator sees it. alignment: share of the prompt's statements shown;
    quality: mean overlap of the outlines with their silhouettes."""
    clip = scorer.score(video)
    agreed = scorer.agrees(clip, prompt)
    drawn = [o.confidence for o in clip.objects]
    return {"alignment": sum(agreed.values()) / len(agreed), "quality": sum(drawn) / len(drawn) if drawn else 0.0}


@dataclass
class Lab:
    """One process's renders. probe: length of the early probe; everything else is the stage's."""

    theatre: stage.Stage
    workload: Workload
    probe: int = 4
    scale: ChangeScale = field(default_factory=ChangeScale)
    _seen: dict[tuple[str, int], Seen] = field(default_factory=dict)
    _targets: dict[tuple[str, int], Target] = field(default_factory=dict)
    _histories: dict[int, Any] = field(default_factory=dict)

    def vector(self, prompt: str) -> Tensor:
        """Text vector of a prompt, [D] unit float32."""
        from carnator.demo import words

        return recall.text_vector(words.encode([(w, 1.0) for w in words.split(prompt)]))

    @cached_property
    def vectors(self) -> Tensor:
        """Text vectors of all histories, [M, D]."""
        return torch.stack([self.vector(p.prompt) for p in self.workload.histories])

    def recalled(self, ask: Ask) -> list[tuple[int, float]]:
        """The top K histories by text similarity, in that order."""
        return recall.top_k(self.vector(ask.prompt), self.vectors, TOP)

    def shared_first(self, ask: Ask) -> list[tuple[int, float]]:
        """The recalled histories with those of the request's own noise in front, up to K of these however similar the
        others are."""
        own = [i for i, p in enumerate(self.workload.histories) if p.seed == ask.seed]
        near = recall.top_k(self.vector(ask.prompt), self.vectors[own], TOP) if own else []
        first = [(own[i], s) for i, s in near]
        return first + [(i, s) for i, s in self.recalled(ask) if i not in own]

    def history_seen(self, index: int) -> Seen:
        """The probe of a remembered request; its render is not finished for it."""
        past = self.workload.histories[index]
        key = (past.prompt, past.seed)
        if key not in self._seen:
            run = self.theatre.render(past.prompt, past.seed, stage.settings(probe=self.probe), stop_after_probe=True).run
            self._seen[key] = self._see(run.finish_probe())
        return self._seen[key]

    def history(self, index: int) -> Any:
        """The whole remembered render."""
        past = self.workload.histories[index]
        if index not in self._histories:
            rendered = self.theatre.render(past.prompt, past.seed, stage.settings(probe=self.probe))
            self._histories[index] = self.theatre.history(rendered, past.seed)
        return self._histories[index]

    def target(self, prompt: str, seed: int) -> Target:
        """The dense render of a prompt from one seed's noise."""
        if (prompt, seed) not in self._targets:
            rendered = self.theatre.render(prompt, seed, stage.settings(probe=self.probe))
            probe = rendered.run.finish_probe()
            self._targets[(prompt, seed)] = Target(rendered, probe, self._see(probe),
                                                  quality_of(self.theatre.video(rendered.latent), prompt))
        return self._targets[(prompt, seed)]

    def _see(self, probe: Probe) -> Seen:
        return Seen(self.theatre.signature(probe), probe.trajectory.predictions[-1][0], probe.trajectory.sigmas[-1])

    def forget(self) -> None:
        """Let the last request's renders go; those of histories are kept."""
        self._targets.clear()

    def choices(self, ask: Ask, rule: str) -> Iterator[Choice]:
        """Candidates that the text admits under a rule, in its order, with the distances the rule counts; each is measured
        when it is asked for."""
        adopting = rule in ("change_map", "ours")
        order = self.shared_first(ask) if adopting else self.recalled(ask)
        start = ask.seed
        if adopting and order and all(self.workload.histories[i].seed != ask.seed for i, _ in order):
            start = self.workload.histories[order[0][0]].seed  # setting "any": the best candidate's noise
        target: Prompt = cached_parse(ask.prompt)
        for index, _ in order:
            past = self.workload.histories[index]
            if rule == "change_map" and past.seed != start:
                continue
            outcome = self._admitted(target, cached_parse(past.prompt), rule)
            if outcome is None:
                continue
            yield self._choice(rule, ask, index, start, outcome)

    @staticmethod
    def _admitted(target: Prompt, past: Prompt, rule: str) -> recall.Correspondence | None:
        """The text stage: ours as shipped, the paper's entity sets for text and paper, none for the change map alone."""
        if rule == "ours":
            return recall.verdict(target, past).correspondence
        outcome = recall.correspond(target, past)
        if not isinstance(outcome, recall.Refusal):
            return outcome
        return recall.Correspondence((), None, ()) if rule == "change_map" else None

    def _choice(self, rule: str, ask: Ask, index: int, start: int, outcome: recall.Correspondence) -> Choice:
        ours, theirs = self.target(ask.prompt, start), self.history_seen(index)
        shares = self.workload.histories[index].seed == start
        share = None
        if shares and rule in ("change_map", "ours"):
            share = change.predicted_share(change.change_map(ours.seen.last, theirs.last, ours.probe.patch),
                                           self.scale.at(ours.seen.sigma))
        decision = gate.judge(ours.seen.signature, theirs.signature, outcome, OPEN, share, str(index), own_steps=rule == "ours")
        if rule == "ours":
            return Choice(index, start, certify.counted(decision), decision)
        # The paper knows no asked-for differences: what it measures counts, and nothing else can refuse.
        worst: dict[str, float] = {}
        for d in decision.distances:
            if d.name in NAMES[rule]:
                worst[d.name] = max(d.value, worst.get(d.name, 0.0))
        accepted = Decision(True, "", decision.distances, decision.history_id, (), decision.recompute)
        return Choice(index, start, worst, accepted)

    def reuse(self, ask: Ask, choice: Choice, mode: str) -> dict[str, Any]:
        """Render with an accepted history in one mode: its quality, whether it is safe, and its cost against dense.

        cost: seconds with the probe's steps over dense seconds; evals: model calls, the probe's included.
        """
        history, target = self.history(choice.history), self.target(ask.prompt, choice.seed)
        settings = stage.settings(probe=self.probe, mode=mode)
        changed = None
        if history.noise.equal(target.probe.noise):
            theirs = self.history_seen(choice.history)
            energy = change.change_map(target.seen.last, theirs.last, target.probe.patch)
            changed = change.change_region(energy, self.scale.at(target.seen.sigma))
        scope = reuse_scope(choice.decision.recompute, target.seen.signature, history, changed, target.probe, settings)
        frames, height, width = history.noise.shape[1:]
        weights = None if scope is None else latent_weights(token_weights(scope), (frames, height, width), target.probe.patch)
        verdict = Verdict(True, "", history, str(choice.history), scope, weights)
        past = self.workload.histories[choice.history].seed
        made = self.theatre.render(ask.prompt, choice.seed, settings, (target.probe, verdict))
        # A history of another noise makes the render start from that noise: that is what dense has to start from, too.
        dense = target if past == choice.seed else self.target(ask.prompt, past)
        quality = quality_of(self.theatre.video(made.latent), ask.prompt)
        calls = made.run.counts.computed + min(self.probe, self.theatre.steps)
        cost = made.seconds / target.rendered.seconds + self.probe / self.theatre.steps
        return {"safe": certify.is_safe(quality, dense.quality, TOLERANCE), **quality, "evals": calls, "cost": cost,
                "psnr": stage.psnr(made.latent, dense.rendered.latent)}
