"""On the real host: what makes a history another request's is part of its key; runs do not know of each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hosting import (
    ANYTHING,
    LTX_LATENT,
    Ask,
    Page,
    custom,
    encode,
    entries,
    ksampler,
    reuse,
    schedule,
    wan,
)
from matrix import DECLINES, shows
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
Stock = Callable[[Ask], Tensor]


def with_lora(model: Any, strength: float) -> Any:
    import comfy.sd

    made = torch.Generator().manual_seed(5)
    name = "diffusion_model.blocks.0.self_attn.q"
    lora = {f"{name}.lora_A.weight": torch.randn(4, 256, generator=made) * 0.1,
            f"{name}.lora_B.weight": torch.randn(256, 4, generator=made) * 0.1}
    patched, _ = comfy.sd.load_lora_for_models(model, None, lora, strength, 0.0)
    assert patched.patches
    return patched


def with_shift(model: Any, shift: float) -> Any:
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    return ModelSamplingSD3().patch(model, shift)[0]


def with_block(model: Any, strength: float) -> Any:
    """Another pack's node that weakens a block."""
    clone = model.clone()

    def block(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        return {"img": torch.lerp(call["img"], extra["original_block"](call)["img"], strength)}

    clone.set_model_patch_replace(block, "dit", "double_block", 1)
    return clone


def with_attention(model: Any, scale: float) -> Any:
    """Another pack's attention."""
    clone = model.clone()

    def override(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        return func(*args, **kwargs) * scale

    clone.model_options["transformer_options"]["optimized_attention_override"] = override
    return clone


@pytest.mark.parametrize(("patch", "one", "other", "words"), [
    (with_lora, 1.0, 0.8, "patches"), (with_shift, 3.0, 5.0, "sampling"), (with_block, 1.0, 0.5, "other nodes"),
    (with_attention, 1.0, 0.9, "other nodes")])
def test_a_changed_model_is_another_key(patch: Callable[[Any, float], Any], one: float, other: float, words: str,
                                        wan_model: Any, bank: Any, page: Page) -> None:
    def render(model: Any) -> Tensor:
        return ksampler(reuse(model, bank, strictness=ANYTHING), Ask())

    render(patch(wan_model, one))
    assert torch.equal(render(patch(wan_model, other)), ksampler(patch(wan_model, other), Ask()))
    assert page.last["decision"] == "miss" and f"the closest differs in: {words}" in page.last["reason"]
    render(wan_model)
    assert page.last["decision"] == "miss", "and without it is another one, too"
    for strength in (one, other):
        assert torch.equal(render(patch(wan_model, strength)), ksampler(patch(wan_model, strength), Ask()))
        assert page.last["computed"] == 0, f"a patch made anew is the same patch: {page.last['reason']}"


def test_the_key_is_the_clone_s_own_whatever_is_loaded(wan_model: Any, bank: Any, page: Page) -> None:
    shifted = with_shift(wan_model, 5.0)
    ksampler(reuse(wan_model, bank), Ask())
    ksampler(shifted, Ask())  # its sampling stays on the shared model
    ksampler(reuse(wan_model, bank), Ask())
    assert page.last["computed"] == 0, page.last["reason"]
    ksampler(with_lora(wan_model, 1.0), Ask())  # and so do its weights
    ksampler(reuse(wan_model, bank), Ask())
    assert page.last["computed"] == 0, page.last["reason"]
    ksampler(reuse(shifted, bank), Ask())
    (first, second) = sorted(entries(bank), key=lambda card: card.created)
    assert "shift 8" in first.identity.fields["sampling"] and "shift 5" in second.identity.fields["sampling"]


@pytest.mark.parametrize(("one", "other", "words"), [
    (Ask(), Ask(cfg=4.0), "cfg"), (Ask(cfg=6.0), Ask(cfg=1.0), "cfg, negative"),
    (Ask(), Ask(negative="a blue ring"), "negative"), (Ask(), Ask(shape=(1, 16, 2, 10, 8)), "latent"),
    (Ask(), Ask(shape=(1, 16, 3, 8, 10)), "latent"),
    (Ask(cfg=1.0, sampler="euler_cfg_pp"), Ask(cfg=1.0, sampler="euler_cfg_pp", negative="a ring"), "negative")])
def test_a_changed_request_is_another_key(one: Ask, other: Ask, words: str, wan_model: Any, stock: Stock, bank: Any,
                                          page: Page) -> None:
    ksampler(reuse(wan_model, bank), one)
    assert torch.equal(ksampler(reuse(wan_model, bank, strictness=ANYTHING), other), stock(other))
    assert page.last["decision"] == "miss" and f"the closest differs in: {words}" in page.last["reason"]


def test_the_negative_prompt_does_not_matter_where_it_is_not_used(wan_model: Any, bank: Any, page: Page) -> None:
    kept = ksampler(reuse(wan_model, bank), Ask(cfg=1.0))
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask(cfg=1.0, negative="a blue ring")), kept)
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


