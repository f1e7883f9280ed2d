"""The door to ComfyUI: attaches Carnator to a model patcher's clone, by keyed wrappers and nothing else.

OUTER_SAMPLE opens a `Run` and closes it; PREDICT_NOISE hands each model call to it. Whatever a call needs beyond that
(attention reading, restricted layers, sparse attention) goes into that call's own copy of `transformer_options`.
When a call cannot be served, the wrappers pass everything through, and the output is bit-identical to a stock run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..backbones.base import token_grid
from ..bank import Bank, BankError, Loans, noise_digest
from ..change import ChangeScale
from ..decide import Candidate, candidates, is_repeat, judge
from ..gate import Thresholds
from ..history import Identity, repeat_key
from ..observe import AttentionReader, Window
from ..outcome import Look, Probe, Verdict
from ..profile import UNCERTIFIED, Profile
from ..prompt import Prompt, parse, token_slots
from ..recall import text_vector
from ..record import Trajectory
from ..regions import latent_weights, regions, token_weights
from ..request import Request, Settings
from ..retrospect import FIRST_ORDER
from ..reuse import Phase, ProbeDone, Restart, Run
from ..signature import Signature, signature
from ..sparse import Connect
from ..summary import closing_line, summary
from ..textclip import ClipText
from . import relay, storing
from .eligible import Part, backbone_of, part_of, why_not
from .identity import KEY, conditioning_digest, guided, identity, sampler_name, tensor_digest
from .patching import Patched, cfg_pp_functions, window_maker
from .pictures import tail_frame
from .telling import told_of

log = logging.getLogger("carnator")


@dataclass
class Attachment:
    """What a node gives Carnator to work with. One per patched clone; the runs in it live for one sampling call each.

    bank: None remembers nothing. text(): prompt text, asked for when the conditioning does not carry it. vae: decodes
    the probe's last frame for colours (None: the latent format's RGB factors). say(text): the node's status line.
    preset: goes on from a probe (granular nodes) instead of deciding anew. profile: replaces thresholds and scale.
    unfollowed(): whether the workflow shows that a first half's second does not carry Carnator. left: what a first half
    leaves for its second (hosts/relay.py).
    clip: texts are compared by its vectors instead of by their conditioning.
    problem: why no reuse may be considered ("a profile that does not exist"); only the very same render is replayed then.
    """

    settings: Settings
    bank: Bank | None
    thresholds: Thresholds = field(default_factory=Thresholds)
    scale: ChangeScale = field(default_factory=ChangeScale)
    text: Callable[[], str] = lambda: ""
    vae: Any = None
    say: Callable[[str], None] = lambda text: None
    done: Callable[[dict[str, Any]], None] = lambda summary: None
    stop_after_probe: bool = False
    preset: tuple[Probe, Verdict] | None = None
    profile: Profile | None = None
    problem: str = ""
    unfollowed: Callable[[], bool] = lambda: False
    left: relay.Relay | None = None
    clip: ClipText | None = None
    runs: dict[int, Run] = field(default_factory=dict)
    last: Run | None = None
    candidates: list[Candidate] = field(default_factory=list)
    recall_reason: str = ""

    def __post_init__(self) -> None:
        if self.profile is not None:
            self.thresholds = self.profile.thresholds
            self.scale = self.profile.scale or self.scale


def attach(model: Any, attachment: Attachment) -> Any:
    """A clone of the patcher with Carnator on it; the given patcher is not changed. A second one replaces the first."""
    from comfy.patcher_extension import WrappersMP

    clone = model.clone()
    for kind, wrapper in ((WrappersMP.OUTER_SAMPLE, _outer_sample), (WrappersMP.PREDICT_NOISE, _predict_noise)):
        clone.remove_wrappers_with_key(kind, KEY)
        clone.add_wrapper_with_key(kind, KEY, _bound(wrapper, attachment))
    return clone


def _bound(wrapper: Callable[..., Any], attachment: Attachment) -> Callable[..., Any]:
    def bound(executor: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(attachment, executor, *args, **kwargs)
    return bound


def _outer_sample(attachment: Attachment, executor: Any, noise: Tensor, latent_image: Tensor, sampler: Any, sigmas: Tensor,
                  denoise_mask: Any = None, callback: Any = None, disable_pbar: bool = False, seed: Any = None,
                  **kwargs: Any) -> Any:
    guider = executor.class_obj

    def sample(start: Tensor) -> Any:
        return executor(start, latent_image, sampler, sigmas, denoise_mask, callback, disable_pbar, seed, **kwargs)

    before, part = relay.take(), part_of(noise, latent_image, sigmas)
    reason = why_not(guider, noise, latent_image, sampler, sigmas, denoise_mask, kwargs.get("latent_shapes"),
                     attachment.settings.probe)
    if not reason and part is not Part.WHOLE:
        reason = relay.problem(attachment, part, before, guider, latent_image, sampler, sigmas)
    if reason:
        attachment.say("dense: " + reason)
        attachment.done({"decision": "aside", "reason": reason})
        log.info("Carnator steps aside: %s.", reason)
        attachment.last = None
        return noise if attachment.stop_after_probe else sample(noise)
    with Loans(attachment.bank, sigmas.detach().float().tolist(), attachment.settings.follows()) as loans:
        return _render(attachment, loans, part, before, guider, noise, sampler, sigmas, seed, sample)


def _render(attachment: Attachment, loans: Loans, part: Part, before: relay.Relay | None, guider: Any, noise: Tensor,
            sampler: Any, sigmas: Tensor, seed: Any, sample: Callable[[Tensor], Any]) -> Any:
    """One sampling call that Carnator serves; sample(noise) is the host's own. before: what a second half goes on from."""
    began = time.perf_counter()
    if part is not Part.SECOND or before is None:
        before, run = None, _open(attachment, loans, guider, noise, sampler, sigmas)
    else:
        run = relay.go_on(attachment, loans, before, guider, noise, sampler, sigmas)
    run.counts.overhead += time.perf_counter() - began
    run.counts.waited += loans.waited
    attachment.runs[id(guider)] = attachment.last = run
    conds = {name: [c.copy() for c in branch] for name, branch in guider.conds.items()}
    generators = _generator_states()
    start = noise if run.noise is None else run.noise.unsqueeze(0).to(noise)
    try:
        while True:
            run.begin()
            try:
                output = sample(start)
                break
            except Restart as again:
                start = again.noise.unsqueeze(0).to(noise)
                guider.conds = {name: [c.copy() for c in branch] for name, branch in conds.items()}
                _restore_generators(generators)
    except ProbeDone:
        return noise
    finally:
        attachment.runs.pop(id(guider), None)
    seconds = time.perf_counter() - began
    if part is Part.FIRST:
        relay.leave(attachment, relay.Relay(run, output.to("cpu", copy=True), attachment.bank, seed, seconds))
        return output
    if before is not None:
        seed, seconds = before.seed, before.seconds + seconds
    _close(attachment, run, guider, seed, seconds)
    return output


