"""On the real host: region-guided fusion is what the paper says, after every step of the host's own samplers.

A sampler is linear in the predictions it is given. So the fused trajectory has to be, at every step, the history's own
outside the Active Region, the one that the target's own predictions alone make inside the Evidence Region, and the
weighted mix of the two in the band between.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from carnator.carnator_core import reuse as core
from carnator.carnator_core.history import History
from carnator.carnator_core.outcome import Probe, Verdict
from carnator.carnator_core.regions import Regions, latent_weights, regions, token_weights
from carnator.carnator_core.request import Settings
from hosting import WAN_LATENT, Ask, Page, custom, entries, node, reuse, schedule
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
PROBE = 3


def region() -> tuple[Regions, Tensor]:
    """Two things on the 2 x 4 x 5 grid, a token of band with a weight around each, and the weights W of the latent."""
    evidence = torch.zeros(2, 4, 5, dtype=torch.bool)
    evidence[0, 0:2, 0] = evidence[1, 2, 4] = True
    scope = regions(evidence, active_radius=2, context_radius=1)
    return scope, latent_weights(token_weights(scope), WAN_LATENT[2:], (1, 2, 2))


def trajectory(model: Any, ask: Ask) -> list[Tensor]:
    """The latent that each step starts from, as the sampler's callback gets it, and the output; [C, T, H, W] each."""
    states: list[Tensor] = []

    def step(i: int, denoised: Tensor, x: Tensor, total: int) -> None:
        states.append(x[0].clone())

    output = custom(model, ask, schedule(model, ask.steps), step)
    assert len(states) >= ask.steps - 1
    return [*states, output[0]]


def attached(model: Any, probe: Probe, verdict: Verdict, settings: Settings) -> Any:
    """The model going on from a probe with a verdict, as the granular nodes have it."""
    from carnator.carnator_core.hosts import comfy as door

    return door.attach(model, door.Attachment(settings, None, preset=(probe, verdict)))


def probed(model: Any, ask: Ask) -> Probe:
    """The probe of a request."""
    probing = node("CarnatorEarlySignatureProbe")
    with torch.inference_mode():
        found = probing.execute(model=model, bank=None, probe_steps=PROBE, **ask.inputs()).result[0]
    return found.run.finish_probe()  # type: ignore[no-any-return]


@pytest.mark.parametrize(("sampler", "mode"), [("euler", "latent"), ("uni_pc", "latent"), ("dpmpp_2m", "latent"),
                                               ("euler", "joint"), ("heun", "latent")])
def test_the_fused_trajectory_is_the_history_outside_and_the_target_inside(
        sampler: str, mode: str, wan_model: Any, bank: Any, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    history_ask, ask = Ask(sampler=sampler), Ask("a blue ring on grass", sampler=sampler)
    theirs = trajectory(reuse(wan_model, bank, probe_steps=PROBE), history_ask)
    history: History = bank.bank.load(entries(bank)[0].id)
    scope, weights = region()
    settings = Settings(probe=PROBE, mode=mode, tolerance=0.0)
    probe = probed(wan_model, ask)

    own: list[Tensor] = []
    blend = core.blend

    def noting(mine: Tensor, past: Tensor, w: Tensor | None) -> Tensor:
        own.append(mine[0].clone())
        return blend(mine, past, w)

    monkeypatch.setattr(core, "blend", noting)
    fused = trajectory(attached(wan_model, probe, Verdict(True, "test", history, "id", scope, weights), settings), ask)
    assert len(own) == len(history.denoised), "every call was fused"
    monkeypatch.setattr(core, "blend", blend)
    alone = replace(history, denoised=torch.stack(own))
    mine = trajectory(attached(wan_model, probe, Verdict(True, "test", alone, "id", exact=True), settings), ask)

    assert len(fused) == len(theirs) == len(mine)
    outside, inside = weights == 0, weights == 1
    band = ~outside & ~inside
    assert bool(outside.any()) and bool(inside.any()) and bool(band.any())
    for step, (z, z_theirs, z_mine) in enumerate(zip(fused, theirs, mine, strict=True)):
        torch.testing.assert_close(z[:, outside], z_theirs[:, outside], atol=1e-5, rtol=0, msg=f"outside, step {step}")
        torch.testing.assert_close(z[:, inside], z_mine[:, inside], atol=1e-5, rtol=0, msg=f"inside, step {step}")
        mix = weights * z_mine + (1 - weights) * z_theirs
        torch.testing.assert_close(z[:, band], mix[:, band], atol=5e-5, rtol=0, msg=f"band, step {step}")
    changed = (fused[-1] - theirs[-1]).abs()
    assert float(changed[:, inside].mean()) > 0.01, "and the target is not the history"


def test_a_hit_of_another_seed_is_fused_with_that_seed_s_trajectory(wan_model: Any, bank: Any, page: Page) -> None:
    theirs = trajectory(reuse(wan_model, bank, probe_steps=PROBE), Ask(seed=8))
    history: History = bank.bank.load(entries(bank)[0].id)
    scope, weights = region()
    ask = Ask("a blue ring on grass", seed=7)
    verdict = Verdict(True, "test", history, "id", scope, weights)
    settings = Settings(probe=PROBE, mode="latent", tolerance=0.0)
    fused = trajectory(attached(wan_model, probed(wan_model, ask), verdict, settings), ask)
    for z, z_theirs in zip(fused, theirs, strict=True):
        torch.testing.assert_close(z[:, weights == 0], z_theirs[:, weights == 0], atol=1e-5, rtol=0)


def test_with_the_region_everywhere_the_fused_render_is_the_dense_one(wan_model: Any, bank: Any, page: Page) -> None:
    reuse_ask, ask = Ask(), Ask("a blue ring on grass")
    trajectory(reuse(wan_model, bank, probe_steps=PROBE), reuse_ask)
    history: History = bank.bank.load(entries(bank)[0].id)
    everywhere = torch.ones(2, 4, 5, dtype=torch.bool)
    verdict = Verdict(True, "test", history, "id", regions(everywhere), torch.ones(WAN_LATENT[2:]))
    settings = Settings(probe=PROBE, mode="latent", tolerance=0.0, window=(0.0, 1.0))
    fused = trajectory(attached(wan_model, probed(wan_model, ask), verdict, settings), ask)
    dense = trajectory(wan_model, ask)
    for z, z_dense in zip(fused, dense, strict=True):
        torch.testing.assert_close(z, z_dense, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sampler", ["euler_cfg_pp", "dpmpp_2m_cfg_pp"])
def test_the_samplers_that_read_the_unconditional_prediction_get_a_fused_one(sampler: str, wan_model: Any, bank: Any,
                                                                            page: Page) -> None:
    theirs = trajectory(reuse(wan_model, bank, probe_steps=PROBE), Ask(sampler=sampler, cfg=1.5))
    history: History = bank.bank.load(entries(bank)[0].id)
    scope, weights = region()
    ask = Ask("a blue ring on grass", sampler=sampler, cfg=1.5)
    verdict = Verdict(True, "test", history, "id", scope, weights)
    settings = Settings(probe=PROBE, mode="latent", tolerance=0.0)
    fused = trajectory(attached(wan_model, probed(wan_model, ask), verdict, settings), ask)
    for step, (z, z_theirs) in enumerate(zip(fused, theirs, strict=True)):
        torch.testing.assert_close(z[:, weights == 0], z_theirs[:, weights == 0], atol=1e-5, rtol=0, msg=f"step {step}")