def test_the_frame_rate_is_part_of_the_key(ltx_model: Any, bank: Any, page: Page) -> None:
    ask = Ask(shape=LTX_LATENT)

    def rated(rate: float) -> dict[str, Any]:
        return {"positive": [[t, {**extra, "frame_rate": rate}] for t, extra in encode(ask.text, mask=True)]}

    ksampler(reuse(ltx_model, bank), ask, **rated(25))
    dense = ksampler(ltx_model, ask, **rated(8))
    assert torch.equal(ksampler(reuse(ltx_model, bank, strictness=ANYTHING), ask, **rated(8)), dense)
    assert "frame_rate" in page.last["reason"]


def test_the_same_weights_loaded_again_are_the_same_model(wan_model: Any, bank: Any, page: Page) -> None:
    kept = ksampler(reuse(wan_model, bank), Ask())
    assert torch.equal(ksampler(reuse(wan(), bank), Ask()), kept)
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


def test_one_model_feeds_two_samplers(wan_model: Any, stock: Stock, bank: Any, page: Page) -> None:
    with_node = reuse(wan_model, bank)
    small, large = Ask(steps=10), Ask(steps=8, shape=(1, 16, 2, 12, 14))
    for ask in (small, large, small, large):
        assert torch.equal(ksampler(with_node, ask), stock(ask))
    assert [s["decision"] for s in page.summaries] == ["miss", "miss", "hit", "hit"]
    assert [s["steps"] for s in page.summaries] == [10, 8, 10, 8] and len(entries(bank)) == 2


def test_a_render_inside_another_s_callback_keeps_its_own_state(wan_model: Any, stock: Stock, bank: Any,
                                                               page: Page) -> None:
    inner, outer = Ask("a blue ring at night", seed=3), Ask()
    with_node, done = reuse(wan_model, bank), []

    def nested(i: int, *_: Any) -> None:
        if i == 5:
            done.append(ksampler(wan(), inner))
            done.append(ksampler(reuse(wan(), bank), inner))

    assert torch.equal(custom(with_node, outer, schedule(wan_model), nested), stock(outer))
    assert torch.equal(done[0], done[1])


def test_two_guiders_of_one_attachment_do_not_meet(wan_model: Any, stock: Stock, bank: Any, page: Page) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with_node, asks = reuse(wan_model, bank), (Ask(), Ask("two green rings at night", seed=3))
    dense = [stock(a) for a in asks]
    with ThreadPoolExecutor(1) as pool:  # one after the other in another thread: no state may ride on the thread
        outputs = list(pool.map(lambda a: ksampler(with_node, a), asks))
    assert all(torch.equal(a, b) for a, b in zip(outputs, dense, strict=True))


@pytest.mark.parametrize("mode", ["ours", "joint", "latent", "attention", "resume", "forecast"])
@pytest.mark.parametrize("family", ["wan", "ltx"])
def test_every_mode_of_reuse_renders_and_stays_out_of_the_bank(mode: str, family: str, request: pytest.FixtureRequest,
                                                              bank: Any, page: Page) -> None:
    model = request.getfixturevalue(f"{family}_model")
    shape = Ask().shape if family == "wan" else LTX_LATENT
    ksampler(reuse(model, bank), Ask(shape=shape))
    target = Ask("a blue ball on snow", shape=shape)
    output = ksampler(reuse(model, bank, mode=mode, strictness=ANYTHING, active_radius=0, context_radius=1), target)
    assert page.last["decision"] == "hit" and bool(output.isfinite().all())
    assert len(entries(bank)) == 1, "a render that was partly reused is no history"
    dense = ksampler(model, target)
    assert float((output - dense).norm()) < float((ksampler(model, Ask(shape=shape)) - dense).norm()) * 1.2


