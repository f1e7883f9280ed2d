"""The door to ComfyUI: attaches Carnator to a model patcher's clone, by keyed wrappers and nothing else.

OUTER_SAMPLE opens a `Run` and closes it; PREDICT_NOISE hands each model call to it. Whatever a call needs beyond that
(attention reading, restricted layers, sparse attention) goes into that call's own copy of `transformer_options`.
When a call cannot be served, the wrappers pass everything through, and the output is bit-identical to a stock run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..bank import Loans
from ..observe import AttentionReader, Window
from ..passes import Phase, ProbeDone, Restart
from ..reuse import Run
from ..sparse import Connect
from ..summary import closing_line, summary
from . import relay, storing
from .attachment import Attachment
from .eligible import Part, part_of, why_not
from .identity import KEY
from .opening import FAULTS, judge_probe, open_run, rescoped
from .patching import Patched, cfg_pp_functions
from .telling import told_of

__all__ = ["Attachment", "attach", "judge_probe", "rescoped"]
log = logging.getLogger("carnator")


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
    try:
        if part is not Part.SECOND or before is None:
            before, run = None, open_run(attachment, loans, guider, noise, sampler, sigmas)
        else:
            run = relay.go_on(attachment, loans, before, guider, noise, sampler, sigmas, seed)
    except FAULTS as error:  # no render is lost for them
        log.warning("Carnator could not take up this render (%s: %s); it is rendered as ever.", type(error).__name__, error)
        attachment.say("dense: Carnator could not take up this render (the log says why)")
        attachment.done({"decision": "aside", "reason": "Carnator could not take up this render (the log says why)"})
        attachment.last = None
        return noise if attachment.stop_after_probe else sample(noise)
    took = time.perf_counter() - began
    run.counts.overhead += took
    run.before += took
    run.counts.waited += loans.waited
    attachment.runs[id(guider)] = attachment.last = run
    conds = {name: [c.copy() for c in branch] for name, branch in guider.conds.items()}
    generators = _generator_states()
    start, handed_on = noise if run.noise is None else run.noise.unsqueeze(0).to(noise), False
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
        if part is Part.FIRST:
            relay.leave(attachment, relay.Relay(run, output.to("cpu", copy=True), attachment.bank, seed))
            handed_on = True
            return output
        try:
            _close(attachment, run, guider, before.seed if before is not None else seed, run.seconds())
        except (*FAULTS, RuntimeError) as error:
            log.warning("Carnator could not finish its part of this render (%s: %s); the render itself is not affected.",
                        type(error).__name__, error)
        return output
    except ProbeDone:
        return noise
    finally:
        attachment.runs.pop(id(guider), None)
        if not handed_on:
            run.release()
            if not attachment.keeps and not attachment.stop_after_probe:
                attachment.last = None


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
        call = Patched(model_options, run.layers, reader, window, restrict, connect, capture=bool(pp), witness=True,
                       objects=getattr(guider.model_patcher, "object_patches", {}))
        out = executor(x, timestep, call.options, seed)
        call.options = {}  # they hold the call itself, and with it whole queries and keys until the garbage collector comes
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
