"""One call's own patches, without a host: they chain what was there, and leave the options they come from alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from carnator.carnator_core.connectivity import Recorder
from carnator.carnator_core.hosts.identity import forward_digest
from carnator.carnator_core.hosts.patching import Patched, cfg_pp_functions, restrictable
from carnator.carnator_core.sparse import Recording
from torch import Tensor


class Connect:
    """Computes every self-attention as ones, and notes for which layers and branches."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, list[int]]] = []

    def attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, heads: int, kinds: list[int]) -> Tensor | None:
        self.asked.append((layer, list(kinds)))
        return torch.ones_like(q)


class Reader:
    """Notes what it is shown."""

    layers = (1,)

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def attention(self, layer: int, order: int, *_: Any) -> None:
        self.seen.append((layer, order))


def host_attention(q: Tensor, k: Tensor, v: Tensor, heads: int, **kwargs: Any) -> Tensor:
    return torch.zeros_like(q)


def forward(options: dict[str, Any], layers: int = 2, **kwargs: Any) -> list[Tensor]:
    """A model of `layers` blocks, each with a self- and a cross-attention, as the hosts run theirs."""
    transformer = {**options["transformer_options"], "cond_or_uncond": [0, 1]}
    override = transformer.get("optimized_attention_override")
    outputs: list[Tensor] = []
    q = torch.full((2, 3, 4), 5.0)

    def block(call: dict[str, Any]) -> dict[str, Any]:
        for _ in range(2):
            given = {"transformer_options": transformer, **kwargs}
            outputs.append(override(host_attention, q, q, q, 1, **given) if override else host_attention(q, q, q, 1))
        return {"img": call["img"] + 1}

    x = q
    for i in range(layers):
        call = {"img": x, "transformer_options": transformer}
        replaced = transformer.get("patches_replace", {}).get("dit", {}).get(("double_block", i))
        x = (replaced(call, {"original_block": block}) if replaced else block(call))["img"]
    assert torch.equal(x, q + layers)
    return outputs


def patched(options: dict[str, Any], **what: Any) -> Patched:
    values: dict[str, Any] = {"reader": None, "window": None, "restrict": False, "connect": None, "capture": False}
    return Patched(options, 2, **{**values, **what})


def test_nothing_to_do_leaves_the_options_themselves() -> None:
    options: dict[str, Any] = {"transformer_options": {}}
    assert patched(options).options is options


def test_self_attention_alone_is_computed_and_in_the_right_layer() -> None:
    connect = Connect()
    outputs = forward(patched({"transformer_options": {}}, connect=connect).options)
    assert [float(o.mean()) for o in outputs] == [1, 0, 1, 0] and connect.asked == [(0, [0, 1]), (1, [0, 1])]


def test_a_sequence_with_other_tokens_than_the_clip_s_is_not_recorded() -> None:
    recorder = Recorder((1, 2, 2), [1.0, 0.5, 0.0], every=1)
    recording = Recording(recorder, 1.0)
    for tokens in (5, 4):
        q = torch.ones(1, tokens, 8)
        assert recording.attention(0, q, q, q, 2, [0]) is None
        assert (recorder.finish() is not None) == (tokens == 4)


def test_the_reader_sees_both_attentions_of_its_layers() -> None:
    reader = Reader()
    outputs = forward(patched({"transformer_options": {}}, reader=reader).options)
    assert (1, 1) in reader.seen and (1, 2) in reader.seen and all(float(o.mean()) == 0 for o in outputs)


@pytest.mark.parametrize("kwargs", [{"mask": torch.zeros(1)}, {"skip_reshape": True}, {"skip_output_reshape": True},
                                    {"enable_gqa": True}, {"something_new": 3}])
def test_a_mask_and_arguments_nobody_knows_are_left_to_the_host(kwargs: dict[str, Any]) -> None:
    connect = Connect()
    outputs = forward(patched({"transformer_options": {}}, connect=connect).options, **kwargs)
    assert not connect.asked and all(float(o.mean()) == 0 for o in outputs)


@pytest.mark.parametrize("kwargs", [{"mask": None}, {"attn_precision": torch.float32}, {"skip_reshape": False}])
def test_arguments_that_change_nothing_are_no_obstacle(kwargs: dict[str, Any]) -> None:
    connect = Connect()
    forward(patched({"transformer_options": {}}, connect=connect).options, **kwargs)
    assert len(connect.asked) == 2


