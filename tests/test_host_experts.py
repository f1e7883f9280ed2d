"""On the real host: a render of two experts (Wan2.2 A14B), two KSamplerAdvanced nodes on one schedule, is one history."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import families
import pytest
import torch
from experts import A14B, PROBE, SPLIT, STEPS, Pair, asked, both, render
from families import NEAR, WAN, cfg_guider, ksampler_advanced
from hosting import GATE_DEFAULTS, NOTHING, Ask, Page, bank_at, entries, granular, ksampler, node, reuse
from matrix import ASIDE, DECLINES, WORKS, shows
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host


def render_custom(models: Pair, ask: Ask) -> Tensor:
    """Two SamplerCustomAdvanced nodes and SplitSigmas."""
    from comfy.samplers import sampler_object
    from comfy_extras.nodes_custom_sampler import DisableNoise, Noise_RandomNoise, SamplerCustomAdvanced, SplitSigmas
    from hosting import schedule

    high, low = SplitSigmas.execute(schedule(models[0], ask.steps), SPLIT).result
    noises = Noise_RandomNoise(ask.seed), DisableNoise.execute().result[0]
    latent = ask.inputs()["latent_image"]
    with torch.inference_mode():
        for model, noise, sigmas in zip(models, noises, (high, low), strict=True):
            latent = SamplerCustomAdvanced.execute(noise, cfg_guider(model, ask), sampler_object(ask.sampler), sigmas,
                                                   latent).result[0]
    return latent["samples"]  # type: ignore[no-any-return]


@shows(A14B, "KSamplerAdvanced pair, leftover noise between them", WORKS)
@pytest.mark.parametrize("sampler", ["euler", "heun", "dpmpp_2m"])
def test_one_history_spans_both_experts(sampler: str, experts: Pair, bank: Any, page: Page) -> None:
    ask, near = asked(sampler=sampler), asked(NEAR, sampler=sampler)
    dense, models = render(experts, ask), both(experts, bank)
    calls = 2 * STEPS - 1 if sampler == "heun" else STEPS
    assert torch.equal(render(models, ask), dense), "recording changed the render"
    assert [s["decision"] for s in page.summaries] == ["miss"] and page.last["computed"] == calls
    (kept,) = entries(bank)
    history = bank.bank.load(kept.id)
    assert len(history.sigmas) == STEPS + 1 and len(history.denoised) == calls and kept.facts["steps"] == STEPS
    assert torch.equal(render(models, ask), dense), "the replay differs from its recording"
    assert page.last["decision"] == "hit" and page.last["computed"] == 0 and page.last["replayed"] == calls
    output = render(models, near)
    assert page.last["decision"] == "hit" and page.last["forecast"] > 0
    assert page.last["computed"] + page.last["forecast"] + page.last["replayed"] == calls
    stock = render(experts, near)
    assert float((output - stock).norm()) < float((dense - stock).norm()), "nearer to its own render than the history is"
    assert len(entries(bank)) == 1 and torch.equal(render(experts, ask), dense), "bypassed, it is the render of before"


@shows(A14B, "SamplerCustomAdvanced pair, SplitSigmas", WORKS)
def test_a_pair_of_custom_samplers_is_one_history_too(experts: Pair, bank: Any, page: Page) -> None:
    dense, models = render_custom(experts, asked()), both(experts, bank)
    assert torch.equal(render_custom(models, asked()), dense) and len(entries(bank)) == 1
    assert torch.equal(render(models, asked()), dense), "the same sigmas by another node are the same render"
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


def stage_by_stage(experts: Pair, ask: Ask, bank: Any) -> tuple[Tensor, Any]:
    """Probe, gate, and joint reuse or the dense fallback, with both experts; the gate lets pass whatever corresponds."""
    second = {"low_noise_model": experts[1], "switch_step": SPLIT}
    open_gate = dict.fromkeys(GATE_DEFAULTS, 100.0)
    return granular(experts[0], bank, ask, open_gate, PROBE, second, tolerance=0.25)


def test_another_seed_for_a_second_half_that_draws_noise_is_another_render(experts: Pair, bank: Any, page: Page) -> None:
    """A stochastic sampler draws in the second half, too: its seed is the second node's."""
    ask = asked(sampler="euler_ancestral")
    other = asked(sampler="euler_ancestral", seed=ask.seed + 1)
    models = both(experts, bank)
    first = render(models, ask)
    again = render(models, ask, other)
    assert torch.equal(render(models, ask), first) and not torch.equal(again, first)
    assert torch.equal(again, render(experts, ask, other)), "it is the stock render of these two seeds"


