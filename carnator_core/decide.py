"""From the bank to a verdict: text-level recall, then the gate over each candidate in recall order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from . import change, gate, recall
from .bank.errors import BankDamaged
from .change import ChangeScale
from .gate import Thresholds
from .history import REPEATS, Identity, Remembered
from .outcome import Look, Probe, Verdict
from .prompt import parse
from .regions import Regions, evidence_union, latent_weights, regions, token_weights
from .request import Request, Settings
from .signature import Signature

log = logging.getLogger("carnator")
NOTHING_NAMED = recall.Correspondence((), None, (), known=False)  # no text to compare: the change map alone decides
REGIONAL = ("joint", "latent")  # modes that keep the history outside a region, and so need one
ALIKE = 0.5  # cosine similarity of pooled conditionings below which nothing is worth a look


class Card(Protocol):
    """What recall sees of a history without loading it (the bank's EntryCard)."""

    @property
    def id(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def identity(self) -> Identity: ...
    @property
    def noise_digest(self) -> str: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...


class Recall(Protocol):
    """The lookups of a bank that recall needs (see bank.Bank). They raise BankUnreadable."""

    def nearest(self, text_vector: Tensor, identity_digest: str, k: int = 10,
                noise_digest: str | None = None) -> Sequence[tuple[Card, float]]: ...
    def identities(self) -> Sequence[Identity]: ...


@dataclass(frozen=True)
class Candidate:
    """A recalled history: its card, text similarity, how its entities correspond, and what the text stage says of it."""

    card: Card
    similarity: float
    correspondence: recall.Correspondence
    shares_noise: bool
    text: str = ""


def candidates(request: Request, bank: Recall, noise_digest: str, settings: Settings,
               k: int = 10) -> tuple[list[Candidate], str]:
    """The K histories of the bank most like the request, those that share its noise first, each K at most; or none and
    the reason in words. Raises BankUnreadable: a bank that cannot be read is not an empty one."""
    digest = request.identity.digest()
    sharing = list(bank.nearest(request.text_vector, digest, k, noise_digest))
    known = {card.id for card, _ in sharing}
    ranked = sharing + [both for both in bank.nearest(request.text_vector, digest, k) if both[0].id not in known]
    if not ranked:
        names = sorted({", ".join(i.differs(request.identity)) for i in bank.identities() if i != request.identity}, key=len)
        if not names:
            return [], "the bank is empty: this render will be its first history"
        return [], f"no history was made with these settings; the closest differs in: {names[0]}"
    found: list[Candidate] = []
    reasons: list[str] = []
    for card, similarity in ranked:
        same = card.noise_digest == noise_digest
        encoded = request.facts.get("conditioning"), card.facts.get("conditioning")
        if not same and encoded[0] == encoded[1] is not None:
            reasons.append(f'only the seed differs from "{short(card.prompt)}", which asks for another take')
            continue
        if settings.noise == "mine" and not same:
            reasons.append(f'"{short(card.prompt)}" was rendered from another seed')
            continue
        if similarity < ALIKE:
            reasons.append(f'"{short(card.prompt)}" has little in common with this prompt ({similarity:.2f} alike, at least '
                           f'{ALIKE:.2f} asked)')
            continue
        correspondence, text = NOTHING_NAMED, "the prompt's text is not known"
        theirs = str(card.facts.get("subject") or card.prompt)
        if None not in encoded and encoded[0] != encoded[1] and _same_words(request, card, theirs):
            text = "the words are the same and what they were encoded to is not, so they do not tell what differs"
        elif request.prompt.text and card.prompt:
            said = recall.verdict(request.prompt, parse(theirs))
            if said.correspondence is None:
                reasons.append(f'"{short(card.prompt)}": {said.reason}')
                continue
            correspondence, text = said.correspondence, str(said)
        elif not same and settings.noise == "mine":
            reasons.append("without the prompt's text only renders from the same seed can be compared")
            continue
        found.append(Candidate(card, similarity, correspondence, same, text))
    if not found:
        return [], reasons[0]
    return found, ""


def _same_words(request: Request, card: Card, theirs: str) -> bool:
    """Whether a history has this request's text to the letter, and the text that stands for it (`theirs`), if any, too."""
    ours = request.facts.get("text") or request.prompt.raw
    return bool(ours) and ours == card.prompt and request.prompt.raw == theirs


def short(text: str) -> str:
    """A prompt as it fits into a sentence."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."


def is_repeat(request: Request, card: Card, noise_digest: str) -> bool:
    """Whether a history is this very render: same noise, conditioning, sampler and schedule."""
    facts = card.facts
    return (card.noise_digest == noise_digest and card.identity.digest() == request.identity.digest()
            and all(facts.get(n) == request.facts.get(n) for n in REPEATS))


def judge(request: Request, probe: Probe, found: Sequence[Candidate], load: Callable[[str], Remembered | None],
          signature: Signature, thresholds: Thresholds, scale: ChangeScale, settings: Settings,
          lost: Callable[[BankDamaged], None] = lambda error: None) -> Verdict:
    """The first compatible candidate in recall order, with its regions; or a refusal that says why the first failed.

    load(id) opens a candidate (None: it cannot be read, a miss); lost(error) is told when the one opened last turns out
    to be unreadable.
    probe's predictions belong to the noise of the first candidate (or the request's own): only candidates that share
    it have a change map.
    """
    refusals: list[str] = []
    refused: gate.Decision | None = None
    report: list[str] = []
    looks: list[Look] = []
    for candidate in found:
        history = load(candidate.card.id)
        if history is None:
            continue
        if history.stack < probe.trajectory.predictions[-1].shape[0]:
            refusals.append(f'"{short(candidate.card.prompt)}" was rendered with a sampler that keeps no unconditional '
                            "prediction, and this sampler needs one")
            continue
        share, changed = None, None
        if torch.equal(history.noise, probe.noise):
            try:
                share, changed = predicted_change(probe, history, scale)
            except BankDamaged as error:
                lost(error)
                continue
        decision = gate.judge(signature, history.signature or {}, candidate.correspondence, thresholds, share,
                              candidate.card.id, own_steps=settings.mode in ("ours", "forecast"))
        report += [f'"{short(candidate.card.prompt)}", text similarity {candidate.similarity:.2f}; {candidate.text}',
                   gate.report(decision)]
        looks.append(Look(candidate.card.prompt, history.thumbnail))
        if not decision.accepted:
            refused = refused or decision
            refusals.append(f'"{short(candidate.card.prompt)}" does not fit: {decision.reason}')
            continue
        scope = reuse_scope(decision.recompute, signature, history, changed, probe, settings)
        if scope is None and settings.mode in REGIONAL:
            refusals.append(f'"{short(candidate.card.prompt)}" does not fit: what differs reaches over the whole picture, so '
                            f"nothing of it could be kept (mode {settings.mode})")
            continue
        weights = None
        if scope is not None:
            frames, height, width = history.noise.shape[1:]
            weights = latent_weights(token_weights(scope), (frames, height, width), probe.patch)
        return Verdict(True, f'reusing "{short(candidate.card.prompt)}"; {decision.reason}', history, candidate.card.id, scope,
                       weights, similarity=candidate.similarity, report=report, decision=decision,
                       look=looks[-1])
    return Verdict(False, refusals[0] if refusals else "no remembered render could be read", report=report, decision=refused,
                   look=looks[0] if looks else None)


def predicted_change(probe: Probe, history: Remembered, scale: ChangeScale) -> tuple[float, Tensor]:
    """Predicted share of change and the change region [T, H, W], from the probe's last step; the noise is shared."""
    sigma, own = probe.trajectory.sigmas[-1], probe.trajectory.predictions[-1][0]
    past = history.past.at(sigma)[0].to(own)
    energy = change.change_map(own, past, probe.patch).cpu()
    factor = scale.at(sigma)
    return change.predicted_share(energy, factor), change.change_region(energy, factor)


def reuse_scope(recompute: Sequence[tuple[str, str]], signature: Signature, history: Remembered, changed: Tensor | None,
                probe: Probe, settings: Settings) -> Regions | None:
    """Where the target has to be computed: Evidence Regions of what differs, in the history and in the target, united
    with the change region. None: everywhere, and the history only forecasts."""
    if settings.mode not in ("ours", "joint", "latent"):
        return None
    union = evidence_union(signature, history.signature, recompute, changed if settings.mode == "ours" else None)
    if union is None and changed is not None:
        union = changed
    if union is None or not bool(union.any()):
        return None
    scope = regions(union, active_radius=settings.active, context_radius=settings.context)
    return None if bool(scope.active.all()) else scope
