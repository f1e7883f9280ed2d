"""The run that answers one sampling call: what is asked for, what is remembered of it, and how a probe is judged."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..backbones.base import token_grid
from ..bank import Bank, BankError, Loans, noise_digest
from ..bank.errors import BankDamaged
from ..decide import Candidate, candidates, is_repeat, judge
from ..gate import Thresholds
from ..history import Identity, Remembered, repeat_key
from ..observe import AttentionReader
from ..outcome import Look, Probe, Verdict
from ..passes import Restart
from ..profile import UNCERTIFIED, Profile
from ..prompt import Prompt, parse, token_slots
from ..recall import text_vector
from ..record import Trajectory, storage_dtype
from ..regions import latent_weights, regions, token_weights
from ..request import Request, Settings
from ..retrospect import FIRST_ORDER
from ..reuse import Run
from ..signature import Signature, signature
from . import relay, storing
from .attachment import Attachment
from .eligible import backbone_of
from .identity import KEY, conditioning_digest, guided, identity, sampler_name, tensor_digest
from .patching import window_maker
from .pictures import room_for, tail_frame

log = logging.getLogger("carnator")
# What an odd entry, prompt or model makes our own code raise. Never the host's interrupt, and never a lack of memory.
FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def open_run(attachment: Attachment, loans: Loans, guider: Any, noise: Tensor, sampler: Any, sigmas: Tensor) -> Run:
    """The run of one sampling call: request, recall, and what it starts from."""
    settings = attachment.settings
    patcher = guider.model_patcher
    backbone = backbone_of(patcher.model)
    assert backbone is not None
    request = _request(attachment, guider, noise, sampler, sigmas, guided(guider, sampler))
    latent = noise.shape[2:]
    grid = token_grid(latent, backbone.patch)
    found: list[Candidate] = []
    reason = "no bank is connected"
    repeat: str = ""
    digest = noise_digest(request.noise)
    if attachment.preset is None and attachment.bank is not None:
        storing.settle()
        try:
            found, reason = candidates(request, attachment.bank, digest, settings)
            same = attachment.bank.repeats(repeat_key(request.identity.digest(), digest, request.facts))
            repeat = next((c.id for c in same if is_repeat(request, c, digest)), "")
        except (OSError, BankError) as error:
            reason = getattr(error, "reason", "") or f"the bank cannot be read ({error})"
            log.warning("Carnator: %s; rendering densely.", storing.ascii_only(reason))
    if attachment.problem:
        found, reason = [], attachment.problem
    attachment.candidates, attachment.recall_reason = found, reason

    def decide(probe: Probe) -> Verdict:
        if not found:
            return Verdict(False, reason)
        try:
            verdict = judge(request, probe, found, loans.take, _signature(attachment, patcher, probe),
                            attachment.thresholds.scaled(settings.strictness), attachment.scale, settings, loans.lost)
        except FAULTS as error:
            log.warning("Carnator could not compare this render with what is remembered (%s: %s); rendering as ever.",
                        type(error).__name__, error)
            return Verdict(False, "what is remembered could not be compared with this render (the log says why)")
        verdict = _vouched(verdict, attachment, request)
        log.info("Carnator gate:\n%s", storing.ascii_only("\n".join(verdict.report)))
        return verdict

    layers = len(backbone.blocks(patcher.model.diffusion_model))
    run = Run(request, settings, grid, backbone.patch, decide,
              make_reader=lambda: AttentionReader(request.columns, middle(layers)) if request.columns else None,
              make_window=window_maker(guider, settings), say=attachment.say,
              waited=lambda: loans.waited, lost=loans.lost,
              stop_after_probe=attachment.stop_after_probe, first_order=sampler_name(sampler) in FIRST_ORDER,
              layers=layers, device=str(patcher.load_device))
    if attachment.preset is not None:
        probe, verdict = attachment.preset
        run.before = probe.seconds
        seen = [p.to(patcher.load_device) for p in probe.trajectory.predictions]  # between nodes they wait in the host's memory
        run.probe, run.own = probe, Trajectory(probe.trajectory.sigmas, seen)
        if verdict.accepted and attachment.bank is not None:
            verdict = replace(verdict, history=loans.take(verdict.history_id))
            if verdict.history is None:
                verdict = replace(verdict, accepted=False, reason="the history that fits cannot be read any more")
        try:
            run.adopt(verdict)
        except Restart as again:
            run.noise = again.noise
    elif repeat and settings.mode != "attention" and not attachment.stop_after_probe:
        history = loans.take(repeat)
        if history is not None:
            said = "the very same render: replayed from the bank" + _fidelity(history)
            run.adopt(Verdict(True, said, history, repeat, exact=True, similarity=1.0,
                              look=Look(history.prompt, history.thumbnail)))
    elif found and not attachment.stop_after_probe:
        loans.begin(found[0].card.id)  # read and decoded while the probe computes
        if not found[0].shares_noise and settings.noise == "any":
            history = loans.take(found[0].card.id)
            if history is not None:
                run.noise = history.noise
    return run


def _fidelity(history: Remembered) -> str:
    """What a replay of this history is, where it is not the render bit for bit."""
    try:
        calls = len(history.past) * history.stack
    except BankDamaged:
        return ""  # the run that takes it up will say so
    exact = storage_dtype(history.noise, calls) == torch.float32
    return "" if exact else ", to 45 dB or better (a trajectory of this size is kept compressed)"


def _request(attachment: Attachment, guider: Any, noise: Tensor, sampler: Any, sigmas: Tensor, guided: bool) -> Request:
    positive = guider.conds["positive"][0]
    encoded = conditioning_digest(guider.conds["positive"])
    text, pieces = _wording(attachment, positive, encoded)
    prompt = parse(attachment.settings.subject or text)
    known = identity(guider, noise.shape[1:], guided, KEY)
    vector = text_vector(positive["cross_attn"].float().cpu(), positive.get("attention_mask"))
    if attachment.clip is not None and prompt.text:  # vectors of another kind are never compared with these
        known, vector = Identity({**known.fields, "recall": attachment.clip.kind}), attachment.clip.vector(prompt.text)
    return Request(
        identity=relay.first_half(known, sigmas) if float(sigmas[-1]) > 1e-3 else known, prompt=prompt, text_vector=vector,
        noise=noise[0].to("cpu", torch.float32, copy=True), sigmas=sigmas.detach().float().cpu(),
        columns=_columns(prompt, text, pieces),
        facts={"conditioning": encoded, "sampler": sampler_name(sampler),
               "schedule": tensor_digest(sigmas.detach().float().cpu()), "text": text})


def _wording(attachment: Attachment, positive: dict[str, Any], encoded: str) -> tuple[str, list[str]]:
    """Text of the positive prompt and of its slots, ("", []) when unknown. encoded: digest of the conditioning that arrived.

    A conditioning that carries words but is not the one that they were encoded to (mixed, averaged, scaled) has none.
    """
    carried = positive.get("carnator")
    if not carried:
        return attachment.text(), []
    if carried.get("digest") != encoded:
        log.info("Carnator: another node changed the conditioning after Carnator Text Encode; its text counts as unknown.")
        return "", []
    return carried["text"], carried["pieces"]


def _columns(prompt: Prompt, text: str, pieces: list[str]) -> dict[str, tuple[int, ...]]:
    """The text slots of each entity that has some; those of a subject text are looked for in the text that was encoded."""
    encoded = prompt if prompt.raw == text else parse(text)
    named = [e for e in encoded.entities if e.lemma in prompt.lemmas]
    return {lemma: slots for lemma, slots in token_slots(encoded.text, pieces, named).items() if slots}


def middle(layers: int) -> range:
    """The middle half of the layers, at most 8 of them: where attention localises best."""
    first, last = layers // 4, max(layers // 4 + 1, -(-3 * layers // 4))
    return range(first, last, max(1, (last - first) // 8))


def _signature(attachment: Attachment, patcher: Any, probe: Probe) -> Signature:
    last = probe.trajectory.predictions[-1][0]
    return signature(probe.regions, tail_frame(patcher.model, last, room_for(attachment.vae, patcher, last)), last, probe.patch)


def judge_probe(run: Run, found: list[Candidate], bank: Bank | None, patcher: Any, vae: Any, thresholds: Thresholds,
                settings: Settings, profile: Profile | None = None) -> Verdict:
    """The gate for a probe that stopped (granular nodes)."""
    attachment = Attachment(settings, bank, thresholds, vae=vae, profile=profile)
    probe = run.finish_probe()
    with Loans(bank, [*probe.trajectory.sigmas, 0.0], masks=False) as loans:
        verdict = judge(run.request, probe, found, loans.take, _signature(attachment, patcher, probe),
                        attachment.thresholds.scaled(settings.strictness), attachment.scale, settings, loans.lost)
    return _vouched(verdict, attachment, run.request)


def _vouched(verdict: Verdict, attachment: Attachment, request: Request) -> Verdict:
    """The verdict with what can be said of its thresholds: in the report always, in the reason of a hit by a profile."""
    profile = attachment.profile
    if profile is None:
        own = "the default ones" if attachment.thresholds == Thresholds() else "set by hand"
        standing = f"{UNCERTIFIED}: {own}"
    else:
        standing = profile.standing(request.identity, attachment.settings)
    named = f"profile {profile.name!r}" if profile is not None else "thresholds"
    reason = f"{verdict.reason}; {named} {standing}" if profile is not None and verdict.accepted else verdict.reason
    return replace(verdict, reason=reason, certificate=standing, report=[f"{named}: {standing}", *verdict.report])


def rescoped(run: Run, verdict: Verdict, settings: Settings) -> Verdict:
    """An accepted verdict with other scope settings (dilations)."""
    if verdict.regions is None or verdict.history is None:
        return verdict
    scope = regions(verdict.regions.evidence, settings.active, settings.context)
    frames, height, width = verdict.history.noise.shape[1:]
    return replace(verdict, regions=scope, weights=latent_weights(token_weights(scope), (frames, height, width), run.patch))
