"""On the real host: what goes wrong in creators' graphs and no other file looks at. tests/field_notes.py has the whole list."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executing import Studio
from hosting import (
    ANYTHING,
    LTX_LATENT,
    Ask,
    Page,
    custom,
    encode,
    entries,
    ksampler,
    latent,
    ltx,
    reuse,
    run_node,
    schedule,
    wan,
    wan_state,
)
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
NEAR = "a blue ball on snow"


def remembered_and_reused(model: Any, bank: Any, page: Page, shape: tuple[int, ...], **settings: Any) -> None:
    """A render is remembered, repeated bit for bit, and reused for another prompt, all of it finite."""
    ask, near = Ask(shape=shape), Ask(NEAR, shape=shape)
    dense = ksampler(model, ask)
    assert torch.equal(ksampler(reuse(model, bank), ask), dense) and len(entries(bank)) == 1
    assert torch.equal(ksampler(reuse(model, bank), ask), dense) and page.last["computed"] == 0
    output = ksampler(reuse(model, bank, strictness=ANYTHING, **settings), near)
    assert page.last["decision"] == "hit", page.last["reason"]
    assert output.shape == dense.shape and bool(output.isfinite().all())
    assert torch.equal(ksampler(reuse(model, bank, strictness=1e-9, remember=False), near), ksampler(model, near))


@pytest.mark.parametrize("mode", ["ours", "joint"])
@pytest.mark.parametrize("shape", [(1, 16, 2, 9, 11), (1, 16, 1, 8, 10), (1, 16, 1, 7, 5)])
def test_odd_sizes_and_single_frames(mode: str, shape: tuple[int, ...], wan_model: Any, bank: Any, page: Page) -> None:
    remembered_and_reused(wan_model, bank, page, shape, mode=mode, active_radius=0)


@pytest.mark.parametrize("mode", ["ours", "joint"])
def test_a_model_of_48_channels_with_a_time_for_each_token(mode: str, comfy: Any, bank: Any, page: Page) -> None:
    model = wan(channels=48)
    assert model.get_model_object("latent_format").latent_channels == 48
    remembered_and_reused(model, bank, page, (1, 48, 2, 8, 10), mode=mode, active_radius=0)


def test_sizes_that_make_the_same_latent_are_the_same_render(ltx_model: Any, bank: Any, page: Page) -> None:
    from comfy_extras.nodes_lt import EmptyLTXVLatentVideo

    def render(width: int, height: int, length: int) -> Tensor:
        empty = run_node(EmptyLTXVLatentVideo, width, height, length, 1)
        return ksampler(reuse(ltx_model, bank), Ask(shape=LTX_LATENT), latent_image=empty)

    first = render(160, 128, 9)
    assert torch.equal(render(160, 129, 12), first), "the host rounds typed-in sizes down"
    assert page.last["decision"] == "hit" and page.last["computed"] == 0
    render(160, 128, 17)
    assert page.last["decision"] == "miss" and "latent" in page.last["reason"]


def test_branches_batched_in_the_history_and_split_in_the_target(wan_model: Any, bank: Any, page: Page,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    from comfy.model_patcher import ModelPatcher

    calls = [0]
    with_node = reuse(wan_model, bank, mode="joint", strictness=ANYTHING, active_radius=0)
    ksampler(with_node, Ask())
    batched = ksampler(with_node, Ask(NEAR))
    assert page.last["decision"] == "hit" and page.last["restricted"] > 0

    def scarce(patcher: Any, device: Any) -> int:
        calls[0] += 1
        return 0

    def flipping(patcher: Any, device: Any) -> int:
        return 10**18 * (scarce(patcher, device) + calls[0] % 2)

    for memory in (scarce, flipping):
        monkeypatch.setattr(ModelPatcher, "get_free_memory", memory)
        output = ksampler(with_node, Ask(NEAR))
        assert page.last["decision"] == "hit"
        assert torch.allclose(output, batched, atol=1e-3), "the same result, however the branches are computed"
    assert calls[0] > 8


def hook_lora(model: Any) -> Any:
    """Conditioning that puts a LoRA on for itself."""
    import comfy.hooks

    made = torch.Generator().manual_seed(5)
    name = "diffusion_model.blocks.0.self_attn.q"
    lora = {f"{name}.lora_A.weight": torch.randn(4, 256, generator=made),
            f"{name}.lora_B.weight": torch.randn(256, 4, generator=made)}
    hooks = comfy.hooks.create_hook_lora(lora=lora, strength_model=1.0, strength_clip=0.0)
    return comfy.hooks.set_hooks_for_conditioning(encode(Ask().text), hooks)


def with_reference(model: Any) -> Any:
    import node_helpers

    return node_helpers.conditioning_set_values(encode(Ask().text), {"reference_latents": [torch.zeros(1, 16, 1, 8, 10)]})


@pytest.mark.parametrize(("change", "words"), [(hook_lora, "hooks"), (with_reference, "reference_latents")])
def test_conditioning_that_carries_more_than_a_prompt(change: Callable[[Any], Any], words: str, wan_model: Any, bank: Any,
                                                      page: Page) -> None:
    given = {"positive": change(wan_model)}
    dense = ksampler(wan_model, Ask(), **given)
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask(), **given), dense)
    assert page.said.startswith("dense: ") and words in page.said and entries(bank) == []


def windows(model: Any) -> Any:
    from comfy_extras.nodes_context_windows import WanContextWindowsManualNode

    return run_node(WanContextWindowsManualNode, model, context_length=5, context_overlap=4, context_stride=1,
                    context_schedule="standard_static", closed_loop=False, fuse_method="pyramid", freenoise=False)


def zero_star(model: Any) -> Any:
    from comfy_extras.nodes_cfg import CFGZeroStar

    return run_node(CFGZeroStar, model)


def apg(model: Any) -> Any:
    from comfy_extras.nodes_apg import APG

    return run_node(APG, model, 1.0, 10.0, 0.0)


def skip_layers(model: Any) -> Any:
    from comfy_extras.nodes_slg import SkipLayerGuidanceDiT

    return run_node(SkipLayerGuidanceDiT, model, double_layers="1", single_layers="", scale=3.0, start_percent=0.0,
                    end_percent=1.0)


@pytest.mark.parametrize("neighbour", [zero_star, apg, skip_layers])
def test_a_guider_s_own_pass_is_never_lost(neighbour: Callable[[Any], Any], wan_model: Any, bank: Any, page: Page) -> None:
    guided = neighbour(wan_model)
    dense = ksampler(guided, Ask())
    assert not torch.equal(dense, ksampler(wan_model, Ask())), "it has an effect"
    for _ in range(2):
        assert torch.equal(ksampler(reuse(guided, bank), Ask()), dense)
    near = ksampler(reuse(guided, bank, strictness=ANYTHING), Ask(NEAR))
    if page.said.startswith("dense: "):
        assert torch.equal(near, ksampler(guided, Ask(NEAR))) and entries(bank) == []
    else:
        assert [c.identity.fields["other nodes"] for c in entries(bank)] != ["none"], "its effect is a part of the key"


def test_context_windows_decline_in_words(wan_model: Any, bank: Any, page: Page) -> None:
    ask = Ask(shape=(1, 16, 4, 8, 10))
    dense = ksampler(windows(wan_model), ask)
    assert torch.equal(ksampler(reuse(windows(wan_model), bank), ask), dense)
    assert "context_handler" in page.said and entries(bank) == []


def test_a_nested_audio_video_latent_declines_in_words(wan_model: Any) -> None:
    import comfy.samplers
    from carnator.carnator_core.hosts.eligible import why_not

    guider = comfy.samplers.CFGGuider(wan_model)
    guider.set_conds(encode(Ask().text), encode(""))
    noise = torch.ones(1, 1, 2570)  # as the host packs several latents into one
    reason = why_not(guider, noise, torch.zeros_like(noise), comfy.samplers.sampler_object("euler"), schedule(wan_model), None,
                     [[1, 16, 2, 8, 10], [1, 1, 10]], 4)
    assert "one video latent" in reason


@pytest.mark.parametrize(("start", "end"), [(5, 5), (8, 10000), (20, 20)])
def test_a_part_of_a_schedule_that_holds_no_step(start: int, end: int, wan_model: Any, bank: Any, page: Page) -> None:
    import nodes

    @torch.inference_mode()
    def part(model: Any) -> Tensor:
        given = Ask().inputs()
        return nodes.KSamplerAdvanced().sample(
            model=model, add_noise="enable", noise_seed=7, steps=8, cfg=5.0, sampler_name="euler", scheduler="simple",
            positive=given["positive"], negative=given["negative"], latent_image=latent(), start_at_step=start,
            end_at_step=end, return_with_leftover_noise="disable")[0]["samples"]

    output, dense = part(reuse(wan_model, bank, probe_steps=1)), part(wan_model)
    assert torch.equal(output.isnan(), dense.isnan()) and torch.equal(output.nan_to_num(), dense.nan_to_num())
    assert entries(bank) == [] and page.summaries == []


def test_schedules_of_equal_length_are_told_apart_by_their_sigmas(ltx_model: Any, bank: Any, page: Page) -> None:
    from comfy_extras.nodes_lt import LTXVScheduler

    def render(sigmas: Tensor) -> Tensor:
        return custom(reuse(ltx_model, bank, strictness=1e-9), Ask(shape=LTX_LATENT), sigmas)

    alone = run_node(LTXVScheduler, 8, 2.05, 0.95, True, 0.1, None)
    for_latent = run_node(LTXVScheduler, 8, 2.05, 0.95, True, 0.1, latent((1, 128, 40, 16, 16)))
    assert len(alone) == len(for_latent) and not torch.allclose(alone, for_latent)
    assert torch.equal(render(alone), custom(ltx_model, Ask(shape=LTX_LATENT), alone))
    other = render(for_latent)
    assert page.last["computed"] > 0 and torch.equal(other, custom(ltx_model, Ask(shape=LTX_LATENT), for_latent))
    typed = torch.tensor([float(f"{s:.5f}") for s in alone.tolist()])  # as a person copies them into ManualSigmas
    assert not torch.equal(typed, alone)
    output = render(typed)
    assert bool(output.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.bfloat16])
def test_other_precision_is_another_key(dtype: torch.dtype, wan_model: Any, bank: Any, page: Page) -> None:
    import comfy.sd

    ksampler(reuse(wan_model, bank), Ask())
    small = comfy.sd.load_diffusion_model_state_dict(wan_state(), model_options={"dtype": dtype})
    assert small.model_dtype() == dtype
    dense = ksampler(small, Ask())
    assert torch.equal(ksampler(reuse(small, bank, strictness=ANYTHING), Ask()), dense)
    assert page.last["decision"] == "miss" and "precision" in page.last["reason"]
    assert torch.equal(ksampler(reuse(small, bank), Ask()), dense) and page.last["computed"] == 0
    output = ksampler(reuse(small, bank, mode="joint", strictness=ANYTHING, active_radius=0), Ask(NEAR))
    assert page.last["decision"] == "hit" and page.last["restricted"] > 0 and bool(output.isfinite().all())


def test_a_full_disk_costs_the_entry_alone(wan_model: Any, bank: Any, page: Page, monkeypatch: pytest.MonkeyPatch,
                                           caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    dense = ksampler(wan_model, Ask())
    with monkeypatch.context() as patched, caplog.at_level(logging.INFO, "carnator"):
        patched.setattr("carnator.carnator_core.bank.format.write_entry", full)
        assert torch.equal(ksampler(reuse(wan_model, bank), Ask()), dense) and entries(bank) == []
    assert "No space left on device" in caplog.text
    assert not list(bank.bank.folder.rglob("*.safetensors")), "nothing half-written stays"
    ksampler(reuse(wan_model, bank), Ask())
    assert len(entries(bank)) == 1


@pytest.fixture
def studio(comfy: Any, page: Page, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Studio:
    return Studio(tmp_path_factory.getbasetemp() / "studio", page, monkeypatch)


@pytest.fixture
def queued(studio: Studio, bank: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Tensor]]:
    """Queues a small KSampler workflow with Carnator Reuse and the host's own text encoder, in one run of the host."""
    from carnator.nodes import banks

    monkeypatch.setattr(banks, "open_bank", lambda *_: bank.bank)

    def queue(text: str = Ask().text, seed: int = 7) -> list[Tensor]:
        def node(kind: str, **inputs: Any) -> dict[str, Any]:
            return {"class_type": kind, "inputs": inputs}

        prompt = {
            "1": node("UNETLoader", unet_name="wan.safetensors", weight_dtype="default"),
            "2": node("CLIPLoader", clip_name="t5.safetensors", type="wan"),
            "3": node("CLIPTextEncode", text=text, clip=["2", 0]), "4": node("CLIPTextEncode", text="", clip=["2", 0]),
            "5": node("EmptyHunyuanLatentVideo", width=80, height=64, length=5, batch_size=1),
            "6": node("CarnatorReuse", model=["1", 0], pace="balanced", noise="any seed (fastest)"),
            "7": node("KSampler", model=["6", 0], positive=["3", 0], negative=["4", 0], latent_image=["5", 0], seed=seed,
                      steps=8, cfg=5.0, sampler_name="euler", scheduler="simple", denoise=1.0)}
        return studio.run(studio.prepared(prompt))
    return queue