def _predict_noise(attachment: Attachment, executor: Any, x: Tensor, timestep: Tensor, model_options: dict[str, Any],
                   seed: Any = None) -> Tensor:
    import comfy.model_management

    guider = executor.class_obj
    run = attachment.runs.get(id(guider))
    if run is None:
        return executor(x, timestep, model_options, seed)
    comfy.model_management.throw_exception_if_processing_interrupted()
    pp = cfg_pp_functions(model_options)

    def compute(*, reader: AttentionReader | None = None, window: Window | None = None, restrict: bool = False,
                connect: Connect | None = None) -> Tensor:
        call = Patched(model_options, run.layers, reader, window, restrict, connect, capture=bool(pp), witness=True)
        out = executor(x, timestep, call.options, seed)
        if not call.ran:  # never to be remembered as computed
            run.stored_whole = False
            run.counts.skipped += 1
        if x.device.type == "cuda":
            torch.cuda.synchronize(x.device)
        return torch.stack([out[0], call.uncond]) if call.uncond is not None else out[:1]

    prediction = run.predict(float(timestep.flatten()[0]), compute).to(device=x.device, dtype=x.dtype)
    denoised = prediction[:1].clone()
    if prediction.shape[0] > 1:
        args = {"denoised": denoised, "uncond_denoised": prediction[1:2], "cond_denoised": denoised, "sigma": timestep,
                "input": x, "model": guider.inner_model, "cond_scale": guider.cfg, "model_options": model_options,
                "cond": guider.conds.get("positive"), "uncond": guider.conds.get("negative")}
        for function in pp:
            denoised = function(args)
    return denoised


