"""One sampling run, call by call, with a model made of formulas: every branch without a host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from carnator.carnator_core import reuse
from carnator.carnator_core.history import History, Identity
from carnator.carnator_core.outcome import Probe, Verdict
from carnator.carnator_core.passes import Phase, ProbeDone, Restart
from carnator.carnator_core.prompt import Prompt
from carnator.carnator_core.regions import Regions, latent_weights, regions, token_weights
from carnator.carnator_core.request import Request, Settings
from carnator.carnator_core.reuse import Run
from carnator.carnator_core.systems import system
from torch import Tensor

SHAPE, GRID, PATCH = (4, 2, 4, 6), (2, 2, 3), (1, 2, 2)
STEPS, PROBE = 10, 3
SIGMAS = torch.linspace(1, 0, STEPS + 1)


def random(seed: int, shape: tuple[int, ...] = SHAPE) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


NOISE, OTHER_NOISE = random(1), random(2)
MINE, THEIRS, BLUR = random(10), random(11), random(12)


def target(x: Tensor, sigma: float) -> Tensor:
    """The target's prediction: depends on the state, as a model's does, and not linearly on sigma."""
    return MINE + sigma**2 * BLUR + 0.05 * sigma * x


def past(sigma: float) -> Tensor:
    """The history's predictions."""
    return THEIRS + sigma**2 * BLUR


def history(noise: Tensor = NOISE, uncond: bool = False, steps: int = STEPS) -> History:
    sigmas = torch.linspace(1, 0, steps + 1)
    calls = sigmas[:-1]
    return History(Identity({"model": "formula"}), "theirs", torch.ones(1), noise, sigmas, calls,
                   torch.stack([past(float(s)) for s in calls]),
                   torch.stack([-past(float(s)) for s in calls]) if uncond else None)


def part() -> tuple[Regions, Tensor]:
    """A region of one corner token in every frame, with its band; the last column stays the history's."""
    evidence = torch.zeros(GRID, dtype=torch.bool)
    evidence[:, 0, 0] = True
    scope = regions(evidence, 1, 1)
    return scope, latent_weights(token_weights(scope), SHAPE[1:], PATCH)  # type: ignore[arg-type]


@dataclass
class Sampler:
    """Euler or Heun over a run, started again when the run asks for it; keeps what a test wants to see."""

    run: Run
    calls_a_step: int = 1
    stack: int = 1
    model: Callable[[Tensor, float], Tensor] = target
    computed: list[float] = field(default_factory=list)
    how: list[dict[str, Any]] = field(default_factory=list)
    passes: list[Tensor] = field(default_factory=list)
    served: list[Tensor] = field(default_factory=list)
    states: list[Tensor] = field(default_factory=list)

    def ask(self, x: Tensor, sigma: float) -> Tensor:
        def compute(**how: Any) -> Tensor:
            self.computed.append(sigma)
            self.how.append(how)
            guided = self.model(x, sigma)
            return torch.stack([guided, -guided][: self.stack])

        prediction = self.run.predict(sigma, compute)
        assert prediction.ndim == 5
        self.served.append(prediction[0].clone())
        return prediction[0]

    def render(self) -> Tensor:
        start = self.run.request.noise if self.run.noise is None else self.run.noise
        for _ in range(3):
            self.passes.append(start)
            self.run.begin()
            self.served, self.states = [], [start.clone()]
            try:
                return self.once(start.clone())
            except Restart as again:
                start = again.noise
        raise AssertionError("a run may ask for one restart, not for three")

    def once(self, x: Tensor) -> Tensor:
        schedule = self.run.request.sigmas.tolist()
        for now, then in zip(schedule, schedule[1:], strict=False):
            slope = (x - self.ask(x, now)) / now
            if self.calls_a_step == 2 and then > 0:
                ahead = x + slope * (then - now)
                slope = (slope + (ahead - self.ask(ahead, then)) / then) / 2
            x = x + slope * (then - now)
            self.states.append(x.clone())
        return x


