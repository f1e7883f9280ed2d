"""Blocks on a subset of tokens, against the host's own blocks; token grids and token sets without a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hosting
import pytest
import torch
from carnator.carnator_core.backbones.base import Tokens, gather, token_grid
from carnator.carnator_core.backbones.ltx import Ltx
from carnator.carnator_core.backbones.wan import Wan
from carnator.carnator_core.observe import Window
from matrix import WORKS, shows
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
GRID = (2, 4, 5)
COUNT = 40
host = pytest.mark.host


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def some(seed: int, share: float) -> Tensor:
    return torch.rand(GRID, generator=torch.Generator().manual_seed(seed)) < share


EVERYWHERE = torch.ones(GRID, dtype=torch.bool)


@pytest.mark.parametrize(("latent", "patch", "grid"), [
    ((16, 21, 60, 104), (1, 2, 2), (21, 30, 52)),
    ((16, 9, 67, 90), (1, 2, 2), (9, 34, 45)),  # 720 x 536 through the API: the height is odd and padded
    ((48, 31, 44, 80), (1, 2, 2), (31, 22, 40)),  # Wan 2.2 5B
    ((128, 13, 16, 24), (1, 1, 1), (13, 16, 24)),
    ((1, 16, 1, 1, 1), (1, 2, 2), (1, 1, 1)),
])
def test_the_token_grid_counts_whole_patches(latent: tuple[int, ...], patch: Any, grid: tuple[int, ...]) -> None:
    assert token_grid(latent, patch) == grid


def test_keys_hold_the_active_tokens_even_when_the_context_does_not() -> None:
    active, context = torch.zeros(GRID, dtype=torch.bool), torch.zeros(GRID, dtype=torch.bool)
    active[0, 0, 3], active[1, 1, 1], context[0, 0, :2] = True, True, True
    tokens = Tokens.of(active, context)
    assert tokens.active.tolist() == [3, 26] and tokens.keys.tolist() == [0, 1, 3, 26]
    assert tokens.keys[tokens.place].tolist() == tokens.active.tolist()


def test_a_value_for_all_tokens_is_handed_through_and_others_are_gathered() -> None:
    index = torch.tensor([2, 0])
    whole = random(0, 1, 1, 4)
    assert gather(whole, index) is whole
    assert torch.equal(gather(random(0, 1, 3, 4), index), random(0, 1, 3, 4)[:, [2, 0]])


@pytest.fixture(scope="module")
def wan_model(comfy: Any) -> Any:
    return hosting.wan().model.diffusion_model


@pytest.fixture(scope="module")
def ltx_model(comfy: Any) -> Any:
    return hosting.ltx().model.diffusion_model


Forward = Callable[[Any, dict[str, Any]], Tensor]


def wan_call(model: Any, rows: int | None) -> tuple[dict[str, Any], Callable[[Tensor, dict[str, Any]], Tensor]]:
    """The arguments of a replaced Wan block for two branches, and the block itself on other hidden states.

    rows: time steps an item, as [B, rows, 6, D]; None: as older hosts have it, [B, 6, D].
    """
    dim = model.dim
    vec = random(3, 2, 6, dim) * 0.3 if rows is None else random(3, 2, rows, 6, dim) * 0.3
    call = {"img": random(1, 2, COUNT, dim), "txt": random(2, 2, 12, dim), "vec": vec,
            "pe": model.rope_encode(2, 8, 10, dtype=torch.float32), "transformer_options": {}}

    def whole(x: Tensor, arguments: dict[str, Any]) -> Tensor:
        return model.blocks[0](x.clone(), context=arguments["txt"], e=arguments["vec"], freqs=arguments["pe"],
                               transformer_options={})
    return call, whole


def ltx_call(model: Any, rows: int) -> tuple[dict[str, Any], Callable[[Tensor, dict[str, Any]], Tensor]]:
    """The same for LTX-Video: vec is [B, rows, 6 D], rows 1 or one a token; the text has a mask."""
    seen: dict[str, Any] = {}

    def watch(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        seen.update(call)
        return extra["original_block"](call)  # type: ignore[no-any-return]

    # Positions and mask as the host's own forward makes them, whatever it calls the functions that do.
    dim, mask = model.inner_dim, torch.tensor([[1] * 9 + [0] * 3, [1] * 12])
    options = {"patches_replace": {"dit": {("double_block", 0): watch}}, "cond_or_uncond": [0, 1]}
    with torch.no_grad():
        model(random(4, 2, 128, *GRID), torch.full((2,), 0.5), random(9, 2, 12, 4096), mask, transformer_options=options)
    call = {"img": random(1, 2, COUNT, dim), "txt": random(2, 2, 12, dim), "attention_mask": seen["attention_mask"],
            "vec": random(3, 2, rows, 6 * dim) * 0.3, "pe": seen["pe"], "transformer_options": {}}

    def whole(x: Tensor, arguments: dict[str, Any]) -> Tensor:
        return model.transformer_blocks[0](x.clone(), context=arguments["txt"], timestep=arguments["vec"],
                                           attention_mask=arguments["attention_mask"], pe=arguments["pe"])
    return call, whole


def attention() -> Callable[..., Tensor]:
    from comfy.ldm.modules.attention import optimized_attention

    return optimized_attention  # type: ignore[no-any-return]


CASES = [("wan", None), ("wan", 1), ("wan", 2), ("wan", 3), ("wan", COUNT), ("ltx", 1), ("ltx", COUNT)]


def case(family: str, rows: int | None, request: pytest.FixtureRequest) -> tuple[Any, Any, dict[str, Any], Any]:
    """Backbone, block, its arguments and the block as a function."""
    model = request.getfixturevalue(f"{family}_model")
    backbone = Wan() if family == "wan" else Ltx()
    call, whole = wan_call(model, rows) if family == "wan" else ltx_call(model, rows or 1)
    return backbone, backbone.blocks(model)[0], call, whole


@host
@pytest.mark.parametrize(("family", "rows"), CASES)
@torch.inference_mode()
def test_with_the_region_everywhere_a_restricted_block_is_the_block(family: str, rows: int | None,
                                                                    request: pytest.FixtureRequest) -> None:
    backbone, block, call, whole = case(family, rows, request)
    before = call["img"].clone()
    restricted = backbone.restricted(block, call["img"], call, Tokens.of(EVERYWHERE, EVERYWHERE), attention())
    torch.testing.assert_close(restricted, whole(before, call), atol=1e-5, rtol=1e-5)
    assert torch.equal(call["img"], before), "the hidden states that were handed over are not written to"


@host
@pytest.mark.parametrize(("family", "rows"), CASES)
@torch.inference_mode()
def test_active_tokens_that_see_all_tokens_come_out_as_in_the_block(family: str, rows: int | None,
                                                                    request: pytest.FixtureRequest) -> None:
    backbone, block, call, whole = case(family, rows, request)
    tokens = Tokens.of(some(5, 0.3), EVERYWHERE)
    restricted = backbone.restricted(block, call["img"], call, tokens, attention())
    torch.testing.assert_close(restricted, whole(call["img"], call)[:, tokens.active], atol=1e-5, rtol=1e-5)


@host
@pytest.mark.parametrize(("family", "rows"), CASES)
@torch.inference_mode()
def test_active_tokens_look_at_the_context_and_at_nothing_else(family: str, rows: int | None,
                                                               request: pytest.FixtureRequest) -> None:
    backbone, block, call, whole = case(family, rows, request)
    tokens = Tokens.of(some(5, 0.2), some(6, 0.5))
    hidden = call["img"].index_select(1, tokens.keys)
    restricted = backbone.restricted(block, hidden, call, tokens, attention())
    masked = _only(call, tokens.keys)
    torch.testing.assert_close(restricted, whole(hidden, masked)[:, tokens.place], atol=1e-5, rtol=1e-5)


def _only(call: dict[str, Any], keys: Tensor) -> dict[str, Any]:
    """A block's arguments as if the clip consisted of these tokens."""
    pe, vec = call["pe"], call["vec"]
    cut = {**call, "pe": (pe[0].index_select(1, keys), *pe[1:]) if isinstance(pe, tuple) else pe.index_select(1, keys)}
    per_token = vec
    if vec.ndim == 4 and 1 < vec.shape[1] < COUNT:  # per frame, in the host's own rounding
        per_token = vec.repeat_interleave(-(-COUNT // vec.shape[1]), 1)[:, :COUNT]
    if per_token.shape[1] == COUNT:
        cut["vec"] = per_token.index_select(1, keys)
    return cut


def through(model: Any, family: str, x: Tensor, replace: dict[Any, Any]) -> Tensor:
    """A whole forward of the host's model on [2, C, T, H, W], conditional and unconditional, with replaced blocks."""
    options = {"patches_replace": {"dit": replace}, "cond_or_uncond": [0, 1]}
    time, text = torch.full((2,), 0.5), random(9, 2, 12, 4096)
    if family == "wan":
        return model(x, time, text, transformer_options=options)
    return model(x, time, text, torch.ones(2, 12, dtype=torch.long), transformer_options=options)


def replaced(window: Window, restrict: bool) -> dict[Any, Any]:
    def at(layer: int) -> Callable[..., dict[str, Any]]:
        def block(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
            if restrict:
                return window.restricted(layer, call)
            return window.full(layer, call, extra["original_block"])
        return block
    return {("double_block", i): at(i) for i in range(window.first, window.last)}


def window_of(family: str, model: Any, active: Tensor, context: Tensor, first: int, last: int) -> Window:
    backbone = Wan() if family == "wan" else Ltx()
    return Window(backbone, backbone.blocks(model), first, last, Tokens.of(active, context), attention())


SHAPES = {"wan": (2, 16, 2, 8, 10), "ltx": (2, 128, 2, 4, 5)}


@pytest.fixture(scope="module")
def deep(comfy: Any) -> dict[str, Any]:
    """Models of four layers, for windows in the middle."""
    return {"wan": hosting.wan(layers=4).model.diffusion_model, "ltx": hosting.ltx(layers=4).model.diffusion_model}


@host
@pytest.mark.parametrize("family", ["wan", "ltx"])
@pytest.mark.parametrize(("first", "last"), [(1, 3), (0, 4), (2, 3)])
@torch.inference_mode()
def test_a_window_in_a_whole_step_changes_nothing(family: str, first: int, last: int, deep: dict[str, Any]) -> None:
    model, x = deep[family], random(20, *SHAPES[family])
    window = window_of(family, model, some(5, 0.3), some(6, 0.5), first, last)
    assert not window.ready((0, 1))
    assert torch.equal(through(model, family, x, replaced(window, False)), through(model, family, x, {}))
    assert window.ready((0, 1))


@host
@pytest.mark.parametrize("family", ["wan", "ltx"])
@pytest.mark.parametrize(("first", "last"), [(1, 3), (0, 4), (2, 3)])
@torch.inference_mode()
def test_a_restricted_step_with_the_region_everywhere_is_a_whole_step(family: str, first: int, last: int,
                                                                      deep: dict[str, Any]) -> None:
    model = deep[family]
    window = window_of(family, model, EVERYWHERE, EVERYWHERE, first, last)
    through(model, family, random(20, *SHAPES[family]), replaced(window, False))
    x = random(21, *SHAPES[family])
    restricted = through(model, family, x, replaced(window, True))
    torch.testing.assert_close(restricted, through(model, family, x, {}), atol=1e-5, rtol=1e-4)


@host
@pytest.mark.parametrize("family", ["wan", "ltx"])
@torch.inference_mode()
def test_a_restricted_step_at_the_same_state_is_the_whole_step_again(family: str, deep: dict[str, Any]) -> None:
    """At an unchanged state the kept differences are exact, so that even a small region gives the whole answer."""
    model, x = deep[family], random(20, *SHAPES[family])
    context = EVERYWHERE
    window = window_of(family, model, some(5, 0.3), context, 1, 3)
    whole = through(model, family, x, replaced(window, False))
    torch.testing.assert_close(through(model, family, x, replaced(window, True)), whole, atol=1e-5, rtol=1e-4)


@host
@pytest.mark.parametrize("family", ["wan", "ltx"])
@torch.inference_mode()
def test_tokens_outside_the_region_take_the_last_whole_step_s_difference(family: str, deep: dict[str, Any]) -> None:
    model = deep[family]
    active = some(5, 0.3)
    window = window_of(family, model, active, some(6, 0.5), 1, 3)
    seen: dict[str, list[Tensor]] = {"in": [], "out": []}

    def watching(restrict: bool) -> dict[Any, Any]:
        blocks = replaced(window, restrict)
        start, end = blocks[("double_block", 1)], blocks[("double_block", 2)]

        def first(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
            seen["in"].append(call["img"].clone())
            return start(call, extra)

        def last(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
            out = end(call, extra)
            seen["out"].append(out["img"].clone())
            return out
        return {("double_block", 1): first, ("double_block", 2): last}

    through(model, family, random(20, *SHAPES[family]), watching(False))
    through(model, family, random(21, *SHAPES[family]), watching(True))
    outside = (~active).flatten()
    whole, restricted = (seen["out"][i] - seen["in"][i] for i in (0, 1))
    torch.testing.assert_close(restricted[:, outside], whole[:, outside], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(restricted[:, ~outside], whole[:, ~outside])


@host
@torch.inference_mode()
def test_branches_that_are_batched_once_and_split_later_find_their_own_differences(deep: dict[str, Any]) -> None:
    model, x = deep["wan"], random(20, *SHAPES["wan"])
    window = window_of("wan", model, some(5, 0.3), EVERYWHERE, 1, 3)
    whole = through(model, "wan", x, replaced(window, False))
    text, time = random(9, 2, 12, 4096), torch.full((1,), 0.5)
    for item, branch in ((1, 1), (0, 0)):  # as a host short of memory runs them: one by one, in its own order
        options = {"patches_replace": {"dit": replaced(window, True)}, "cond_or_uncond": [branch]}
        alone = model(x[item:item + 1], time, text[item:item + 1], transformer_options=options)
        torch.testing.assert_close(alone[0], whole[item], atol=1e-5, rtol=1e-4)


@host
def test_the_families_that_are_served_and_those_that_are_not(comfy: Any) -> None:
    from types import SimpleNamespace

    from carnator.carnator_core.hosts.eligible import backbone_of

    class WanModel:
        img_emb: object | None = None

    class VaceWanModel(WanModel):
        pass

    assert isinstance(backbone_of(hosting.wan().model), Wan)
    assert isinstance(backbone_of(hosting.wan(channels=48).model), Wan)
    assert isinstance(backbone_of(hosting.ltx().model), Ltx)
    image = WanModel()
    image.img_emb = object()
    for other in (image, VaceWanModel(), object(), None):
        assert backbone_of(SimpleNamespace(diffusion_model=other)) is None


# Weights of one layer, with the heads of the models that people load; the other sizes follow from them by detection.
REAL = {
    "Wan2.1 1.3B": ({"heads": 12}, hosting.WAN_LATENT, (12, 128), "Wan2.1"),
    "Wan2.1 14B": ({"heads": 40}, hosting.WAN_LATENT, (40, 128), "Wan2.1"),
    "Wan2.2 5B": ({"heads": 24, "channels": 48}, (1, 48, *hosting.WAN_LATENT[2:]), (24, 128), "Wan2.2 5B"),
    "LTX 2B": ({"heads": 32, "head": 64}, hosting.LTX_LATENT, (32, 64), "LTX-Video"),
    "LTX 13B": ({"heads": 32, "head": 128}, hosting.LTX_LATENT, (32, 128), "LTX-Video"),
}


@host
@pytest.mark.parametrize("name", [pytest.param(name, id=name, marks=shows(size[3], "real head counts and sizes, one layer", WORKS))
                                  for name, size in REAL.items()])
def test_real_head_counts_are_detected_recorded_replayed_and_restricted(name: str, comfy: Any, bank: Any,
                                                                       page: hosting.Page) -> None:
    given, shape, heads, _ = REAL[name]
    family = "ltx" if "head" in given else "wan"
    patcher = hosting.ltx(layers=1, **given) if family == "ltx" else hosting.wan(layers=1, **given)
    model = patcher.model.diffusion_model
    attention_ = model.transformer_blocks[0].attn1 if family == "ltx" else model.blocks[0].self_attn
    assert (attention_.heads if family == "ltx" else attention_.num_heads, attention_.dim_head if family == "ltx"
            else attention_.head_dim) == heads
    ask = hosting.Ask(shape=shape, steps=4)
    dense = hosting.ksampler(patcher, ask)
    with_node = hosting.reuse(patcher, bank, probe_steps=1, mode="joint", strictness=hosting.ANYTHING, active_radius=0)
    assert torch.equal(hosting.ksampler(with_node, ask), dense)
    assert torch.equal(hosting.ksampler(with_node, ask), dense) and page.last["computed"] == 0
    hosting.ksampler(with_node, hosting.Ask("a blue ball on snow", shape=shape, steps=4))
    assert page.last["decision"] == "hit" and page.last["restricted"] > 0
    with torch.inference_mode():
        window = window_of(family, model, EVERYWHERE, EVERYWHERE, 0, 1)
        x = random(20, 2, *shape[1:])
        whole = through(model, family, x, replaced(window, False))
        torch.testing.assert_close(through(model, family, x, replaced(window, True)), whole, atol=1e-4, rtol=1e-3)