def test_a_switch_step_past_the_end_is_refused_in_a_sentence(experts: Pair, bank: Any) -> None:
    probing = node("CarnatorEarlySignatureProbe")
    with pytest.raises(ValueError, match="switch step is 10 and the render has 10 steps"):
        probing.execute(model=experts[0], bank=bank, probe_steps=PROBE, **asked().inputs(), low_noise_model=experts[1],
                        switch_step=STEPS)


@shows(A14B, "stage by stage, both experts", WORKS)
def test_stage_by_stage_a_pair_is_one_render(experts: Pair, bank: Any, page: Page) -> None:
    """A miss is the stock pair of KSamplerAdvanced nodes and is remembered once; what follows goes on with both experts."""
    ask, near = asked(), asked(NEAR)
    dense = render(experts, ask)
    output, decision = stage_by_stage(experts, ask, bank)
    assert not decision.verdict.accepted and torch.equal(output, dense)
    (kept,) = entries(bank)
    assert len(bank.bank.load(kept.id).denoised) == STEPS and kept.facts["steps"] == STEPS
    output, decision = stage_by_stage(experts, near, bank)
    assert decision.verdict.accepted, decision.verdict.reason
    assert page.last["decision"] == "hit" and page.last["forecast"] > 0
    assert page.last["computed"] + page.last["forecast"] + page.last["replayed"] == STEPS
    assert float((output - render(experts, near)).norm()) < float((dense - render(experts, near)).norm())
    assert len(entries(bank)) == 1


@shows(A14B, "modes of the paper (joint)", WORKS)
def test_both_experts_compute_the_region_alone_where_the_mode_says_so(experts: Pair, bank: Any, page: Page) -> None:
    render(both(experts, bank), asked())
    output = render(both(experts, bank, mode="joint", active_radius=0, context_radius=1), asked(NEAR))
    assert page.last["decision"] == "hit" and bool(output.isfinite().all())
    assert page.last["restricted"] > STEPS - SPLIT, "more than the first expert alone has steps"


@shows(A14B, "another seed", WORKS)
def test_a_hit_of_another_seed_starts_the_first_half_from_it(experts: Pair, bank: Any, page: Page) -> None:
    render(both(experts, bank), asked(seed=8))
    render(both(experts, bank), asked(NEAR))
    assert page.last["decision"] == "hit" and page.last["computed"] < STEPS


def test_a_refused_pair_is_the_stock_render_and_is_remembered(experts: Pair, bank: Any, page: Page) -> None:
    render(both(experts, bank), asked())
    near = asked(NEAR)
    assert torch.equal(render(both(experts, bank, strictness=NOTHING), near), render(experts, near))
    assert page.last["decision"] == "miss" and len(entries(bank)) == 2


def test_where_the_experts_meet_is_part_of_the_key(experts: Pair, bank: Any, page: Page) -> None:
    models = both(experts, bank)
    render(models, asked())
    assert torch.equal(render(models, asked(), split=6), render(experts, asked(), split=6))
    assert page.last["decision"] == "miss" and "experts" in page.last["reason"]
    assert torch.equal(ksampler(models[0], asked()), ksampler(experts[0], asked()))
    assert page.last["decision"] == "miss", "a whole render of the first expert is another one, too"