def run(verdict: Verdict | None = None, settings: Settings | None = None, **changes: Any) -> Run:
    """A run that is decided by `verdict` after the probe (None: a miss)."""
    verdict = verdict or Verdict(False, "nothing fits")
    prompt = Prompt("mine", "mine", (), "")
    request = Request(Identity({"model": "formula", "cfg": "5"}), prompt, torch.ones(1), NOISE, SIGMAS)
    values: dict[str, Any] = {"decide": lambda probe: verdict, "make_reader": lambda: None,
                              "make_window": lambda scope: None}
    return Run(request, settings or Settings(probe=PROBE, tolerance=0.0), GRID, PATCH, **{**values, **changes})


def dense(calls_a_step: int = 1, noise: Tensor = NOISE) -> Sampler:
    """The render of a plain sampler, which never met this pack."""
    sampler = Sampler(run(), calls_a_step)
    sampler.ask = target  # type: ignore[method-assign]
    sampler.states = [noise.clone()]
    sampler.states.append(sampler.once(noise.clone()))
    return sampler


@pytest.mark.parametrize("calls", [1, 2])
def test_a_miss_is_the_dense_render_bit_for_bit_and_keeps_every_prediction(calls: int) -> None:
    sampler = Sampler(run(), calls)
    output = sampler.render()
    assert torch.equal(output, dense(calls).states[-1])
    made = sampler.run
    assert made.phase is Phase.DENSE and made.stored_whole and len(sampler.passes) == 1
    assert made.counts.computed == len(sampler.computed) == len(made.own) == (STEPS if calls == 1 else 2 * STEPS - 1)
    assert made.own.sigmas == sampler.computed
    assert all(torch.equal(kept[0], served) for kept, served in zip(made.own.predictions, sampler.served, strict=True))


def test_the_decision_is_asked_once_after_the_probe_and_sees_its_steps() -> None:
    seen: list[Probe] = []

    def decide(probe: Probe) -> Verdict:
        seen.append(probe)
        return Verdict(False, "no")

    spoken: list[str] = []
    sampler = Sampler(run(decide=decide, say=spoken.append))
    sampler.render()
    assert len(seen) == 1 and seen[0].trajectory.sigmas == SIGMAS[:PROBE].tolist()
    assert torch.equal(seen[0].noise, NOISE) and seen[0].grid == GRID
    assert spoken == ["probing 1/3", "probing 2/3", "probing 3/3", "no"]
    assert len(seen[0].trajectory) == PROBE, "what was shown to the gate does not grow with the run"


def test_the_probe_of_heun_ends_with_the_same_step_as_euler() -> None:
    seen: list[Probe] = []
    sampler = Sampler(run(decide=lambda p: seen.append(p) or Verdict(False, "no")), 2)  # type: ignore[func-returns-value]
    sampler.render()
    assert [round(s, 3) for s in seen[0].trajectory.sigmas] == [1.0, 0.9, 0.9, 0.8, 0.8]


