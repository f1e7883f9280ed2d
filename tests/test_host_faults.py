"""On the real host: what once served the wrong render, cost one, or was kept in memory after it."""

from __future__ import annotations

import gc
import weakref
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hosting import ANYTHING, GATE_DEFAULTS, Ask, Page, entries, granular, ksampler, node, reuse
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
OPEN = dict.fromkeys(GATE_DEFAULTS, 100.0)


class Settings:
    """A node's settings as an object that is not called, as KJNodes' NAG keeps them."""

    def __init__(self, scale: float, text: Any = None) -> None:
        self.nag_scale, self.nag_context = scale, text


def patched(model: Any, held: Settings) -> Any:
    """The model with a method in place of a block's, which closes over an object with settings."""
    def forward(self: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return plain(x, *args, **kwargs) * held.nag_scale

    clone = model.clone()
    block = clone.model.diffusion_model.blocks[0].cross_attn
    plain = type(block).forward.__get__(block)
    clone.add_object_patch("diffusion_model.blocks.0.cross_attn.forward", MethodType(forward, block))
    return clone


@pytest.mark.parametrize("other", [Settings(0.2), Settings(1.5, torch.ones(3)), Settings(1.5, np.ones(3)), Settings(1.5, range(3))],
                         ids=["number", "tensor", "array", "range"])
def test_settings_that_hide_in_a_closure_are_another_model(other: Settings, wan_model: Any, bank: Any, page: Page) -> None:
    ask = Ask()
    first = ksampler(reuse(patched(wan_model, Settings(1.5)), bank), ask)
    assert torch.equal(ksampler(reuse(patched(wan_model, Settings(1.5)), bank), ask), first)
    assert page.last["decision"] == "hit" and page.last["computed"] == 0, "the same settings are the same render"
    ksampler(reuse(patched(wan_model, other), bank), ask)
    assert page.last["decision"] == "miss" and len(entries(bank)) == 2


def test_what_is_injected_into_layers_is_another_model(wan_model: Any, bank: Any, page: Page) -> None:
    """A LoRA in bypass mode changes no weight: it stands in the patcher's injections."""
    from comfy.patcher_extension import PatcherInjection

    def lora(strength: float) -> Any:
        held = SimpleNamespace(multiplier=strength)
        clone = wan_model.clone()
        clone.set_injections("bypass_lora", [PatcherInjection(inject=lambda patcher: held, eject=lambda patcher: held)])
        return clone

    for strength, remembered in ((1.0, 1), (0.5, 2), (1.0, 2)):
        ksampler(reuse(lora(strength), bank), Ask())
        assert len(entries(bank)) == remembered
    assert page.last["decision"] == "hit"


def test_a_sampler_s_options_count_and_never_by_an_address(wan_model: Any) -> None:
    import comfy.samplers
    from carnator.carnator_core.hosts.identity import sampler_name

    def schedule(amount: float) -> Any:
        return lambda sigma: sigma * amount

    def named(amount: float) -> str:
        return sampler_name(comfy.samplers.KSAMPLER(comfy.samplers.sampler_object("euler").sampler_function,
                                                    extra_options={"dd": schedule(amount), "s_noise": 1.0}))
    assert named(0.1) == named(0.1) != named(0.2)
    assert "0x" not in named(0.1) and "s_noise" in named(0.1)


def test_another_seed_alone_asks_for_another_take(wan_model: Any, bank: Any, page: Page) -> None:
    """The host's own "randomize" changes nothing else: the creator is never given the clip they have."""
    ksampler(reuse(wan_model, bank, strictness=ANYTHING), Ask())
    again = ksampler(reuse(wan_model, bank, strictness=ANYTHING), Ask(seed=8))
    assert page.last["decision"] == "miss" and "asks for another take" in page.last["reason"]
    assert torch.equal(again, ksampler(wan_model, Ask(seed=8))) and len(entries(bank)) == 2
    ksampler(reuse(wan_model, bank, strictness=ANYTHING), Ask("a blue ball on snow", seed=9))
    assert page.last["decision"] == "hit", "with another word the noise may still be taken over"


def test_stage_by_stage_an_exact_repeat_is_judged_like_any_other(wan_model: Any, bank: Any, page: Page) -> None:
    first, _ = granular(wan_model, bank, Ask(), OPEN)
    again, decision = granular(wan_model, bank, Ask(), OPEN, tolerance=0.0)
    assert decision.verdict.accepted, decision.verdict.reason
    torch.testing.assert_close(again, first, atol=1e-4, rtol=0)


def test_two_gates_on_one_probe_keep_to_themselves(wan_model: Any, bank: Any) -> None:
    granular(wan_model, bank, Ask(), OPEN)
    probe = node("CarnatorEarlySignatureProbe").execute(
        model=wan_model, bank=bank, probe_steps=4, **Ask("a blue ball on snow").inputs()).result[0]
    gate = node("CarnatorRiskGate")
    first = gate.execute(probe, **OPEN, mode="ours").result[0]
    gate.execute(probe, **OPEN, mode="joint")
    assert first.probe.settings["mode"] == "ours"


def test_a_read_only_bank_stays_as_it_is_stage_by_stage(wan_model: Any, bank: Any) -> None:
    """Also where the accepted history is gone by the time it is wanted, and the rest is rendered densely."""
    from dataclasses import replace

    granular(wan_model, bank, Ask(), OPEN)
    ask, reading = Ask("a blue ball on snow"), replace(bank, record=False)
    probe = node("CarnatorEarlySignatureProbe").execute(model=wan_model, bank=reading, probe_steps=4, **ask.inputs()).result[0]
    decision = node("CarnatorRiskGate").execute(probe, **OPEN).result[0]
    assert decision.verdict.accepted
    bank.bank.clear()
    output = node("CarnatorJointReuseSampler").execute(decision, 0.25, 1, 1).result[0]["samples"]
    assert torch.equal(output, ksampler(wan_model, ask)) and not entries(bank)


def test_a_conditioning_nobody_expected_costs_no_render(wan_model: Any, bank: Any, page: Page,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.carnator_core.hosts import opening

    def broken(*_: Any) -> Any:
        raise ValueError("two prompts in one tensor")

    monkeypatch.setattr(opening, "text_vector", broken)
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask()), ksampler(wan_model, Ask()))
    assert "could not take up this render" in page.said and not entries(bank)