@shows(A14B, "cfg 1 in the second expert", WORKS)
@pytest.mark.parametrize("other", [{"cfg": 3.0}, {"negative": "a blue ring"}])
def test_the_second_expert_s_settings_are_its_own(other: dict[str, Any], experts: Pair, bank: Any, page: Page) -> None:
    models, second = both(experts, bank), asked(cfg=1.0)
    dense = render(experts, asked(), second)
    assert torch.equal(render(models, asked(), second), dense)
    assert torch.equal(render(models, asked(), second), dense) and page.last["computed"] == 0
    changed = asked(**other)
    assert torch.equal(render(models, asked(), changed), render(experts, asked(), changed)), "exact first, dense second half"
    assert page.last["computed"] == STEPS - SPLIT and "that half is computed" in page.last["reason"]
    assert len(entries(bank)) == 1


@shows(A14B, "LoRA", WORKS)
def test_a_lora_on_the_second_expert_leaves_the_first_half_s_reuse(experts: Pair, bank: Any, page: Page) -> None:
    render(both(experts, bank), asked())
    changed = experts[0], families.with_lora(experts[1], WAN)
    assert torch.equal(render(both(changed, bank), asked()), render(changed, asked()))
    assert page.last["computed"] == STEPS - SPLIT and len(entries(bank)) == 1


Line = Callable[[Pair, Any], tuple[Pair, Ask | None]]


