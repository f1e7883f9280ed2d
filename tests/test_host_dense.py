"""On the real host: a render that reuses nothing is the host's own render, bit for bit, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hosting import (
    ANYTHING,
    LTX_LATENT,
    NOTHING,
    NOTHING_FITS,
    Ask,
    Page,
    bank_at,
    entries,
    granular,
    ksampler,
    reuse,
)
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
Stock = Callable[[Ask], Tensor]
SAMPLERS = ["euler", "uni_pc", "dpmpp_2m", "res_multistep", "heun", "euler_ancestral"]
NEAR = "a red cube on snow"  # near enough to the default request to be recalled


@pytest.fixture(scope="module")
def others(wan_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bank with a history of another prompt, from the same seed."""
    kept = bank_at(tmp_path_factory.mktemp("others"))
    ksampler(reuse(wan_model, kept), Ask(NEAR))
    assert len(entries(kept)) == 1
    kept.record = False
    return kept


@pytest.fixture(scope="module")
def seeds(wan_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bank with a history of another prompt and another seed."""
    kept = bank_at(tmp_path_factory.mktemp("seeds"))
    ksampler(reuse(wan_model, kept), Ask(NEAR, seed=8))
    assert len(entries(kept)) == 1
    kept.record = False
    return kept


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_miss_through_the_granular_nodes_is_the_stock_render(sampler: str, wan_model: Any, stock: Stock, others: Any,
                                                              page: Page) -> None:
    ask = Ask(sampler=sampler)
    latent, decision = granular(wan_model, others, ask, NOTHING_FITS)
    assert not decision.verdict.accepted and NEAR in decision.verdict.reason
    assert torch.equal(latent, stock(ask))
    assert page.last["replayed"] >= 4, "the fallback goes on from the probe's own steps"


def test_a_miss_through_the_granular_nodes_is_remembered_like_any_render(wan_model: Any, stock: Stock, bank: Any,
                                                                         page: Page) -> None:
    latent, decision = granular(wan_model, bank, Ask())
    assert "the bank is empty" in decision.verdict.reason and torch.equal(latent, stock(Ask()))
    (kept,) = entries(bank)
    assert kept.prompt == Ask().text and kept.facts["steps"] == Ask().steps
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask()), latent)
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_carnator_reuse_with_an_empty_bank_is_the_stock_render(sampler: str, wan_model: Any, stock: Stock, bank: Any,
                                                              page: Page) -> None:
    ask = Ask(sampler=sampler)
    assert torch.equal(ksampler(reuse(wan_model, bank), ask), stock(ask))
    assert page.last["decision"] == "miss" and "the bank is empty" in page.last["reason"]
    assert len(entries(bank)) == 1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_carnator_reuse_that_refuses_another_prompt_is_the_stock_render(sampler: str, wan_model: Any, stock: Stock,
                                                                       others: Any, page: Page) -> None:
    ask = Ask(sampler=sampler)
    assert torch.equal(ksampler(reuse(wan_model, others, strictness=NOTHING), ask), stock(ask))
    assert page.last["decision"] == "miss" and NEAR in page.last["reason"]
    assert page.last["computed"] == (2 * ask.steps - 1 if sampler == "heun" else ask.steps)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_carnator_reuse_that_gives_another_seed_back_is_the_stock_render(sampler: str, wan_model: Any, stock: Stock,
                                                                        seeds: Any, page: Page) -> None:
    ask = Ask(sampler=sampler)
    assert torch.equal(ksampler(reuse(wan_model, seeds, strictness=NOTHING), ask), stock(ask))
    assert page.last["decision"] == "miss" and NEAR in page.last["reason"]
    calls = 2 * ask.steps - 1 if sampler == "heun" else ask.steps
    assert page.last["computed"] > calls, "the probe ran from the other seed's noise before it was given back"


def test_my_seed_only_never_starts_from_another(wan_model: Any, stock: Stock, seeds: Any, page: Page) -> None:
    output = ksampler(reuse(wan_model, seeds, noise="my seed only", strictness=ANYTHING), Ask())
    assert torch.equal(output, stock(Ask())) and "another seed" in page.last["reason"]
    assert page.last["computed"] == Ask().steps


@pytest.mark.parametrize("sampler", ["euler", "uni_pc"])
def test_a_miss_on_ltx_video_is_the_stock_render(sampler: str, ltx_model: Any, bank: Any, page: Page) -> None:
    ask = Ask(sampler=sampler, shape=LTX_LATENT)
    plain = ksampler(ltx_model, ask)
    assert torch.equal(ksampler(reuse(ltx_model, bank), ask), plain)
    near = Ask(NEAR, sampler=sampler, shape=LTX_LATENT)
    assert torch.equal(ksampler(reuse(ltx_model, bank, strictness=NOTHING), near), ksampler(ltx_model, near))
    assert len(entries(bank)) == 2 and page.last["grid"] == list(LTX_LATENT[2:])
    assert torch.equal(ksampler(reuse(ltx_model, bank), ask), plain) and page.last["computed"] == 0


def test_a_render_that_is_not_to_be_remembered_is_not(wan_model: Any, stock: Stock, bank: Any, page: Page) -> None:
    assert torch.equal(ksampler(reuse(wan_model, bank, remember=False), Ask()), stock(Ask()))
    assert entries(bank) == []


def interrupted(model: Any, ask: Ask, step: int) -> None:
    """A render that the creator stops after `step` steps."""
    import comfy.model_management
    import comfy.sample
    import comfy.samplers
    from hosting import custom, schedule

    def stop(i: int, *_: Any) -> None:
        if i == step:
            comfy.model_management.interrupt_current_processing(True)

    with pytest.raises(comfy.model_management.InterruptProcessingException):
        custom(model, ask, schedule(model, ask.steps), stop)


def traces(patcher: Any) -> str:
    """Everything by which a patcher could have been changed."""
    return str([patcher.model_options, patcher.patches, patcher.object_patches, patcher.attachments, patcher.callbacks,
                patcher.wrappers, patcher.additional_models, patcher.injections])


def test_a_bypassed_or_removed_node_leaves_no_trace(wan_model: Any, stock: Stock, bank: Any, page: Page) -> None:
    before, marks = stock(Ask()), traces(wan_model)
    with_node = reuse(wan_model, bank, strictness=ANYTHING, active_radius=0, mode="joint")
    ksampler(with_node, Ask())  # a miss, recorded
    ksampler(with_node, Ask())  # the very same render
    ksampler(with_node, Ask("a blue ball on snow"))  # a hit
    assert [s["decision"] for s in page.summaries] == ["miss", "hit", "hit"] and page.last["restricted"] > 0
    interrupted(with_node, Ask(NEAR, seed=5), 2)
    granular(wan_model, bank, Ask(NEAR))
    assert torch.equal(ksampler(wan_model, Ask()), before)
    assert traces(wan_model) == marks
    fresh = Ask("two green rings at night", seed=3)
    assert torch.equal(ksampler(wan_model, fresh), stock(fresh))


def test_a_second_node_in_the_line_replaces_the_first(wan_model: Any, stock: Stock, bank: Any, page: Page,
                                                      tmp_path: Any) -> None:
    second = bank_at(tmp_path / "second")
    assert torch.equal(ksampler(reuse(reuse(wan_model, bank), second), Ask()), stock(Ask()))
    assert entries(bank) == [] and len(entries(second)) == 1 and len(page.summaries) == 1


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_an_interrupt_while_recording_keeps_nothing(sampler: str, wan_model: Any, stock: Stock, bank: Any,
                                                    page: Page) -> None:
    with_node, ask = reuse(wan_model, bank), Ask(sampler=sampler)
    interrupted(with_node, ask, 3)
    assert entries(bank) == [] and not list(bank.bank.folder.rglob("*.safetensors"))
    assert torch.equal(ksampler(with_node, ask), stock(ask)) and len(entries(bank)) == 1


def test_an_interrupt_while_reusing_leaves_the_bank_and_the_next_run_alone(wan_model: Any, stock: Stock, bank: Any,
                                                                           page: Page) -> None:
    with_node, target = reuse(wan_model, bank, strictness=ANYTHING), Ask("a blue ball on snow")
    ksampler(with_node, Ask())
    whole = ksampler(with_node, target)
    assert page.last["decision"] == "hit"
    interrupted(with_node, target, 5)
    assert [c.prompt for c in entries(bank)] == [Ask().text]
    assert torch.equal(ksampler(with_node, target), whole), "the next run is equal to one before the interrupt"
    assert torch.equal(ksampler(wan_model, target), stock(target))