@pytest.mark.parametrize("where", ["judge", "summary"])
def test_a_fault_of_our_own_is_a_miss_and_never_the_end_of_a_render(where: str, wan_model: Any, bank: Any, page: Page,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.carnator_core.hosts import comfy as door
    from carnator.carnator_core.hosts import opening

    ksampler(reuse(wan_model, bank), Ask())

    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("an odd entry")

    monkeypatch.setattr(opening if where == "judge" else door, where, broken)
    ask = Ask("a blue ball on snow")
    output = ksampler(reuse(wan_model, bank, noise="my seed only"), ask)
    if where == "judge":
        assert torch.equal(output, ksampler(wan_model, ask)) and page.last["decision"] == "miss"
    else:
        assert bool(output.isfinite().all())


def test_a_finished_render_holds_none_of_its_layers(wan_model: Any, bank: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries, keys and hidden states are gone with the render, and need no garbage collection for it."""
    from carnator.carnator_core import observe

    made: list[weakref.ref[Any]] = []
    kinds: set[type] = set()
    for kind in (observe.AttentionReader, observe.Window):
        plain = kind.__init__

        def noted(self: Any, *args: Any, _plain: Any = plain, **kwargs: Any) -> None:
            _plain(self, *args, **kwargs)
            made.append(weakref.ref(self))
            kinds.add(type(self))
        monkeypatch.setattr(kind, "__init__", noted)
    model = reuse(wan_model, bank, strictness=ANYTHING, mode="latent", active_radius=0, context_radius=0)
    gc.disable()
    try:
        ksampler(model, Ask())
        ksampler(model, Ask("a blue ball on snow"))
        alive = [r() for r in made if r() is not None]
    finally:
        gc.enable()
    assert kinds == {observe.AttentionReader, observe.Window} and not alive, [type(a).__name__ for a in alive]


def test_a_kernel_that_fails_is_given_up_and_the_host_computes(wan_model: Any, bank: Any, monkeypatch: pytest.MonkeyPatch,
                                                              caplog: pytest.LogCaptureFixture) -> None:
    from carnator.carnator_core import reuse as core
    from carnator.carnator_core.hosts import patching
    from carnator.carnator_core.sparse import Recording

    def refused(*_: Any) -> Any:
        raise RuntimeError("no kernel image is available")

    monkeypatch.setattr(patching, "_given_up", [])
    monkeypatch.setattr(core, "worthwhile", lambda *_: True)
    monkeypatch.setattr(Recording, "attention", refused)
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask()), ksampler(wan_model, Ask()))
    assert len([r for r in caplog.records if "sparse attention failed" in r.message]) == 1


@pytest.mark.parametrize(("free", "fits"), [(1 << 40, True), (0, False)])
def test_layers_are_restricted_only_where_their_caches_find_room(free: int, fits: bool, wan_model: Any,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    """A hit must not need memory that the dense render would not have needed."""
    import comfy.model_management
    from carnator.carnator_core.hosts import patching
    from carnator.carnator_core.regions import regions
    from carnator.carnator_core.request import Settings

    monkeypatch.setattr(comfy.model_management, "get_free_memory", lambda device: free)
    gpu = SimpleNamespace(model=wan_model.model, load_device=torch.device("cuda"))
    evidence = torch.zeros(1, 4, 4, dtype=torch.bool)
    evidence[0, 0, 0] = True
    make = patching.window_maker(SimpleNamespace(model_patcher=gpu, model_options={}), Settings(window=(0.0, 1.0)))
    window = make(regions(evidence, 0, 0))
    assert (window is not None) == fits
    if window is not None:
        layers, width = len(wan_model.model.diffusion_model.blocks), wan_model.model.diffusion_model.dim
        assert window.nbytes(width, 16) == 2 * 2 * width * ((layers - 1) * len(window.tokens.keys) + 2 * 16)


def test_a_profile_written_anew_is_another_input(wan_model: Any, comfy: Any) -> None:
    from carnator.carnator_core.gate import Thresholds
    from carnator.carnator_core.profile import Profile
    from carnator.nodes import profiles

    for name in ("CarnatorReuse", "CarnatorRiskGate"):
        before = node(name).fingerprint_inputs(profile="written anew")
        path = profiles.write(Profile("written anew", Thresholds()))
        try:
            assert node(name).fingerprint_inputs(profile="written anew") != before
        finally:
            path.unlink()
