"""On the real host: block connectivity is recorded without a trace and followed with the target's own Q, K and V."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carnator.carnator_core import connectivity
from carnator.carnator_core import reuse as core
from carnator.carnator_core.request import Settings
from hosting import ANYTHING, LTX_LATENT, Ask, Page, entries, ksampler
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host
LATENTS = {"wan": (1, 16, 2, 16, 18), "ltx": (1, LTX_LATENT[1], 2, 8, 9)}  # 144 tokens: 2 x 3 blocks
NEAR = "a blue ball on snow"


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sparse attention is taken for small clips too."""
    monkeypatch.setattr(core, "worthwhile", lambda *_: True)
    monkeypatch.setattr(connectivity, "worthwhile", lambda *_: True)


def attached(model: Any, bank: Any, **settings: Any) -> Any:
    from carnator.carnator_core.hosts import comfy as door
    from carnator.nodes.status import reporter, speaker

    made = Settings(**{"strictness": ANYTHING, "active": 0, "context": 1, "tolerance": 0.0, **settings})
    return door.attach(model, door.Attachment(made, bank.bank, say=speaker("1"), done=reporter("1")))


def near(output: Tensor, dense: Tensor) -> float:
    return float((output - dense).norm() / dense.norm())


@pytest.mark.parametrize("family", ["wan", "ltx"])
def test_a_recording_leaves_the_render_as_it_is_and_following_all_blocks_does_too(
        family: str, request: pytest.FixtureRequest, bank: Any, page: Page) -> None:
    model, shape = request.getfixturevalue(f"{family}_model"), LATENTS[family]
    ask, target = Ask(shape=shape), Ask(NEAR, shape=shape)
    assert torch.equal(ksampler(attached(model, bank, coverage=1.0), ask), ksampler(model, ask))
    (kept,) = entries(bank)
    found = connectivity.Connectivity.from_tensors(bank.bank.load(kept.id).connectivity)
    assert found.tokens == 144 and found.density() == 1.0
    assert {key[1:] for key in found.bits} == {(branch, layer) for branch in (0, 1) for layer in (0, 1)}
    output = ksampler(attached(model, bank, mode="attention"), target)
    assert page.last["decision"] == "hit" and page.last["density"] == 1.0
    assert near(output, ksampler(model, target)) < 1e-4, "with every block kept it is the dense render"


@pytest.mark.parametrize("mode", ["attention", "joint"])
def test_fewer_blocks_are_followed_in_the_whole_and_in_the_restricted_layers(mode: str, wan_model: Any, bank: Any,
                                                                            page: Page) -> None:
    shape = LATENTS["wan"]
    ksampler(attached(wan_model, bank, coverage=0.3), Ask(shape=shape))
    output = ksampler(attached(wan_model, bank, mode=mode), Ask(NEAR, shape=shape))
    assert page.last["decision"] == "hit" and 0 < page.last["density"] < 1
    assert (page.last["restricted"] > 0) == (mode == "joint") and bool(output.isfinite().all())


def test_another_pack_s_attention_is_neither_recorded_nor_replaced(wan_model: Any, bank: Any, page: Page) -> None:
    patched = wan_model.clone()
    patched.model_options["transformer_options"]["optimized_attention_override"] = (
        lambda func, *args, **kwargs: func(*args, **kwargs) * 0.9)
    shape = LATENTS["wan"]
    assert torch.equal(ksampler(attached(patched, bank), Ask(shape=shape)), ksampler(patched, Ask(shape=shape)))
    (kept,) = entries(bank)
    assert bank.bank.load(kept.id).connectivity == {}


@pytest.mark.parametrize("family", ["wan", "ltx"])
@torch.inference_mode()
def test_the_last_latent_row_is_no_worse_than_the_middle_ones(family: str, comfy: Any) -> None:
    """The ragged end of the token order and of a padded latent: no fault may gather there."""
    from dataclasses import replace

    from carnator.bench._shapes import Stand
    from carnator.bench.gpu import TINY

    tiny = TINY[family == "ltx"]
    odd = replace(tiny, latent=(*tiny.latent[:2], tiny.latent[2] - 1, tiny.latent[3]))
    stand = Stand(odd, "cpu", torch.float32, share=0.2)
    dense, recorder = stand.evaluate("dense"), stand.recorder()
    recorder.coverage, recorder.diffuse = 0.4, 1.1  # random heads are diffuse: none is to stay dense
    stand.evaluate("dense", recorder)
    kept = recorder.finish()
    assert kept is not None and kept.tokens % kept.block_q and kept.tokens % kept.block_k and kept.density() < 1
    stand.following = kept
    error = (stand.evaluate("attention") - dense).square().mean((0, 1, 2, 4)).sqrt()
    assert float(error.max()) > 0, "blocks were left out"
    rows = 2 if family == "wan" else 1  # latent rows a token row
    assert float(error[-rows:].mean()) <= 1.25 * float(error[rows:-rows].max())