@pytest.mark.parametrize("mode", ["ours", "joint"])
def test_other_nodes_patches_are_never_left_out(mode: str, wan_model: Any, bank: Any, page: Page) -> None:
    patched = with_block(wan_model, 0.5)
    ksampler(reuse(patched, bank), Ask())
    ksampler(reuse(patched, bank, mode=mode, strictness=ANYTHING, active_radius=0), Ask("a blue ball on snow"))
    assert page.last["decision"] == "hit" and page.last["restricted"] == 0, "whole layers, with the patch in them"


def test_a_history_of_fifty_steps_serves_thirty(wan_model: Any, bank: Any, page: Page) -> None:
    ksampler(reuse(wan_model, bank), Ask(steps=50))
    target = Ask(steps=30)
    output = ksampler(reuse(wan_model, bank, mode="forecast", pace="balanced", strictness=ANYTHING), target)
    assert page.last["decision"] == "hit" and page.last["forecast"] >= 8
    assert page.last["computed"] + page.last["forecast"] + page.last["replayed"] == 30
    dense, fewer = ksampler(wan_model, target), ksampler(wan_model, Ask(steps=30 - page.last["forecast"]))
    assert float((output - dense).norm()) < 0.5 * float((fewer - dense).norm()), "far better than leaving the steps out"


def stacked(model: Any, seeds: tuple[int, ...], last: float = 1.0) -> Any:
    """Three LoRAs, each of all attention layers; `last`: a factor on one late layer of the last one."""
    import comfy.sd

    names = [f"diffusion_model.{n}" for n, m in model.model.diffusion_model.named_modules()
             if n.endswith((".q", ".k", ".v", ".o")) and "attn" in n]
    for number, seed in enumerate(seeds):
        made = torch.Generator().manual_seed(seed)
        lora = {}
        for name in names:
            lora |= {f"{name}.lora_A.weight": torch.randn(4, 256, generator=made) * 0.1,
                     f"{name}.lora_B.weight": torch.randn(256, 4, generator=made) * 0.1}
        if number == len(seeds) - 1:
            lora[f"{names[-1]}.lora_B.weight"] *= last
        model, _ = comfy.sd.load_lora_for_models(model, None, lora, 1.0, 0.0)
    return model


def test_each_of_many_loras_counts_to_its_last_layer(wan_model: Any) -> None:
    """Values that are made on the way and let go must not pass for ones that were seen."""
    from carnator.carnator_core.hosts.identity import patches_digest

    assert patches_digest(stacked(wan_model, (1, 2, 3))) == patches_digest(stacked(wan_model, (1, 2, 3)))
    changed = [(9, 2, 3), (1, 9, 3), (1, 2, 9), (1, 2), (2, 1, 3)]
    digests = {patches_digest(stacked(wan_model, seeds)) for seeds in [(1, 2, 3), *changed]}
    assert len(digests) == 1 + len(changed)
    assert patches_digest(stacked(wan_model, (1, 2, 3), 2.0)) not in digests, "one late layer of the last one"


