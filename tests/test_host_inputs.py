"""On the real host: what Carnator cannot serve is rendered as ever, and said in a sentence."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hosting import (
    ANYTHING,
    LTX_LATENT,
    NOTHING_FITS,
    WAN_LATENT,
    Ask,
    Page,
    bank_at,
    custom,
    encode,
    entries,
    granular,
    ksampler,
    latent,
    node,
    reuse,
    run_node,
    schedule,
    wan,
)
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
Stock = Callable[[Ask], Tensor]


@pytest.fixture(scope="module")
def filled(wan_model: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A bank that holds the default request."""
    kept = bank_at(tmp_path_factory.mktemp("filled"))
    ksampler(reuse(wan_model, kept), Ask())
    assert len(entries(kept)) == 1
    return kept


def combined() -> Any:
    import nodes

    return nodes.ConditioningCombine().combine(encode("a red ball"), encode("a blue ring"))[0]


def ranged() -> Any:
    import nodes

    return nodes.ConditioningSetTimestepRange().set_range(encode(Ask().text), 0.0, 0.5)[0]


def regional() -> Any:
    area = ("percentage", 1.0, 0.5, 0.5, 0.0, 0.0, 0.0)
    return [[t, {**extra, "area": area, "set_area_to_bounds": False}] for t, extra in encode(Ask().text)]