def _open(attachment: Attachment, loans: Loans, guider: Any, noise: Tensor, sampler: Any, sigmas: Tensor) -> Run:
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
            reason = f"the bank cannot be read ({error})"
            log.warning("Carnator: %s; rendering densely.", reason)
    if attachment.problem:
        found, reason = [], attachment.problem
    attachment.candidates, attachment.recall_reason = found, reason

    def decide(probe: Probe) -> Verdict:
        if not found:
            return Verdict(False, reason)
        verdict = judge(request, probe, found, loans.take, _signature(attachment, patcher, probe),
                        attachment.thresholds.scaled(settings.strictness), attachment.scale, settings, loans.lost)
        verdict = _vouched(verdict, attachment, request)
        log.info("Carnator gate:\n%s", storing.ascii_only("\n".join(verdict.report)))
        return verdict

    layers = len(backbone.blocks(patcher.model.diffusion_model))
    run = Run(request, settings, grid, backbone.patch, decide,
              make_reader=lambda: AttentionReader(request.columns, _middle(layers)) if request.columns else None,
              make_window=window_maker(guider, settings), say=attachment.say,
              waited=lambda: loans.waited, lost=loans.lost,
              stop_after_probe=attachment.stop_after_probe, first_order=sampler_name(sampler) in FIRST_ORDER,
              layers=layers, device=str(patcher.load_device))
    if attachment.preset is not None:
        probe, verdict = attachment.preset
        run.probe, run.own = probe, Trajectory(probe.trajectory.sigmas, probe.trajectory.predictions)
        if verdict.accepted and attachment.bank is not None:
            verdict = replace(verdict, history=loans.take(verdict.history_id))
            if verdict.history is None:
                verdict = replace(verdict, accepted=False, reason="the history that fits cannot be read any more")
        try:
            run.adopt(verdict)
        except Restart as again:
            run.noise = again.noise
    elif repeat and settings.mode != "attention":
        history = loans.take(repeat)
        if history is not None:
            run.adopt(Verdict(True, "the very same render: replayed from the bank", history, repeat, exact=True, similarity=1.0,
                              look=Look(history.prompt, history.thumbnail)))
    elif found and not attachment.stop_after_probe:
        loans.begin(found[0].card.id)  # read and decoded while the probe computes
        if not found[0].shares_noise and settings.noise == "any":
            history = loans.take(found[0].card.id)
            if history is not None:
                run.noise = history.noise
    return run


def _request(attachment: Attachment, guider: Any, noise: Tensor, sampler: Any, sigmas: Tensor, guided: bool) -> Request:
    positive = guider.conds["positive"][0]
    carried = positive.get("carnator") or {}
    text = carried.get("text") or attachment.text()
    prompt = parse(attachment.settings.subject or text)
    known, vector = identity(guider, noise.shape[1:], guided, KEY), text_vector(positive["cross_attn"].float().cpu())
    if attachment.clip is not None and prompt.text:  # vectors of another kind are never compared with these
        known, vector = Identity({**known.fields, "recall": attachment.clip.kind}), attachment.clip.vector(prompt.text)
    return Request(
        identity=relay.first_half(known, sigmas) if float(sigmas[-1]) > 1e-3 else known, prompt=prompt, text_vector=vector,
        noise=noise[0].to("cpu", torch.float32, copy=True), sigmas=sigmas.detach().float().cpu(),
        columns=_columns(prompt, text, carried.get("pieces") or []),
        facts={"conditioning": conditioning_digest(guider.conds["positive"]), "sampler": sampler_name(sampler),
               "schedule": tensor_digest(sigmas.detach().float().cpu()), "text": text})


def _columns(prompt: Prompt, text: str, pieces: list[str]) -> dict[str, tuple[int, ...]]:
    """The text slots of each entity that has some; those of a subject text are looked for in the text that was encoded."""
    encoded = prompt if prompt.raw == text else parse(text)
    named = [e for e in encoded.entities if e.lemma in prompt.lemmas]
    return {lemma: slots for lemma, slots in token_slots(encoded.text, pieces, named).items() if slots}


def _middle(layers: int) -> range:
    """The middle half of the layers, at most 8 of them: where attention localises best."""
    first, last = layers // 4, max(layers // 4 + 1, -(-3 * layers // 4))
    return range(first, last, max(1, (last - first) // 8))


def _signature(attachment: Attachment, patcher: Any, probe: Probe) -> Signature:
    last = probe.trajectory.predictions[-1][0]
    return signature(probe.regions, tail_frame(patcher.model, last, attachment.vae), last, probe.patch)


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


def _close(attachment: Attachment, run: Run, guider: Any, seed: Any, seconds: float) -> None:
    """After a finished render: the closing line, the hit noted, the new history kept."""
    facts = summary(run, seconds) | told_of(run.verdict)
    line = closing_line(facts)
    log.info("Carnator %s.", storing.ascii_only(line))
    attachment.say(line)
    attachment.done(facts)
    if attachment.bank is None:
        return
    if facts["decision"] == "hit":
        storing.touch(attachment.bank, facts["history"], max(0.0, facts["saved"]))
        if run.verdict is not None and attachment.settings.record:
            storing.note(attachment.bank, run.verdict, run.request, attachment.settings, facts["saved"])
    elif attachment.settings.record and run.settings.record and run.stored_whole and run.phase is Phase.DENSE:
        storing.store(attachment.bank, storing.history_of(run, guider.model_patcher, attachment.vae, seed, seconds))


def _generator_states() -> list[Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states += torch.cuda.get_rng_state_all()
    return states


def _restore_generators(states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    if len(states) > 1:
        torch.cuda.set_rng_state_all(states[1:])
