"""On the real host: a full replay is its recording, for every sampler the host lists."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hosting import Ask, Page, bank_at, custom, entries, ksampler, reuse, schedule
from matrix import WORKS, shows

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host

# The host's list, here by name so that the tests can be collected without it.
SAMPLERS = """euler euler_cfg_pp euler_ancestral euler_ancestral_cfg_pp heun heunpp2 exp_heun_2_x0 exp_heun_2_x0_sde
dpm_2 dpm_2_ancestral lms dpm_fast dpm_adaptive dpmpp_2s_ancestral dpmpp_2s_ancestral_cfg_pp dpmpp_sde dpmpp_sde_gpu
dpmpp_2m dpmpp_2m_cfg_pp dpmpp_2m_sde dpmpp_2m_sde_gpu dpmpp_2m_sde_heun dpmpp_2m_sde_heun_gpu dpmpp_3m_sde
dpmpp_3m_sde_gpu ddpm lcm ipndm ipndm_v deis res_multistep res_multistep_cfg_pp res_multistep_ancestral
res_multistep_ancestral_cfg_pp gradient_estimation gradient_estimation_cfg_pp er_sde seeds_2 seeds_3 sa_solver
sa_solver_pece ddim uni_pc uni_pc_bh2""".split()


def record_and_replay(sampler: str, model: Any, bank: Any, page: Page) -> None:
    ask, before = Ask(sampler=sampler, steps=5, cfg=2.0), len(entries(bank))
    with_node = reuse(model, bank, probe_steps=1)
    recorded = ksampler(with_node, ask)
    assert page.last["decision"] == "miss" and page.last["computed"] >= 4
    assert torch.equal(recorded, ksampler(model, ask)), "recording changed the render"
    assert len(entries(bank)) == before + 1
    assert torch.equal(ksampler(with_node, ask), recorded), "the replay differs from its recording"
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


@shows("Wan2.1", "samplers of each kind, `_cfg_pp` included", WORKS)
@pytest.mark.filterwarnings("ignore:.*copy construct from a tensor", "ignore:Should have ta>=t0")  # the samplers' own
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_full_replay_equals_its_recording(sampler: str, wan_model: Any, bank: Any, page: Page) -> None:
    from comfy.samplers import SAMPLER_NAMES

    if sampler not in SAMPLER_NAMES:
        pytest.skip("this host does not have it")
    record_and_replay(sampler, wan_model, bank, page)


def test_and_of_the_samplers_that_a_newer_host_has_besides(wan_model: Any, tmp_path: Any, page: Page) -> None:
    from comfy.samplers import SAMPLER_NAMES

    for sampler in sorted(set(SAMPLER_NAMES) - set(SAMPLERS)):
        record_and_replay(sampler, wan_model, bank_at(tmp_path / sampler), page)


@pytest.mark.parametrize(("sampler", "uncond"), [("euler", False), ("euler_cfg_pp", True)])
def test_the_unconditional_prediction_is_kept_for_the_samplers_that_read_it(sampler: str, uncond: bool, wan_model: Any,
                                                                          bank: Any, page: Page) -> None:
    ksampler(reuse(wan_model, bank, probe_steps=1), Ask(sampler=sampler, steps=5))
    (kept,) = entries(bank)
    assert (bank.bank.load(kept.id).uncond is not None) == uncond


def test_another_sampler_schedule_or_step_count_is_another_render(wan_model: Any, bank: Any, page: Page) -> None:
    with_node = reuse(wan_model, bank, strictness=1e-9)
    ksampler(with_node, Ask())
    for other in (Ask(sampler="heun"), Ask(scheduler="beta"), Ask(steps=9), Ask(seed=8)):
        ksampler(with_node, other)
        assert page.last["computed"] > 0 and "the very same" not in page.last["reason"]


def test_a_schedule_given_by_hand_is_the_same_render_when_its_sigmas_are(wan_model: Any, bank: Any, page: Page) -> None:
    with_node = reuse(wan_model, bank)
    recorded = ksampler(with_node, Ask())
    assert torch.equal(custom(with_node, Ask(), schedule(wan_model)), recorded)
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


def test_a_replay_shows_its_steps_to_previews_and_progress(wan_model: Any, bank: Any, page: Page) -> None:
    with_node = reuse(wan_model, bank)
    seen: list[list[torch.Tensor]] = []
    for _ in range(2):
        seen.append([])
        custom(with_node, Ask(), schedule(wan_model),
               lambda i, denoised, x, total: seen[-1].append(torch.stack([denoised.clone(), x.clone()])))
    assert len(seen[1]) == Ask().steps and all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


def test_a_preview_that_writes_into_what_it_is_shown_spoils_nothing(wan_model: Any, bank: Any, page: Page) -> None:
    with_node = reuse(wan_model, bank)

    def wild(i: int, denoised: torch.Tensor, x: torch.Tensor, total: int) -> None:
        denoised.fill_(1e9)

    plain = custom(wan_model, Ask(), schedule(wan_model), wild)
    assert torch.equal(custom(with_node, Ask(), schedule(wan_model), wild), plain)
    (kept,) = entries(bank)
    assert float(bank.bank.load(kept.id).denoised.abs().max()) < 1e6, "the bank keeps copies"