def masked(shape: tuple[int, ...] = WAN_LATENT) -> dict[str, Any]:
    mask = torch.zeros(1, 1, *shape[-2:])
    mask[..., : shape[-2] // 2, :] = 1
    return {**latent(shape), "noise_mask": mask}


def started() -> dict[str, Any]:
    return {"samples": torch.randn(WAN_LATENT, generator=torch.Generator().manual_seed(0))}


BAD: dict[str, tuple[Ask, Callable[[], dict[str, Any]], str]] = {
    "four steps": (Ask(steps=4), dict, "4 steps and the probe takes 4"),
    "batch of two": (Ask(shape=(2, *WAN_LATENT[1:])), dict, "batch holds 2 videos"),
    "noise mask": (Ask(), lambda: {"latent_image": masked()}, "noise mask"),
    "another latent": (Ask(denoise=0.6), lambda: {"latent_image": started()}, "starts from an image or another latent"),
    "part of the noise": (Ask(denoise=0.4), dict, "a part of a render"),
    "two positive prompts": (Ask(), lambda: {"positive": combined()}, "positive conditioning has 2 parts"),
    "two negative prompts": (Ask(), lambda: {"negative": combined()}, "negative conditioning has 2 parts"),
    "a prompt for some steps": (Ask(), lambda: {"positive": ranged()}, "carries"),
    "a prompt for some area": (Ask(), lambda: {"positive": regional()}, "carries"),
}


@pytest.mark.parametrize("name", BAD)
def test_carnator_reuse_steps_aside_in_words(name: str, wan_model: Any, filled: Any, page: Page,
                                             caplog: pytest.LogCaptureFixture) -> None:
    ask, changes, words = BAD[name]
    dense = ksampler(wan_model, ask, **changes())
    with caplog.at_level(logging.INFO, "carnator"):
        output = ksampler(reuse(wan_model, filled, strictness=ANYTHING), ask, **changes())
    assert torch.equal(output, dense)
    assert words in page.said and page.said.startswith("dense: ")
    assert words in caplog.text and caplog.text.isascii()
    assert len(entries(filled)) == 1, "and nothing of it is remembered"


@pytest.mark.parametrize("name", BAD)
def test_the_granular_nodes_step_aside_in_words(name: str, wan_model: Any, filled: Any, page: Page,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    ask, changes, words = BAD[name]
    given = {**ask.inputs(), **changes()}
    monkeypatch.setattr(Ask, "inputs", lambda self: given)
    output, decision = granular(wan_model, filled, ask)
    monkeypatch.undo()
    assert not decision.verdict.accepted and words in decision.verdict.reason
    assert torch.equal(output, ksampler(wan_model, ask, **changes()))


@pytest.mark.parametrize("count", [0, 1])
def test_a_schedule_without_steps(count: int, wan_model: Any, filled: Any, page: Page) -> None:
    sigmas = torch.zeros(count)
    assert torch.equal(custom(reuse(wan_model, filled), Ask(), sigmas), custom(wan_model, Ask(), sigmas))
    assert count == 0 or "there is nothing to render" in page.said
    assert len(entries(filled)) == 1


def test_a_schedule_that_stands_still(wan_model: Any, filled: Any, page: Page) -> None:
    sigmas = torch.zeros(2)
    output, dense = custom(reuse(wan_model, filled), Ask(), sigmas), custom(wan_model, Ask(), sigmas)
    assert torch.equal(output.isnan(), dense.isnan())
    assert "1 steps and the probe takes 4" in page.said


def test_the_rest_of_a_render_that_began_elsewhere(wan_model: Any, filled: Any, page: Page) -> None:
    import nodes

    @torch.inference_mode()
    def rest(model: Any) -> Tensor:
        given = Ask(steps=16).inputs()
        return nodes.KSamplerAdvanced().sample(
            model=model, add_noise="disable", noise_seed=given["seed"], steps=16, cfg=5.0, sampler_name="euler",
            scheduler="simple", positive=given["positive"], negative=given["negative"], latent_image=started(),
            start_at_step=4, end_at_step=10000, return_with_leftover_noise="disable")[0]["samples"]

    assert torch.equal(rest(reuse(wan_model, filled, probe_steps=1, strictness=ANYTHING)), rest(wan_model))
    assert page.said.startswith("dense: ") and len(entries(filled)) == 1


def easycache(model: Any) -> Any:
    from comfy_extras.nodes_easycache import EasyCacheNode

    return EasyCacheNode.execute(model, 0.2, 0.15, 0.95, False).result[0]


def lazycache(model: Any) -> Any:
    from comfy_extras.nodes_easycache import LazyCacheNode

    return LazyCacheNode.execute(model, 0.2, 0.15, 0.95, False).result[0]


def guided_by_others(model: Any) -> Any:
    clone = model.clone()
    clone.set_model_sampler_post_cfg_function(lambda args: args["denoised"] * 0.9)
    return clone


def wrapped(model: Any) -> Any:
    clone = model.clone()
    clone.set_model_unet_function_wrapper(lambda apply, args: apply(args["input"], args["timestep"], **args["c"]))
    return clone


@pytest.mark.parametrize(("neighbour", "words"), [(easycache, "easycache is on"), (lazycache, "cache is on"),
                                                  (guided_by_others, "sampler_post_cfg_function"),
                                                  (wrapped, "model_function_wrapper")])
@pytest.mark.parametrize("first", [True, False])
def test_neighbours_that_change_the_sampling(neighbour: Callable[[Any], Any], words: str, first: bool, wan_model: Any,
                                             filled: Any, page: Page) -> None:
    dense = ksampler(neighbour(wan_model), Ask())
    both = reuse(neighbour(wan_model), filled) if first else neighbour(reuse(wan_model, filled))
    assert torch.equal(ksampler(both, Ask()), dense)
    assert words in page.said and len(entries(filled)) == 1


def test_a_guider_with_passes_of_its_own(wan_model: Any, filled: Any, page: Page) -> None:
    from comfy_extras.nodes_custom_sampler import DualCFGGuider

    def render(model: Any) -> Tensor:
        both = encode("a red ball"), encode("on snow")
        guider = run_node(DualCFGGuider, model, *both, encode(""), 3.0, 2.0, "regular")
        return custom(model, Ask(), schedule(model), guider=guider)

    assert torch.equal(render(reuse(wan_model, filled)), render(wan_model))
    assert "passes of its own" in page.said


def test_no_bank_at_all(wan_model: Any, stock: Stock, page: Page) -> None:
    output, decision = granular(wan_model, None, Ask())
    assert decision.verdict.reason == "no bank is connected" and torch.equal(output, stock(Ask()))


def test_without_a_bank_link_the_default_bank_is_used(wan_model: Any, stock: Stock, page: Page) -> None:
    import folder_paths

    assert torch.equal(ksampler(reuse(wan_model, None), Ask()), stock(Ask()))
    kept = bank_at(Path(folder_paths.get_user_directory()) / "carnator" / "default")
    assert len(entries(kept)) == 1


def test_an_empty_bank(wan_model: Any, stock: Stock, bank: Any, page: Page) -> None:
    output, decision = granular(wan_model, bank, Ask())
    assert "the bank is empty" in decision.verdict.reason and torch.equal(output, stock(Ask()))


def test_a_bank_of_another_model(filled: Any, page: Page) -> None:
    other = wan(seed=1)
    dense = ksampler(other, Ask())
    assert torch.equal(ksampler(reuse(other, filled, strictness=ANYTHING, remember=False), Ask()), dense)
    assert "made with these settings; the closest differs in: weights" in page.last["reason"]
    output, decision = granular(other, replace(filled, record=False), Ask())
    assert torch.equal(output, dense) and "weights" in decision.verdict.reason


def test_a_latent_of_another_family(wan_model: Any, filled: Any, page: Page) -> None:
    ask = Ask(shape=LTX_LATENT)  # the host makes an empty latent fit the model
    dense = ksampler(wan_model, ask)
    assert torch.equal(ksampler(reuse(wan_model, filled, remember=False), ask), dense)
    assert "the closest differs in: latent" in page.last["reason"]


@pytest.mark.parametrize("text", ["", "slowly and beautifully", "4k, highly detailed, cinematic",
                                  "\u4e00\u53ea\u7ea2\u8272\u7684\u72d0\u72f8"])
def test_a_prompt_that_names_nothing_known(text: str, wan_model: Any, stock: Stock, filled: Any, page: Page) -> None:
    ask = Ask(text)
    output = ksampler(reuse(wan_model, filled, remember=False), ask)
    assert torch.equal(output, stock(ask))
    assert page.last["decision"] == "miss" and len(page.last["reason"]) > 20
    latent_, decision = granular(wan_model, replace(filled, record=False), ask, NOTHING_FITS)
    assert torch.equal(latent_, stock(ask)) and decision.verdict.reason


def test_an_empty_prompt_alone_in_its_bank_is_remembered_and_repeated(wan_model: Any, stock: Stock, bank: Any,
                                                                     page: Page) -> None:
    for decision in ("miss", "hit"):
        assert torch.equal(ksampler(reuse(wan_model, bank), Ask("")), stock(Ask("")))
        assert page.last["decision"] == decision


def test_conditioning_of_the_host_s_own_encoder_is_served_too(wan_model: Any, stock: Stock, bank: Any,
                                                             page: Page) -> None:
    plain = {"positive": encode(Ask().text, stock=True), "negative": encode("", stock=True)}
    graph = {"1": {"class_type": "CarnatorReuse", "inputs": {"model": ["9", 0]}},
             "2": {"class_type": "CLIPTextEncode", "inputs": {"text": Ask().text, "clip": ["8", 0]}},
             "3": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["2", 0]}}}
    with_node = node("CarnatorReuse", graph).execute(wan_model, "balanced", "any seed (fastest)", bank=bank).result[0]
    assert torch.equal(ksampler(with_node, Ask(), **plain), stock(Ask()))
    (kept,) = entries(bank)
    assert kept.prompt == Ask().text and page.last["prompt"] == Ask().text