def test_what_a_host_was_started_with_counts(wan_model: Any, bank: Any, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sage attention, --fast, a node that lets matrix products add up in half precision: never a replay of the other's."""
    from types import SimpleNamespace

    import comfy.ldm.modules.attention as host
    from comfy.cli_args import args

    with_node = reuse(wan_model, bank)
    ksampler(with_node, Ask())
    ksampler(with_node, Ask())
    assert page.last["computed"] == 0

    def sage(*given: Any, **options: Any) -> Tensor:
        return attention(*given, **options)  # type: ignore[no-any-return]

    attention = host.optimized_attention
    for change in (lambda p: p.setattr(host, "optimized_attention", sage),
                   lambda p: p.setattr(args, "fast", {"fp16_accumulation"}),
                   lambda p: p.setattr(torch.backends.cuda, "matmul", SimpleNamespace(allow_fp16_accumulation=True))):
        with pytest.MonkeyPatch.context() as patch:
            change(patch)
            ksampler(with_node, Ask())
            assert page.last["decision"] == "miss" and page.last["computed"] > 0, page.last["reason"]


def test_what_a_node_does_before_and_after_a_render_counts(wan_model: Any, bank: Any, page: Page) -> None:
    from comfy.patcher_extension import CallbacksMP

    ksampler(reuse(wan_model, bank), Ask())
    other = wan_model.clone()
    other.add_callback_with_key(CallbacksMP.ON_PRE_RUN, "settings", lambda patcher: None)
    ksampler(reuse(other, bank), Ask())
    assert page.last["decision"] == "miss"
    again = wan_model.clone()
    again.add_callback_with_key(CallbacksMP.ON_PRE_RUN, "settings", lambda patcher: None)
    again.remove_callbacks_with_key(CallbacksMP.ON_PRE_RUN, "settings")
    ksampler(reuse(again, bank), Ask())
    assert page.last["decision"] == "hit" and page.last["computed"] == 0


@shows("Wan2.1", "MultiGPU CFG Split", DECLINES)
def test_a_model_on_many_devices_is_left_to_the_host(wan_model: Any, bank: Any, page: Page,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    from carnator.carnator_core.hosts import eligible

    dense, with_node = ksampler(wan_model, Ask()), reuse(wan_model, bank)
    split = SimpleNamespace(get_additional_models_with_key=lambda key: [wan_model] if key == "multigpu" else [])
    assert eligible._on_many(split) and not eligible._on_many(with_node) and not eligible._on_many(SimpleNamespace())
    monkeypatch.setattr(eligible, "_on_many", lambda patcher: True)
    assert torch.equal(ksampler(with_node, Ask()), dense)
    assert "split over several GPUs" in page.said and entries(bank) == []


@pytest.mark.parametrize(("free", "dynamic", "used"), [(2.0, False, True), (1.0, False, False), (1.0, True, True)])
def test_a_vae_that_would_drive_the_model_out_is_left_alone(free: float, dynamic: bool, used: bool,
                                                            monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    import comfy.model_management as management
    from carnator.carnator_core.hosts.pictures import room_for

    patcher = SimpleNamespace(load_device=torch.device("cuda"), is_dynamic=lambda: dynamic, model_size=lambda: 1 << 20)
    vae = SimpleNamespace(patcher=patcher, vae_dtype=torch.float16, memory_used_decode=lambda shape, dtype: 4 * shape[2] << 20)
    monkeypatch.setattr(management, "get_free_memory", lambda device=None, **_: int(free * (9 << 20)))
    denoised = torch.zeros(16, 5, 8, 8)
    assert room_for(vae, patcher, denoised) is (vae if used else None) and room_for(None, patcher, denoised) is None
    on_cpu = SimpleNamespace(load_device=torch.device("cpu"))
    assert room_for(vae, on_cpu, denoised) is vae


def test_a_replay_that_is_not_bit_for_bit_says_so(wan_model: Any, bank: Any, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trajectory too large to be kept in float32 is kept compressed, as those of real clips are."""
    from carnator.carnator_core import record
    from carnator.carnator_core.bank import codec

    with_node = reuse(wan_model, bank)
    for limit, ending in ((1 << 26, "from the bank"), (1 << 10, "45 dB or better (a trajectory of this size is kept compressed)")):
        monkeypatch.setattr(record, "EXACT_BYTES", limit)
        monkeypatch.setattr(codec, "EXACT_LIMIT_BYTES", limit)
        ask = Ask(seed=limit % 7)
        dense = ksampler(with_node, ask)
        again = ksampler(with_node, ask)
        assert page.last["computed"] == 0 and page.last["reason"].endswith(ending), page.last["reason"]
        assert torch.equal(again, dense) == (limit > 1 << 20)
        assert float((again - dense).square().mean()) < 10**-4.5 * float(dense.max() - dense.min()) ** 2