def only_first(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    """The workflow shows that the other half does not have the node."""
    graph = {"1": {"class_type": "CarnatorReuse", "inputs": {}},
             "2": {"class_type": "KSamplerAdvanced", "inputs": {"model": ["1", 0], "latent_image": ["9", 0]}},
             "3": {"class_type": "KSamplerAdvanced", "inputs": {"model": ["8", 0], "latent_image": ["2", 0]}}}
    line = node("CarnatorReuse", graph).execute(experts[0], "balanced", "any seed (fastest)", probe_steps=PROBE, bank=bank)
    return (line.result[0], experts[1]), None


def only_second(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    return (experts[0], both(experts, bank)[1]), None


def other_prompt(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    return both(experts, bank), asked(NEAR)


def other_sampler(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    return both(experts, bank), asked(sampler="heun")


def other_sigmas(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    return both(experts, bank), asked(scheduler="beta")


def easycache_first(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    return both((families.easycache(experts[0], WAN), experts[1]), bank), None


def easycache_second(experts: Pair, bank: Any) -> tuple[Pair, Ask | None]:
    return both((experts[0], families.easycache(experts[1], WAN)), bank), None


KEPT_OUT: list[Any] = [
    pytest.param(only_first, "only the first half", marks=shows(A14B, "Carnator Reuse in the first half alone", DECLINES)),
    pytest.param(only_second, "this is the second half", marks=shows(A14B, "Carnator Reuse in the second half alone", DECLINES)),
    pytest.param(other_prompt, "different positive prompts", marks=shows(A14B, "another prompt in the second half", DECLINES)),
    pytest.param(other_sampler, "different samplers", marks=shows(A14B, "another sampler in the second half", DECLINES)),
    pytest.param(other_sigmas, "they have to meet", marks=shows(A14B, "another schedule in the second half", DECLINES)),
    pytest.param(easycache_first, "easycache is on", marks=shows(A14B, "EasyCache", ASIDE)),
    pytest.param(easycache_second, "easycache is on", marks=shows(A14B, "EasyCache", ASIDE)),
]


@pytest.mark.parametrize(("line", "words"), KEPT_OUT)
def test_halves_that_do_not_belong_together_are_rendered_as_ever(line: Line, words: str, experts: Pair, bank: Any,
                                                                page: Page) -> None:
    models, second = line(experts, bank)
    plain = line(experts, None)[0] if line in (easycache_first, easycache_second) else experts
    if line is easycache_first:
        plain = families.easycache(experts[0], WAN), experts[1]
    if line is easycache_second:
        plain = experts[0], families.easycache(experts[1], WAN)
    assert torch.equal(render(models, asked(), second), render(plain, asked(), second))
    assert words in page.said and entries(bank) == []


def interrupted(model: Any, *half: Any, **latent: Any) -> None:
    """A half that the creator stops in its third step."""
    import comfy.model_management as management
    import comfy.utils

    def stop(bar: Any, value: int, *_: Any, **__: Any) -> None:
        if value == 3:
            management.interrupt_current_processing(True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comfy.utils.ProgressBar, "update_absolute", stop)
        with pytest.raises(management.InterruptProcessingException):
            ksampler_advanced(model, asked(), *half, **latent)


@shows(A14B, "interrupt", WORKS)
def test_an_interrupted_half_leaves_nothing(experts: Pair, bank: Any, page: Page) -> None:
    models, ask = both(experts, bank), asked()
    dense, half = render(experts, ask), {"samples": ksampler_advanced(experts[0], ask, 0, SPLIT, "enable")}
    interrupted(models[0], 0, SPLIT, "enable")
    assert torch.equal(ksampler_advanced(models[1], ask, SPLIT, latent=half), dense)
    assert "this is the second half" in page.said and not page.summaries
    mine = {"samples": ksampler_advanced(models[0], ask, 0, SPLIT, "enable")}
    interrupted(models[1], SPLIT, latent=mine)
    page.lines.clear()
    assert torch.equal(ksampler_advanced(models[1], ask, SPLIT, latent=mine), dense), "what was interrupted is not taken up again"
    assert "this is the second half" in page.said and entries(bank) == []
    for _ in range(2):
        assert torch.equal(render(models, ask), dense)
    assert page.last["decision"] == "hit" and len(entries(bank)) == 1


def test_a_render_in_between_and_a_latent_that_was_changed_end_it(experts: Pair, bank: Any, page: Page) -> None:
    models, ask = both(experts, bank), asked()
    half = {"samples": ksampler_advanced(models[0], ask, 0, SPLIT, "enable")}
    ksampler(reuse(experts[0], bank, probe_steps=PROBE, remember=False), asked("two green rings at night"))
    page.lines.clear()
    ksampler_advanced(models[1], ask, SPLIT, latent=half)
    assert "this is the second half" in page.said
    half = {"samples": ksampler_advanced(models[0], ask, 0, SPLIT, "enable") * 1.01}
    page.lines.clear()
    ksampler_advanced(models[1], ask, SPLIT, latent=half)
    assert "does not start from what the first half put out" in page.said and entries(bank) == []


def test_two_banks_do_not_meet(experts: Pair, bank: Any, page: Page, tmp_path: Any) -> None:
    models = both(experts, bank)[0], both(experts, bank_at(tmp_path / "other"))[1]
    assert torch.equal(render(models, asked()), render(experts, asked()))
    assert "different banks" in page.said and entries(bank) == []


def test_what_a_first_half_leaves_dies_with_its_model(experts: Pair, bank: Any, page: Page) -> None:
    from carnator.carnator_core.hosts import relay

    models = both(experts, bank)
    ksampler_advanced(models[0], asked(), 0, SPLIT, "enable")
    assert relay._waiting is not None and relay._waiting() is not None
    del models
    gc.collect()
    assert relay._waiting() is None and relay.take() is None


@shows(A14B, "fewer steps in the first expert than the probe needs", DECLINES)
def test_a_first_expert_of_few_steps_is_left_alone(experts: Pair, bank: Any, page: Page) -> None:
    models = both(experts, bank)
    assert torch.equal(render(models, asked(), split=3), render(experts, asked(), split=3))
    assert "the first expert has 3 steps and the probe takes 2" in page.said and entries(bank) == []