def test_another_pack_s_attention_is_chained_and_keeps_its_effect() -> None:
    given: list[dict[str, Any]] = []

    def theirs(func: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        given.append(kwargs)
        return func(*args, **kwargs) + 7

    options: dict[str, Any] = {"transformer_options": {"optimized_attention_override": theirs}}
    connect, reader = Connect(), Reader()
    outputs = forward(patched(options, connect=connect, reader=reader).options, something_new=3)
    assert all(float(o.mean()) == 7 for o in outputs) and not connect.asked and (1, 2) in reader.seen
    assert all(kwargs["something_new"] == 3 for kwargs in given)
    assert options["transformer_options"] == {"optimized_attention_override": theirs}


def test_another_pack_s_block_is_chained_and_the_options_stay() -> None:
    calls: list[int] = []

    def theirs(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return extra["original_block"](call)  # type: ignore[no-any-return]

    replace = {"dit": {("double_block", 1): theirs}}
    options: dict[str, Any] = {"transformer_options": {"patches_replace": replace}}
    made = patched(options, reader=Reader()).options
    forward(made)
    assert calls == [1]
    assert options == {"transformer_options": {"patches_replace": {"dit": {("double_block", 1): theirs}}}}
    assert not restrictable(options, {}) and restrictable({}, {}) and restrictable({"transformer_options": {"patches": {}}}, {})
    assert not restrictable({"transformer_options": {"patches": {"attn2_patch": [theirs]}}}, {})


@pytest.mark.parametrize("part", ["diffusion_model.blocks.3.self_attn.forward", "diffusion_model.transformer_blocks.0.ff"])
def test_where_another_pack_s_part_stands_in_a_block_no_layer_is_restricted(part: str) -> None:
    assert not restrictable({}, {part: object()})
    assert restrictable({}, {"model_sampling": object(), "diffusion_model.head": object()})


def test_blocks_that_are_compiled_one_by_one_are_left_alone() -> None:
    block = torch.nn.Linear(2, 2)
    objects = {"diffusion_model.blocks.0": torch.compile(block, backend="eager")}
    call = Patched({}, 4, Reader(), None, False, None, capture=False, witness=True, objects=objects)
    assert call.options == {} and call.ran, "nothing patched, nothing witnessed"
    assert Patched({}, 4, Reader(), None, False, None, capture=False, objects={"diffusion_model.blocks.0": block}).options


def test_the_unconditional_prediction_is_captured_after_everybody_else() -> None:
    def listening(args: dict[str, Any]) -> Tensor:
        return args["denoised"]  # type: ignore[no-any-return]

    listening.__module__ = "comfy.k_diffusion.sampling"
    options: dict[str, Any] = {"sampler_post_cfg_function": [listening, lambda args: args["denoised"]]}
    assert cfg_pp_functions(options) == [listening]
    call = patched(options, capture=True)
    uncond = torch.ones(1, 4, 1, 2, 2)
    for function in call.options["sampler_post_cfg_function"]:
        function({"denoised": torch.zeros(1), "uncond_denoised": uncond})
    assert call.uncond is not None and torch.equal(call.uncond, uncond[0])
    uncond.zero_()
    assert float(call.uncond.mean()) == 1, "a copy"
    assert len(options["sampler_post_cfg_function"]) == 2


def test_a_call_in_which_the_last_block_does_not_run_was_not_computed() -> None:
    options: dict[str, Any] = {"transformer_options": {}}
    call = patched(options, witness=True)
    assert not call.ran
    forward(call.options, layers=1)
    assert not call.ran, "the first block of two ran, as first-block caches have it"
    forward(call.options)
    assert call.ran and options == {"transformer_options": {}} and patched(options).ran


def test_another_pack_s_last_block_is_chained_by_the_witness() -> None:
    calls: list[int] = []

    def skipping(call: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return {"img": call["img"] + 1}

    call = patched({"transformer_options": {"patches_replace": {"dit": {("double_block", 1): skipping}}}}, witness=True)
    forward(call.options)
    assert call.ran and calls == [1]


@pytest.mark.parametrize("options", [{"torch_compile_kwargs": {"backend": "inductor"}},
                                     {"transformer_options": {"wrappers": {"apply_model": {"torch.compile": [print]}}}}])
def test_nothing_is_patched_into_a_compiled_forward(options: dict[str, Any]) -> None:
    call = patched(options, reader=Reader(), connect=Connect(), witness=True)
    assert call.options is options and call.ran


def block_of(strength: float) -> Callable[..., Any]:
    def block(call: Any, extra: Any) -> Any:
        return call, extra, strength
    return block


def options_with(**transformer: Any) -> dict[str, Any]:
    return {"transformer_options": transformer}


def replacing(strength: float) -> dict[str, Any]:
    return options_with(patches_replace={"dit": {("double_block", 1): block_of(strength)}})


class Override:
    """An attention override that is an object with settings."""

    def __init__(self, mode: str) -> None:
        self.mode, self.live = mode, object()

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...


def digest(options: dict[str, Any], objects: dict[str, Any] | None = None) -> str:
    return forward_digest(options, objects or {}, "carnator")


def test_the_forward_s_fingerprint_tells_settings_apart_and_nothing_else() -> None:
    ours = {"outer_sample": {"carnator": [block_of(1.0)]}}
    assert digest({}) == digest(options_with(wrappers=ours)) == digest({}, {"model_sampling": object()}) == "none"
    assert digest(options_with(patches={}, callbacks={"x": {"y": [1]}})) == "none"
    same = digest(replacing(0.5))
    assert same == digest(replacing(0.5)) != digest(replacing(0.6))
    modes = [digest(options_with(optimized_attention_override=Override(m))) for m in "aab"]
    assert modes[0] == modes[1] != modes[2]
    theirs = {"apply_model": {"torch.compile": [block_of(1.0)], "carnator": [block_of(2.0)]}}
    assert digest(options_with(wrappers=theirs)) not in ("none", same)
    assert digest(options_with(rope_options={"scale_x": 1.0})) != digest(options_with(rope_options={"scale_x": 2.0}))
    assert digest({}, {"diffusion_model.blocks.0": torch.nn.Identity()}) != "none"