def test_attention_is_read_in_the_last_step_of_the_probe_alone() -> None:
    class Reader:
        def regions(self, grid: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            return {"fox": torch.ones(grid, dtype=torch.bool)}, {}

    reader = Reader()
    sampler = Sampler(run(make_reader=lambda: reader))
    sampler.render()
    assert [how.get("reader") for how in sampler.how] == [None, None, reader] + [None] * (STEPS - PROBE)
    assert sampler.run.probe is not None and bool(sampler.run.probe.regions["fox"].all())


def test_a_run_can_stop_after_its_probe() -> None:
    sampler = Sampler(run(stop_after_probe=True))
    with pytest.raises(ProbeDone):
        sampler.render()
    assert len(sampler.computed) == PROBE and len(sampler.run.finish_probe().trajectory) == PROBE


def test_a_fallback_from_a_probe_replays_it_and_computes_the_rest() -> None:
    first = Sampler(run(stop_after_probe=True))
    with pytest.raises(ProbeDone):
        first.render()
    probe = first.run.finish_probe()
    second = Sampler(run(probe=probe, own=probe.trajectory))
    second.run.adopt(Verdict(False, "rendered densely"))
    assert torch.equal(second.render(), dense().states[-1])
    assert second.run.counts.replayed == PROBE and second.run.counts.computed == STEPS - PROBE


def test_a_refused_history_s_noise_is_given_back_and_nothing_of_it_stays() -> None:
    readers: list[int] = []

    class Reader:
        def regions(self, grid: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
            return {"fox": torch.full(grid, len(readers) == 2)}, {}

    def make() -> Reader:
        readers.append(1)
        return Reader()

    sampler = Sampler(run(noise=OTHER_NOISE, make_reader=make))
    assert torch.equal(sampler.render(), dense().states[-1])
    assert [bool(torch.equal(p, OTHER_NOISE)) for p in sampler.passes] == [True, False]
    made = sampler.run
    assert made.noise is None and made.stored_whole and len(made.own) == STEPS
    assert made.counts.computed == STEPS + PROBE
    assert made.probe is not None and torch.equal(made.probe.noise, NOISE)
    assert bool(made.probe.regions["fox"].all()), "the regions that are remembered belong to the creator's own render"
    probed = made.probe.trajectory.predictions
    assert all(torch.equal(a, b) for a, b in zip(probed, made.own.predictions[:PROBE], strict=True))


def test_the_very_same_render_is_replayed_without_the_model() -> None:
    recorded = Sampler(run())
    output = recorded.render()
    own = recorded.run.own
    kept = History(Identity({}), "", torch.ones(1), NOISE, SIGMAS, torch.tensor(own.sigmas),
                   torch.stack([p[0] for p in own.predictions]))
    again = Sampler(run())
    again.run.adopt(Verdict(True, "the very same render", kept, "id", exact=True))
    assert torch.equal(again.render(), output)
    assert again.computed == [] and again.run.counts.replayed == STEPS and not again.run.stored_whole


def test_a_replay_hands_over_the_unconditional_prediction_too() -> None:
    again = run()
    again.adopt(Verdict(True, "same", history(uncond=True), "id", exact=True))
    prediction = again.predict(1.0, None)  # type: ignore[arg-type]
    assert torch.equal(prediction[0], past(1.0)) and torch.equal(prediction[1], -past(1.0))


def test_a_replay_under_another_schedule_interpolates() -> None:
    again = run()
    again.adopt(Verdict(True, "same", history(), "id", exact=True))
    torch.testing.assert_close(again.predict(0.95, None)[0], (past(1.0) + past(0.9)) / 2)  # type: ignore[arg-type]


def test_a_hit_everywhere_from_the_same_noise_goes_on_from_its_probe() -> None:
    sampler = Sampler(run(Verdict(True, "fits", history(), "id")))
    output = sampler.render()
    assert len(sampler.passes) == 1 and sampler.run.phase is Phase.REUSE and not sampler.run.stored_whole
    assert torch.equal(output, dense().states[-1]), "tolerance 0 computes every step"
    assert sampler.run.counts.computed == STEPS and sampler.run.counts.forecast == 0


def test_forecast_steps_save_calls_and_stay_near_the_dense_render() -> None:
    settings = Settings(probe=PROBE, tolerance=0.5, mode="forecast")
    sampler = Sampler(run(Verdict(True, "fits", history(), "id"), settings))
    output = sampler.render()
    counts = sampler.run.counts
    assert counts.computed + counts.forecast == STEPS and counts.forecast >= 3
    assert sampler.computed[-1] == pytest.approx(float(SIGMAS[-2])), "nothing corrects the last step: it is computed"
    reference = dense().states[-1]
    assert float((output - reference).norm() / reference.norm()) < 0.02


def test_under_a_first_order_sampler_forecasts_are_corrected_afterwards() -> None:
    def other(x: Tensor, sigma: float) -> Tensor:
        return target(x, sigma) + 0.3 * sigma * OTHER_NOISE

    settings = Settings(probe=PROBE, tolerance=1.0, longest=15, mode="forecast")
    far, whole = [], Sampler(run(), model=other)
    whole.render()
    for first_order in (False, True):
        verdict = Verdict(True, "fits", history(), "id")
        sampler = Sampler(run(verdict, settings, first_order=first_order), model=other)
        sampler.render()
        assert sampler.run.counts.forecast >= 3
        after = sampler.run.step_of(sampler.computed[PROBE]) + 1  # the first computed step that forecasts came before
        assert PROBE + 1 < after < STEPS
        far.append(float((sampler.states[after] - whole.states[after]).norm()))
    assert far[1] < 0.5 * far[0]


def test_a_history_of_fifty_steps_serves_ten() -> None:
    verdict = Verdict(True, "fits", history(steps=50), "id")
    output = Sampler(run(verdict, Settings(probe=PROBE, tolerance=0.05, mode="forecast"))).render()
    reference = dense().states[-1]
    assert float((output - reference).norm() / reference.norm()) < 0.02


def test_a_sampler_that_writes_into_what_it_gets_does_not_change_the_record() -> None:
    made = run()
    for sigma in SIGMAS[: PROBE + 1].tolist():
        made.predict(sigma, lambda **how: torch.ones(1, *SHAPE)).zero_()
    assert all(float(p.mean()) == 1 for p in made.own.predictions) and len(made.own) == PROBE + 1


@pytest.mark.parametrize("mode", ["joint", "latent"])
@pytest.mark.parametrize("calls", [1, 2])
def test_fusion_shows_the_history_outside_and_the_target_inside(mode: str, calls: int) -> None:
    alone = Sampler(run(), calls, model=lambda x, s: past(s) + 0.1 * s * x)  # its two calls at a sigma differ
    alone.render()
    kept = alone.run.own
    theirs_all = History(Identity({}), "", torch.ones(1), NOISE, SIGMAS, torch.tensor(kept.sigmas),
                         torch.stack([p[0] for p in kept.predictions]))
    scope, weights = part()
    verdict = Verdict(True, "fits", theirs_all, "id", scope, weights)
    sampler = Sampler(run(verdict, Settings(probe=PROBE, mode=mode)), calls)
    sampler.render()
    assert len(sampler.passes) == 2 and all(torch.equal(p, NOISE) for p in sampler.passes)
    for fused, theirs in zip(sampler.states, alone.states, strict=True):
        torch.testing.assert_close(fused[:, weights == 0], theirs[:, weights == 0], atol=1e-5, rtol=0)
    last, probed = sampler.run.counts, PROBE if calls == 1 else 2 * PROBE - 1
    assert last.replayed == probed, "the probe's own steps are fused, not computed again"
    assert last.computed == (STEPS if calls == 1 else 2 * STEPS - 1), "and no other step is left out"


def test_a_hit_of_another_noise_starts_from_it_and_takes_nothing_along() -> None:
    scope, weights = part()
    verdict = Verdict(True, "fits", history(OTHER_NOISE), "id", scope, weights)
    sampler = Sampler(run(verdict, Settings(probe=PROBE, mode="latent")))
    sampler.render()
    assert torch.equal(sampler.passes[-1], OTHER_NOISE) and len(sampler.passes) == 2
    assert sampler.computed[PROBE:] == SIGMAS[:-1].tolist(), "every step is computed at the new state"
    torch.testing.assert_close(sampler.served[0][:, weights == 1], target(OTHER_NOISE, 1.0)[:, weights == 1])


def test_a_hit_of_a_third_noise_does_not_keep_the_adopted_one() -> None:
    third = random(3)
    sampler = Sampler(run(Verdict(True, "fits", history(third), "id"), noise=OTHER_NOISE))
    output = sampler.render()
    assert torch.equal(sampler.passes[0], OTHER_NOISE) and torch.equal(sampler.passes[-1], third)
    assert torch.equal(output, dense(noise=third).states[-1])


def test_an_adopted_noise_that_is_accepted_needs_no_restart() -> None:
    sampler = Sampler(run(Verdict(True, "fits", history(OTHER_NOISE), "id"), noise=OTHER_NOISE))
    output = sampler.render()
    assert len(sampler.passes) == 1 and torch.equal(output, dense(noise=OTHER_NOISE).states[-1])


def test_resume_replays_the_history_first() -> None:
    sampler = Sampler(run(Verdict(True, "fits", history(), "id"), Settings(probe=PROBE, mode="resume", resume=5)))
    sampler.render()
    assert len(sampler.passes) == 2
    assert all(torch.equal(sampler.served[i], past(float(SIGMAS[i]))) for i in range(5))
    assert sampler.computed[PROBE:] == SIGMAS[5:-1].tolist()


def test_the_history_stands_outside_the_region_until_a_share_of_the_schedule() -> None:
    scope, weights = part()
    verdict = Verdict(True, "fits", history(), "id", scope, weights)
    sampler = Sampler(run(verdict, Settings(probe=PROBE, mode="latent", until=0.5)))
    sampler.render()
    assert [bool((p[:, :, :, -1] == past(float(s))[:, :, :, -1]).all()) for p, s in zip(
        sampler.served, SIGMAS, strict=False)] == [True] * 5 + [False] * 5


@pytest.mark.parametrize(("name", "similarity", "expected"), [
    ("nirvana", 0.97, {"mode": "resume", "resume": 25}), ("nirvana", 0.7, {"mode": "resume", "resume": 5}),
    ("nirvana", 0.2, {"mode": "resume", "resume": 0}), ("chorus", 0.91, {"mode": "latent", "resume": 20, "until": 0.6}),
    ("chorus2", 0.91, {"mode": "attention"}),
])
def test_other_systems_are_settings_of_the_same_machinery(name: str, similarity: float, expected: dict[str, Any]) -> None:
    assert system(name, similarity, 50) == expected and Settings(**expected)
    with pytest.raises(KeyError, match="no system"):
        system("another", similarity, 50)


def test_what_is_served_has_the_model_s_dtype_also_after_a_restart() -> None:
    verdict = Verdict(True, "fits", history(OTHER_NOISE), "id")
    sampler = Sampler(run(verdict, Settings(probe=PROBE, mode="forecast", tolerance=0.5)),
                      model=lambda x, s: target(x, s).double())
    sampler.render()
    assert sampler.run.counts.forecast and {p.dtype for p in sampler.served} == {torch.float64}
    assert sampler.run._served(0.5).dtype is torch.float64
    assert sampler.computed[PROBE] == 1.0, "nothing is forecast from what another noise showed"


@pytest.mark.parametrize(("mine", "theirs"), [(1, True), (2, True)])
def test_the_history_is_served_in_the_stack_that_the_sampler_asks_for(mine: int, theirs: bool) -> None:
    scope, weights = part()
    verdict = Verdict(True, "fits", history(uncond=theirs), "id", scope, weights)
    sampler = Sampler(run(verdict, Settings(probe=PROBE, mode="latent")), stack=mine)
    sampler.render()
    sampler.run.calls = STEPS - 1
    assert sampler.run.predict(float(SIGMAS[-2]), lambda **how: torch.zeros(mine, *SHAPE)).shape[0] == mine


@dataclass
class Window:
    """Stands for the region-restricted layers: ready once a whole step went by."""

    asked: list[tuple[int, ...]] = field(default_factory=list)
    full: int = 0

    def ready(self, kinds: tuple[int, ...]) -> bool:
        self.asked.append(tuple(kinds))
        return self.full > 0


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The grids here are tiny; they stand for large ones."""
    monkeypatch.setattr(reuse, "RESTRICT_FROM", 0)


def test_small_clips_are_not_restricted_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reuse, "RESTRICT_FROM", 1024)
    scope, weights = part()
    asked: list[Regions] = []

    def make(found: Regions) -> Window:
        asked.append(found)
        return Window()

    for mode in ("ours", "joint"):
        verdict = Verdict(True, "fits", history(), "id", scope, weights)
        Sampler(run(verdict, Settings(probe=PROBE, mode=mode, tolerance=0.0), make_window=make)).render()
    assert asked == [scope]  # the paper's mode alone


@pytest.mark.parametrize(("mode", "given"), [("ours", True), ("joint", True), ("latent", True), ("attention", False),
                                             ("resume", False), ("forecast", False)])
def test_layers_are_restricted_in_the_modes_that_have_a_region(mode: str, given: bool) -> None:
    scope, weights = part()
    window, scopes = Window(), []

    def make(found: Regions) -> Window:
        scopes.append(found)
        return window

    sampler = Sampler(run(Verdict(True, "fits", history(), "id", scope, weights),
                          Settings(probe=PROBE, mode=mode, tolerance=0.0, refresh=2), make_window=make))
    real = sampler.ask

    def noting(x: Tensor, sigma: float) -> Tensor:
        before = len(sampler.how)
        out = real(x, sigma)
        if len(sampler.how) > before and sampler.how[-1].get("window") and not sampler.how[-1]["restrict"]:
            window.full += 1
        return out

    sampler.ask = noting  # type: ignore[method-assign]
    sampler.render()
    reused = sampler.how[PROBE:]
    assert scopes == ([scope] if given else [])
    assert all((how["window"] is window) == given for how in reused)
    restricted = [how["restrict"] for how in reused]
    if not given:
        assert not any(restricted)
    elif mode == "ours":  # every third step is whole, to keep what lies outside true
        assert restricted == [False, True, True, False, True, True, False]
    else:
        assert restricted == [False] + [True] * (len(reused) - 1)
    assert sampler.run.counts.restricted == sum(restricted)
    assert {how["connect"] for how in reused} == {None}  # this history has no connectivity
    assert set(window.asked) <= {(0, 1)}


def test_only_the_conditional_branch_has_to_be_ready_without_guidance() -> None:
    scope, weights = part()
    window = Window()
    made = run(Verdict(True, "fits", history(), "id", scope, weights), make_window=lambda r: window)
    made.request.identity.fields["cfg"] = "1"
    Sampler(made).render()
    assert set(window.asked) == {(0,)}


def test_a_miss_may_forecast_from_its_own_slope_when_asked_to_and_is_then_not_kept() -> None:
    sampler = Sampler(run(settings=Settings(probe=PROBE, miss_tolerance=0.2)))
    output = sampler.render()
    counts = sampler.run.counts
    assert counts.forecast > 0 and counts.forecast + counts.computed == STEPS and not sampler.run.stored_whole
    reference = dense().states[-1]
    assert float((output - reference).norm() / reference.norm()) < 0.2


def test_a_miss_after_an_adopted_noise_forecasts_from_its_own_steps_alone() -> None:
    made = run(Verdict(False, "nothing fits"), settings=Settings(probe=PROBE, miss_tolerance=0.2))
    made.noise = OTHER_NOISE
    sampler = Sampler(made)
    sampler.render()
    alone = Sampler(run(settings=Settings(probe=PROBE, miss_tolerance=0.2)))
    alone.render()
    assert made.counts.forecast > 0 and sampler.passes[0] is OTHER_NOISE
    assert torch.equal(sampler.states[-1], alone.states[-1])


def test_a_schedule_that_never_leaves_the_probe_stays_undecided() -> None:
    sampler = Sampler(run(settings=Settings(probe=STEPS + 1)))
    assert torch.equal(sampler.render(), dense().states[-1])
    assert sampler.run.phase is Phase.PROBE and sampler.run.verdict is None


def test_steps_are_told_by_sigma_not_by_counting_calls() -> None:
    made = run()
    assert [made.step_of(float(s)) for s in SIGMAS] == list(range(STEPS + 1))
    assert made.step_of(0.85) == 2 and made.step_of(1.5) == 0 and made.step_of(0.0) == STEPS
    assert made.step_of(0.9 * (1 + 1e-6)) == 1
