"""One sampling run: probe, decision, then reuse or the dense render, call by call.

A `Run` sits where the host's sampler asks for `denoised`. It owns everything that belongs to this run, and dies with it.
It never touches the sampler: it computes, replays, forecasts or fuses predictions, and where the noise has to change
it raises `Restart`, upon which the host starts the same sampler again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from .backbones.base import Grid
from .bank.errors import BankDamaged
from .connectivity import Connectivity, Recorder, worthwhile
from .course import Course, skipping_costs
from .forecast import Forecaster, Pace, blend
from .history import Remembered
from .observe import AttentionReader, Window
from .outcome import Probe, Verdict
from .passes import Compute, Counts, Phase, ProbeDone, Restart
from .record import Past, Trajectory, same_sigma, storage_dtype
from .regions import Regions
from .request import Request, Settings
from .skipping import Skipping
from .sparse import Following, Recording

# Tokens from which the default mode restricts layers to the region. On smaller clips the gathers cost what they save
# (measured at 192 tokens: the same seconds, 8 dB less); the paper's modes restrict always.
RESTRICT_FROM = 1024
DELAYED_S = 0.05  # a step that stood still for the bank for longer than this was delayed


def _nothing(*_: object) -> None:
    return None


def _decided(probe: Probe) -> Verdict:
    raise RuntimeError("this render was decided in its first half")


@dataclass
class Run:
    """State and decisions of one sampling run.

    decide(probe) is asked once, after the probe; reader(step) gives the attention reader for the probe's last step;
    make_window(regions) the region-restricted layers; waited() the seconds that the run has stood still for the bank so
    far; lost(error) is told when the history cannot be read any further.
    """

    request: Request
    settings: Settings
    grid: Grid
    patch: Grid
    decide: Callable[[Probe], Verdict]
    make_reader: Callable[[], AttentionReader | None]
    make_window: Callable[[Regions], Window | None]
    say: Callable[[str], None] = lambda text: None
    waited: Callable[[], float] = lambda: 0.0
    lost: Callable[[BankDamaged], None] = lambda error: None
    stop_after_probe: bool = False
    first_order: bool = False  # the sampler moves by the last prediction alone (`retrospect`)
    layers: int = 0  # of the transformer
    device: str = "cpu"  # where it computes
    noise: Tensor | None = None  # the noise this pass started from, when it is not the request's own
    phase: Phase = Phase.PROBE
    verdict: Verdict | None = None
    own: Trajectory = field(default_factory=Trajectory)
    probe: Probe | None = None
    counts: Counts = field(default_factory=Counts)
    calls: int = 0
    second: dict[str, str] = field(default_factory=dict)  # facts of the second expert, once it has taken over
    stored_whole: bool = True  # every recorded prediction was computed by the model at this run's own state
    _reader: AttentionReader | None = None
    _past: Past | None = None
    before: float = 0.0  # seconds that recall, and earlier sampling calls of this render, have cost
    began: float | None = None  # when the model was first asked for: it is loaded before, once a session
    _skipping: Skipping | None = None
    _window: Window | None = None
    _weights: Tensor | None = None
    _since_full: int = 0
    _recorder: Recorder | None = None
    _connectivity: Connectivity | None = None
    _like: Tensor | None = None  # a prediction as the model gives it: its device, dtype and stack size
    _before: int = 0  # calls of the first expert, once the second has taken over
    _guides: bool | None = None  # whether the second expert is guided

    def begin(self) -> None:
        """A pass of the sampler starts (again)."""
        self.calls = self._before

    def pause(self) -> None:
        """The first expert's part is done. What belongs to its model and to its sampling call is let go of."""
        self.before, self.began = self.seconds(), None
        self.decide, self.make_reader, self.make_window = _decided, _nothing, _nothing
        self._past = self._reader = self._window = self._connectivity = None

    def go_on(self, sigmas: Tensor, history: Remembered | None, make_window: Callable[[Regions], Window | None],
              guided: bool, facts: dict[str, str]) -> None:
        """The second expert takes over; sigmas [m + 1] begin where the first part's end.

        history: the accepted one; None when it has nothing of this expert, and the rest is computed. guided: whether the
        unconditional branch is evaluated. facts: what the render's own history is to say of this expert.
        """
        self.request = replace(self.request, sigmas=torch.cat([self.request.sigmas, sigmas[1:].to(self.request.sigmas)]))
        self._before, self.second, self._guides, self.make_window = self.calls, facts, guided, make_window
        if self._skipping is not None:
            self._skipping.forget()
        if self.phase not in (Phase.REUSE, Phase.REPLAY):
            return
        if history is None:
            self.phase = Phase.ALONE
            return
        try:
            self._past = history.past
            if self.phase is Phase.REUSE and self.verdict is not None and self._skipping is not None:
                self._skipping.course = self._planned(history)
                self._restrict(self.verdict.regions)
        except BankDamaged as error:
            self._go_on_alone(error)

    def seconds(self) -> float:
        """Of this render so far: recall, earlier sampling calls, and this one from the first call of the model on."""
        return self.before + (time.perf_counter() - self.began if self.began is not None else 0.0)

    def release(self) -> None:
        """The render is over: let go of what it held for its own steps. What it showed and decided stays."""
        self.pause()
        self._skipping = self._weights = self._recorder = self._like = None

    def step_of(self, sigma: float) -> int:
        """Index of the schedule's step that a noise level belongs to."""
        for i, s in enumerate(self.request.sigmas.tolist()):
            if s < sigma or same_sigma(s, sigma):
                return i
        return len(self.request.sigmas) - 1

    def predict(self, sigma: float, compute: Compute) -> Tensor:
        """The prediction [S, C, T, H, W] that the sampler gets at this call."""
        before = self.waited()
        self.began = time.perf_counter() if self.began is None else self.began
        try:
            return self._predict(sigma, compute)
        finally:
            stood = self.waited() - before
            self.counts.waited += stood
            self.counts.delayed += stood > DELAYED_S

    def _predict(self, sigma: float, compute: Compute) -> Tensor:
        call, step = self.calls, self.step_of(sigma)
        self.calls += 1
        if self.phase is Phase.PROBE and step >= self.settings.probe:
            self._decide()
        if self.phase is Phase.DENSE and self.probe is None and step >= self.settings.probe:
            self.finish_probe()
        if self.phase in (Phase.REPLAY, Phase.REUSE):
            try:
                return self._replay(call, sigma) if self.phase is Phase.REPLAY else self._reuse(call, sigma, step, compute)
            except BankDamaged as error:
                self._go_on_alone(error)
        if self.phase is Phase.ALONE:
            return self._compute(compute)
        kept = self.own.call(call, sigma)
        if kept is not None:
            self.counts.replayed += 1
            return kept
        if self.phase is Phase.DENSE and self._skipping is not None and step >= self.settings.probe:
            return self._step_cache(sigma, step, compute)
        reader = None
        if step == self.settings.probe - 1 and self._reader is None and self.probe is None:
            reader = self._reader = self.make_reader()
        if self.phase is Phase.PROBE:
            self.say(f"probing {step + 1}/{self.settings.probe}")
        prediction = self._compute(compute, reader=reader, connect=self._recording(sigma))
        self.own.add(sigma, self._kept(prediction))
        if self._skipping is not None:  # the probe's steps, after a refused noise
            self._skipping.observe(step, sigma, prediction.detach().clone())
        return prediction

    def _recording(self, sigma: float) -> Recording | None:
        """Recording of this step's connectivity, when the render is to be remembered and large enough to profit."""
        if self._recorder is None and self.settings.record and self.settings.sparse == "auto" and not self.stop_after_probe:
            tokens = self.grid[0] * self.grid[1] * self.grid[2]
            if worthwhile(tokens, 0.0, self.device):
                self._recorder = Recorder(self.grid, self.request.sigmas.tolist(), coverage=self.settings.coverage)
        return Recording(self._recorder, sigma) if self._recorder is not None and self._recorder.wants(sigma) else None

    def _following(self, sigma: float, restrict: bool) -> Following | None:
        """The history's connectivity for this step, in the modes that reuse it."""
        if self._connectivity is None:
            return None
        return Following(self._connectivity, sigma, self._window.tokens if restrict and self._window is not None else None)

    def recorded(self) -> dict[str, Tensor]:
        """This render's own connectivity, packed for its history; empty when none was recorded."""
        found = self._recorder.finish() if self._recorder is not None else None
        return found.to_tensors() if found is not None else {}

    def _compute(self, compute: Compute, **how: object) -> Tensor:
        began = time.perf_counter()
        prediction = compute(**how)  # type: ignore[arg-type]
        self.counts.seconds += time.perf_counter() - began
        self.counts.computed += 1
        self._like = prediction
        return prediction

    def _kept(self, prediction: Tensor) -> Tensor:
        """A copy for the record: exact during the probe (the fallback replays it), otherwise as storage has it."""
        dtype = storage_dtype(prediction, len(self.request.sigmas) - 1)
        if self.phase is Phase.PROBE:
            return prediction.detach().clone()
        return prediction.detach().to(device="cpu", dtype=dtype, copy=True)

    def finish_probe(self) -> Probe:
        """Everything the probe's steps showed (also for a run that stops there, or has gone on since)."""
        if self.probe is None:
            regions, supports = self._reader.regions(self.grid) if self._reader else ({}, {})
            calls = sum(self.step_of(s) < self.settings.probe for s in self.own.sigmas)
            seen = Trajectory(self.own.sigmas[:calls], self.own.predictions[:calls])
            self.probe = Probe(self._started_from(), seen, regions, supports, self.grid, self.patch)
            self._reader = None  # it holds whole queries and keys
        return self.probe

    def _started_from(self) -> Tensor:
        return self.request.noise if self.noise is None else self.noise

    def _decide(self) -> None:
        probe = self.finish_probe()
        if self.stop_after_probe:
            probe.seconds = self.seconds()
            seen = probe.trajectory  # it may wait long for the node that goes on with it, and not in the device's memory
            probe.trajectory = Trajectory(seen.sigmas, [p.cpu() for p in seen.predictions])
            self.own = Trajectory()
            raise ProbeDone
        self.adopt(self.decide(probe))

    def adopt(self, verdict: Verdict) -> None:
        """Go on as decided. Raises Restart when the pass so far cannot be continued."""
        start = None
        if verdict.accepted:
            try:
                start = self._take_up(verdict)
            except (BankDamaged, LookupError, TypeError, ValueError) as error:
                self.lost(error if isinstance(error, BankDamaged) else BankDamaged(f"{type(error).__name__}: {error}"))
                self._skipping = self._window = self._weights = self._connectivity = None
                self.stored_whole = True
                verdict = replace(verdict, accepted=False, history=None, reason=f"the history that fits cannot be read ({error})")
        self.verdict = verdict
        self.say(verdict.reason)
        if not verdict.accepted:
            self.phase = Phase.DENSE
            away = self.noise is not None  # the pass began from a history's noise: the creator gets their own render
            if away:
                self.noise, self.own, self.probe, self._reader = None, Trajectory(), None, None
            if self.settings.miss_tolerance > 0:
                self.stored_whole = False
                pace = Pace(self.settings.miss_tolerance, self.settings.longest)
                self._skipping = Skipping(Forecaster(), pace=pace, corrects=self.first_order)
                self._learn_from_probe()
            if away:
                raise Restart(self.request.noise)
            return
        if start is not None:
            raise Restart(start)

    def _take_up(self, verdict: Verdict) -> Tensor | None:
        """Set out to reuse the accepted history; returns the noise to start again from, if the pass cannot be continued.

        Raises BankDamaged when the history cannot be read: then the caller lets go of what was set here.
        """
        history = verdict.history
        assert history is not None
        past = history.past
        if verdict.exact:
            self._past, self.phase, self.stored_whole = past, Phase.REPLAY, False
            return None
        noise_differs = not torch.equal(history.noise, self._started_from())
        connectivity = history.connectivity if self.settings.follows() else {}
        self._past = past
        if len(self.own):
            self._like = self.own.predictions[-1]
        forecasting = self.settings.mode in ("ours", "forecast")
        self._weights, forecaster = verdict.weights, Forecaster(self._served, verdict.weights)
        self._skipping = Skipping(forecaster, course=self._planned(history), corrects=self.first_order)
        self.phase, self.stored_whole = Phase.REUSE, False
        if connectivity:
            self._connectivity = Connectivity.from_tensors(dict(connectivity))
        self._restrict(verdict.regions)
        if noise_differs:  # the probe belongs to another noise: nothing of it carries over
            self.own, self.noise = Trajectory(), history.noise
        self._learn_from_probe()
        fused = self._weights is not None and not forecasting
        return history.noise if fused or self.settings.resume or noise_differs else None

    def _learn_from_probe(self) -> None:
        assert self._skipping is not None
        for sigma, prediction in zip(self.own.sigmas, self.own.predictions, strict=True):
            self._skipping.observe(self.step_of(sigma), sigma, prediction)

    def _planned(self, history: Remembered) -> Course | None:
        """Which steps of this schedule will be computed; None for every one, where the mode does not forecast."""
        if self.settings.mode not in ("ours", "forecast") or self.settings.tolerance <= 0:
            return None
        costs = skipping_costs(history.bend, history.past.sigmas, self.request.sigmas.tolist())
        return Course(costs, self.settings.tolerance, self.settings.longest)

    def _go_on_alone(self, error: BankDamaged) -> None:
        """The history cannot be read any further: the model computes the rest from where the render stands."""
        self.lost(error)
        if self.phase is Phase.REPLAY and self.calls == 1:  # nothing was replayed yet: a miss
            self.phase, self.verdict, self.stored_whole = Phase.PROBE, None, True
            return
        self.phase, self._window, self._connectivity = Phase.ALONE, None, None
        text = f"the history could not be read any further ({error}); the rest is computed"
        if self.verdict is not None:
            self.verdict.report.append(text)
        self.say(text)

    def _restrict(self, scope: Regions | None) -> None:
        """Set up the region-restricted layers, where the mode and the accepted history's regions ask for them."""
        small = self.grid[0] * self.grid[1] * self.grid[2] < RESTRICT_FROM
        region = self.settings.mode in ("joint", "latent") or self.settings.mode == "ours" and not small
        if scope is not None and region:
            self._window = self.make_window(scope)

    def _served(self, sigma: float, call: int = -1) -> Tensor:
        """The history's prediction at sigma: of that very call where it was made alike (heun calls twice at a sigma)."""
        assert self._past is not None
        past = self._past.call(call, sigma) if call >= 0 else None
        if past is None:
            past = self._past.at(sigma)
        return past[: self._like.shape[0]].to(self._like) if self._like is not None else past.float()

    def _replay(self, call: int, sigma: float) -> Tensor:
        assert self._past is not None
        kept = self._past.call(call, sigma)
        if kept is None:  # another sampler than the history's: interpolate
            kept = self._past.at(sigma)
        self.counts.replayed += 1
        return kept.float()

    def _reuse(self, call: int, sigma: float, step: int, compute: Compute) -> Tensor:
        assert self._skipping is not None
        settings, steps = self.settings, len(self.request.sigmas) - 1
        fuse = settings.mode not in ("ours", "forecast")  # the paper's fusion: the history's own state outside the region
        if fuse and step >= settings.until * steps:
            return self._compute(compute)
        if step < settings.resume:
            self.counts.replayed += 1
            return self._served(sigma, call)
        own = self.own.call(call, sigma) if step < settings.probe else None
        if own is not None:
            self.counts.replayed += 1
            return blend(own, self._served(sigma, call), self._weights) if fuse else own
        if self._skipping.skips(step, steps - step):
            self.counts.forecast += 1
            self.say(f"step {step + 1}/{steps}, {self.counts.computed} computed")
            return self._skipping.forecast(sigma, self._following_sigma(step))
        restrict = self._window is not None and self._window.ready((0, 1) if self._guided() else (0,))
        if not fuse and settings.refresh and self._since_full >= settings.refresh:
            restrict = False
        self._since_full = self._since_full + 1 if restrict else 0
        connect = self._following(sigma, restrict)
        own = self._compute(compute, window=self._window, restrict=restrict, connect=connect)
        if connect is not None and connect.densities:
            self.counts.density.append(sum(connect.densities) / len(connect.densities))
        if restrict:
            self.counts.restricted += 1
            if not fuse:  # outside the region nothing was computed: there the history carries on what was
                own = blend(own, self._skipping.forecaster.carried(sigma), self._weights)
        self.say(f"step {step + 1}/{steps}, {self.counts.computed} computed")
        if fuse:
            return blend(own, self._served(sigma, call), self._weights)
        return self._skipping.computed(step, sigma, self._following_sigma(step), own)

    def _following_sigma(self, step: int) -> float:
        return float(self.request.sigmas[min(step + 1, len(self.request.sigmas) - 1)])

    def _guided(self) -> bool:
        if self._guides is not None:
            return self._guides
        return self.request.identity.fields.get("cfg", "1") != "1"

    def _step_cache(self, sigma: float, step: int, compute: Compute) -> Tensor:
        """A miss with forecasting from the render's own slope, when the creator asked for it."""
        assert self._skipping is not None
        if self._skipping.skips(step, len(self.request.sigmas) - 1 - step):
            self.counts.forecast += 1
            return self._skipping.forecast(sigma, self._following_sigma(step))
        return self._skipping.computed(step, sigma, self._following_sigma(step), self._compute(compute))