def test_a_vae_that_cannot_decode_costs_the_colours_alone(wan_model: Any, stock: Stock, bank: Any, page: Page,
                                                          caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def decode(self, samples: Tensor) -> Tensor:
            raise RuntimeError("expected 4 channels, got 16")

    with caplog.at_level(logging.WARNING, "carnator"):
        for ask in (Ask(), Ask("a blue ball on snow")):
            assert torch.equal(ksampler(reuse(wan_model, bank, vae=Broken(), strictness=1e-9), ask), stock(ask))
    assert "this VAE cannot decode" in caplog.text and len(entries(bank)) == 2


def test_an_entry_that_is_cut_short_is_a_miss_and_one_warning(wan_model: Any, stock: Stock, bank: Any, page: Page,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    ksampler(reuse(wan_model, bank), Ask())
    entries(bank)
    for file in bank.bank.folder.rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[:-1])
    with caplog.at_level(logging.WARNING, "carnator"):
        assert torch.equal(ksampler(reuse(wan_model, bank_at(bank.bank.folder)), Ask()), stock(Ask()))
    assert page.last["decision"] == "miss" and "carnator" in caplog.text.lower()


def test_a_bank_folder_that_is_a_file_is_a_miss(wan_model: Any, stock: Stock, tmp_path: Path, page: Page) -> None:
    (tmp_path / "bank").write_text("not a folder")
    assert torch.equal(ksampler(reuse(wan_model, bank_at(tmp_path / "bank")), Ask()), stock(Ask()))
    assert page.last["decision"] == "miss"


def test_a_render_that_is_not_a_number_is_refused(bank: Any, page: Page, caplog: pytest.LogCaptureFixture) -> None:
    broken = wan()
    with torch.no_grad():
        broken.model.diffusion_model.head.head.bias.fill_(float("nan"))
    with caplog.at_level(logging.INFO, "carnator"):
        assert bool(ksampler(reuse(broken, bank), Ask()).isnan().all())
        assert entries(bank) == []
    assert "did not keep this render" in caplog.text


def test_a_status_line_that_fails_costs_nothing(wan_model: Any, stock: Stock, bank: Any, page: Page,
                                                monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ConnectionError("the page is gone")

    monkeypatch.setattr(page, "send_sync", fail)
    assert torch.equal(ksampler(reuse(wan_model, bank), Ask()), stock(Ask()))