def test_each_queued_run_decides_anew(queued: Callable[..., list[Tensor]], bank: Any, page: Page) -> None:
    (first,) = queued()
    assert page.last["decision"] == "miss" and len(entries(bank)) == 1
    queued("two green rings at night")  # only the text beside it: the node itself is not executed again
    assert page.last["prompt"] == "two green rings at night" and page.last["decision"] == "miss"
    queued(seed=8)
    assert len(page.summaries) == 3
    (again,) = queued()
    assert torch.equal(again, first) and page.last["computed"] == 0, "nothing of the runs in between is left in it"
    assert page.last["prompt"] == Ask().text
    assert [c.prompt for c in sorted(entries(bank), key=lambda c: c.created)][:2] == [Ask().text, "two green rings at night"]


def test_the_same_workflow_queued_twice_runs_once(queued: Callable[..., list[Tensor]], page: Page) -> None:
    assert len(queued()) == 1 and len(page.summaries) == 1
    assert queued() == [] and len(page.summaries) == 1, "the host has it all in its cache, our node included"


def test_the_stand_in_for_the_text_encoder_is_the_host_s_kind(comfy: Any) -> None:
    import comfy.sd as sd
    from carnator.nodes.demo_clip import CarnatorDemoText

    clip = CarnatorDemoText.execute().result[0]
    assert isinstance(clip, sd.CLIP)
    conditioning = comfy.NODE_CLASS_MAPPINGS["CLIPTextEncode"]().encode(clip, "a red ball")[0]
    assert conditioning[0][1]["attention_mask"].shape == conditioning[0][0].shape[:2], "as LTX-Video needs it"


def test_every_family_has_its_strides(comfy: Any) -> None:
    from carnator.carnator_core.backbones.base import token_grid
    from carnator.carnator_core.hosts.eligible import backbone_of

    for model, shape, grid in ((wan(), (21, 60, 104), (21, 30, 52)), (wan(channels=48), (31, 44, 80), (31, 22, 40)),
                               (ltx(), (13, 16, 24), (13, 16, 24))):
        backbone = backbone_of(model.model)
        assert backbone is not None and token_grid(shape, backbone.patch) == grid
