"""On the real host: two experts (Wan2.2 A14B) beside what other nodes do to both of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import families
import pytest
import torch
from experts import A14B, PROBE, Pair, asked, both, render
from families import NEAR, WAN, model_of
from hosting import Page, entries
from matrix import ASIDE, DECLINES, WORKS, shows
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host


@dataclass(frozen=True)
class Beside:
    """What is done to both experts, what is asked for, what comes of it and in which words."""

    outcome: str = WORKS
    words: str = ""
    change: Callable[[Any, Any], Any] = lambda model, family: model
    request: dict[str, Any] = field(default_factory=dict)
    options: tuple[tuple[str, Any], ...] = ()


FEATURES: dict[str, Beside] = {
    "cfg 1": Beside(request={"cfg": 1.0}),
    "LoRA": Beside(change=families.with_lora),
    "model sampling shift": Beside(change=families.with_shift),
    "ModelMerge": Beside(change=families.with_merge),
    "SageAttention override": Beside(change=families.with_sage),
    "NAG": Beside(change=families.nag),
    "fp8 weights": Beside(options=(("dtype", torch.float8_e4m3fn),)),
    "LazyCache": Beside(ASIDE, "cache is on", families.lazycache),
    "SkipLayerGuidanceDiT": Beside(ASIDE, "sampler_post_cfg_function", families.skip_layers),
    "SkipLayerGuidanceDiTSimple": Beside(ASIDE, "sampler_calc_cond_batch_function", families.skip_layers_simple),
    "CFGZeroStar": Beside(ASIDE, "sampler_post_cfg_function", families.cfg_zero_star),
    "cfg for each frame (VideoLinearCFGGuidance)": Beside(ASIDE, "sampler_cfg_function", families.cfg_per_frame),
    "Context Windows": Beside(ASIDE, "context_handler", families.context_windows),
    "batch of 2": Beside(DECLINES, "batch holds 2 videos", request={"shape": (2, *WAN.shape[1:])}),
}


def cases(*outcomes: str) -> list[Any]:
    return [pytest.param(f, marks=shows(A14B, name, f.outcome), id=name) for name, f in FEATURES.items() if f.outcome in outcomes]


def changed(feature: Beside) -> Pair:
    high, low = (feature.change(model_of(WAN, seed, feature.options), WAN) for seed in (0, 1))
    return high, low


def lines(feature: Beside, bank: Any) -> list[Pair]:
    """Our node behind the other, and before it."""
    before = both((model_of(WAN, 0), model_of(WAN, 1)), bank)
    high, low = (feature.change(model, WAN) for model in before)
    return [both(changed(feature), bank), (high, low)]


@pytest.mark.parametrize("feature", cases(WORKS))
def test_both_experts_work_beside(feature: Beside, comfy: Any, bank: Any, page: Page) -> None:
    ask, near, plain = asked(**feature.request), asked(NEAR, **feature.request), changed(feature)
    dense, models = render(plain, ask), both(plain, bank)
    assert torch.equal(render(models, ask), dense), "recording changed the render"
    assert page.last["decision"] == "miss" and page.last["computed"] == ask.steps and len(entries(bank)) == 1
    assert torch.equal(render(models, ask), dense) and page.last["computed"] == 0, "the replay differs from its recording"
    made: Tensor = render(models, near)
    assert bool(made.isfinite().all())
    assert page.last["decision"] == "hit" and PROBE < page.last["computed"] < ask.steps, page.last["reason"]
    assert len(entries(bank)) == 1 and torch.equal(render(plain, ask), dense), "bypassed, it is the render of before"


@pytest.mark.parametrize("feature", cases(ASIDE, DECLINES))
def test_carnator_keeps_out_of_both_experts(feature: Beside, comfy: Any, bank: Any, page: Page) -> None:
    ask = asked(**feature.request)
    dense = render(changed(feature), ask)
    for models in lines(feature, bank):
        page.lines.clear()
        assert torch.equal(render(models, ask), dense)
        assert feature.words in page.said and entries(bank) == []
