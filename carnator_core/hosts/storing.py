"""Keeping finished renders: off the critical path, on one thread, and never at a render's expense."""

from __future__ import annotations

import logging
import sqlite3
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import torch

from .. import verdicts
from ..bank import Bank, BankError, BankRefusal
from ..history import History
from ..outcome import Verdict
from ..profile import model_of, shape_class
from ..record import storage_dtype
from ..request import Request, Settings
from ..reuse import Run
from ..signature import signature
from ..verdicts import Hit, new_hit_id
from .pictures import room_for, tail_frame

log = logging.getLogger("carnator")
_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="carnator-store")
_pending: set[Future[None]] = set()


def ascii_only(text: str) -> str:
    """Text for the log, which has to be ASCII."""
    return text.encode("ascii", "replace").decode()


def history_of(run: Run, patcher: Any, vae: Any, seed: Any, seconds: float) -> History:
    """The history of a run whose every prediction was computed. Decodes one frame when there is a VAE."""
    model, own, request = patcher.model, run.own, run.request
    dtype = storage_dtype(own.predictions[0], len(own))
    stacked = torch.stack([p.to("cpu", dtype) for p in own.predictions])
    probe = run.finish_probe()
    last = own.predictions[-1][0].to(patcher.load_device).float()
    seen = probe.trajectory.predictions[-1][0] if probe.regions else last
    eye = room_for(vae, patcher, seen)  # as the gate sees a render in the middle of it
    return History(
        identity=request.identity, prompt=request.facts["text"] or request.prompt.raw, text_vector=request.text_vector,
        noise=request.noise, sigmas=request.sigmas, call_sigmas=torch.tensor(own.sigmas), denoised=stacked[:, 0].contiguous(),
        uncond=stacked[:, 1].contiguous() if stacked.shape[1] > 1 else None,
        signature=signature(probe.regions, tail_frame(model, seen, eye), seen, probe.patch) if probe.regions else None,
        facts={"conditioning": request.facts["conditioning"], "sampler": request.facts["sampler"],
               "schedule": request.facts["schedule"], "steps": len(request.sigmas) - 1, "seed": int(seed or 0),
               "subject": run.settings.subject,
               "seconds": seconds, "transformer_seconds": run.counts.seconds, "created": time.time(),
               "grid": list(run.grid), "patch": list(run.patch), "probe": run.settings.probe,
               **run.second},
        connectivity=run.recorded(), thumbnail=(tail_frame(model, last[:, :1], vae) * 255).round().to(torch.uint8))


def store(bank: Bank, history: History) -> None:
    """Add a history in the background; what goes wrong is logged in one line and touches nothing else."""
    future = _thread.submit(_store, bank, history)
    _pending.add(future)
    future.add_done_callback(_pending.discard)


def touch(bank: Bank, entry: str, saved: float) -> None:
    """Note a hit and the seconds it saved, in the background."""
    _thread.submit(_touch, bank, entry, saved)


def note(bank: Bank, verdict: Verdict, request: Request, settings: Settings, saved: float) -> None:
    """Remember a hit for the creator to judge, in the background. A replay has nothing to judge: it is the very same render."""
    if verdict.decision is None or verdict.history is None:
        return
    hit = Hit(id=new_hit_id(), history=verdict.history_id, history_prompt=verdict.history.prompt,
              prompt=str(request.facts.get("text", "")), mode=settings.mode, similarity=verdict.similarity,
              distances=verdict.decision.distances, saved=saved, date=time.time(), model=model_of(request.identity),
              shape_class=shape_class(request.identity), probe=settings.probe, tolerance=settings.tolerance)
    _thread.submit(_note, bank, hit)


def settle(timeout: float = 60.0) -> None:
    """Wait for stores under way, so that a queued run finds what the one before it left."""
    wait(list(_pending), timeout)


def flush(timeout: float = 60.0) -> None:
    """Wait for all that was handed to the background, hits included."""
    _thread.submit(lambda: None).result(timeout)


def _touch(bank: Bank, entry: str, saved: float) -> None:
    try:
        bank.touch(entry, saved)
    except (OSError, BankError) as error:
        log.warning("Carnator: the hit on %s could not be noted (%s).", entry, error)


def _note(bank: Bank, hit: Hit) -> None:
    try:
        verdicts.note(bank, hit)
    except (OSError, BankError, sqlite3.Error, ValueError) as error:
        log.warning("Carnator: the hit on %s could not be noted (%s).", hit.history, error)


def _store(bank: Bank, history: History) -> None:
    try:
        bank.add(history)
    except BankRefusal as refusal:
        log.info("Carnator did not keep this render: %s", refusal)
    except Exception as error:  # noqa: BLE001 - keeping a render is never worth more than a line
        log.warning("Carnator could not keep this render (%s); the render itself is not affected.", error)
