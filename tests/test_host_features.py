"""On the real host: what Carnator does beside the nodes, samplers and inputs that creators use, for every family.

Each row of README's matrix is one of these: it works (recorded, replayed and reused), or Carnator keeps out of it and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import families
import pytest
import torch
from families import FAMILIES, LTX, NEAR, PROBE, WAN, Change, Family, Render, guided, model_of
from hosting import ANYTHING, Ask, Page, bank_at, custom, encode, entries, ksampler, latent, reuse, schedule
from matrix import ASIDE, DECLINES, WORKS, shows

pytest_plugins = ["hosting_fixtures"]
pytestmark = pytest.mark.host


def unchanged(model: Any, family: Family) -> Any:
    return model


@dataclass(frozen=True)
class Feature:
    """What stands in the workflow beside Carnator: a node in the MODEL line, a way to sample, or something in the request.

    words: of the reason, where Carnator keeps out. only: the families that it is tried with.
    """

    outcome: str = WORKS
    words: str = ""
    change: Change = unchanged
    render: Render = ksampler
    request: dict[str, Any] = field(default_factory=dict)
    only: tuple[Family, ...] = FAMILIES


def with_inputs(change: Callable[[Ask], dict[str, Any]]) -> Render:
    """KSampler with some of its inputs replaced."""
    return lambda model, ask: ksampler(model, ask, **change(ask))


def masked(ask: Ask) -> dict[str, Any]:
    mask = torch.zeros(1, 1, *ask.shape[-2:])
    mask[..., : ask.shape[-2] // 2, :] = 1
    return {"latent_image": {**latent(ask.shape), "noise_mask": mask}}


def pictured(ask: Ask) -> dict[str, Any]:
    return {"latent_image": {"samples": torch.randn(ask.shape, generator=torch.Generator().manual_seed(0))}}


def two_prompts(ask: Ask) -> dict[str, Any]:
    import nodes

    both = nodes.ConditioningCombine().combine(encode(ask.text, mask=ask.ltx), encode("a blue ring", mask=ask.ltx))
    return {"positive": both[0]}


def hook_lora(ask: Ask) -> dict[str, Any]:
    import comfy.hooks

    family = LTX if ask.ltx else WAN
    hooks = comfy.hooks.create_hook_lora(families.lora_of(family), 1.0, 1.0)
    return {"positive": comfy.hooks.set_hooks_for_conditioning(encode(ask.text, mask=ask.ltx), hooks)}


FEATURES: dict[str, Feature] = {
    "KSampler": Feature(),
    "KSamplerAdvanced, the whole schedule": Feature(render=families.ksampler_advanced),
    "SamplerCustom": Feature(render=families.sampler_custom),
    "SamplerCustomAdvanced, CFGGuider": Feature(render=guided(families.cfg_guider)),
    "SamplerCustomAdvanced, BasicGuider (no negative)": Feature(render=guided(families.basic_guider)),
    "sigmas by hand": Feature(render=families.by_hand),
    "cfg 1": Feature(request={"cfg": 1.0}),
    "LoRA": Feature(change=families.with_lora),
    "model sampling shift": Feature(change=families.with_shift),
    "ModelMerge": Feature(change=families.with_merge),
    "SageAttention override": Feature(change=families.with_sage),
    "NAG": Feature(change=families.nag),
    "EasyCache": Feature(ASIDE, "easycache is on", families.easycache),
    "LazyCache": Feature(ASIDE, "cache is on", families.lazycache),
    "SkipLayerGuidanceDiT": Feature(ASIDE, "sampler_post_cfg_function", families.skip_layers),
    "SkipLayerGuidanceDiTSimple": Feature(ASIDE, "sampler_calc_cond_batch_function", families.skip_layers_simple),
    "CFGZeroStar": Feature(ASIDE, "sampler_post_cfg_function", families.cfg_zero_star),
    "cfg for each frame (VideoLinearCFGGuidance)": Feature(ASIDE, "sampler_cfg_function", families.cfg_per_frame),
    "Context Windows": Feature(ASIDE, "context_handler", families.context_windows),
    "DualCFGGuider": Feature(ASIDE, "passes of its own", render=guided(families.dual_cfg)),
    "Dual Model CFG Guider": Feature(ASIDE, "passes of its own", render=guided(families.dual_model)),
    "a guider with a cfg for each sigma": Feature(ASIDE, "passes of its own", render=guided(families.cfg_per_sigma)),
    "STG guider": Feature(ASIDE, "passes of its own", render=guided(families.stg), only=(LTX,)),
    "batch of 2": Feature(DECLINES, "batch holds 2 videos", request={"batch": 2}),
    "noise mask (image to video, inpainting)": Feature(DECLINES, "noise mask", render=with_inputs(masked)),
    "a latent to start from": Feature(DECLINES, "starts from an image or another latent", render=with_inputs(pictured)),
    "two prompts in one conditioning": Feature(DECLINES, "has 2 parts", render=with_inputs(two_prompts)),
    "hook LoRA": Feature(DECLINES, "conditioning carries hooks", render=with_inputs(hook_lora)),
    "4 steps (distilled models)": Feature(DECLINES, "too few are left", request={"steps": 4}),
}


def cases(outcomes: tuple[str, ...]) -> list[Any]:
    return [pytest.param(family, feature, marks=shows(family.name, name, feature.outcome), id=f"{family.name}-{name}")
            for name, feature in FEATURES.items() if feature.outcome in outcomes for family in feature.only]


def asked(family: Family, feature: Feature, text: str = "a red ball on snow") -> Ask:
    wanted = dict(feature.request)
    batch = wanted.pop("batch", 1)
    return family.ask(text, **{"shape": (batch, *family.shape[1:]), **wanted})


@pytest.mark.parametrize(("family", "feature"), cases((WORKS,)))
def test_it_works_beside(family: Family, feature: Feature, comfy: Any, bank: Any, page: Page) -> None:
    model, ask, near = feature.change(model_of(family), family), asked(family, feature), asked(family, feature, NEAR)
    dense = feature.render(model, ask)
    with_node = reuse(model, bank, probe_steps=PROBE, strictness=ANYTHING)
    assert torch.equal(feature.render(with_node, ask), dense), "recording changed the render"
    assert page.last["decision"] == "miss" and page.last["computed"] == ask.steps and len(entries(bank)) == 1
    assert torch.equal(feature.render(with_node, ask), dense), "the replay differs from its recording"
    assert page.last["decision"] == "hit" and page.last["computed"] == 0
    assert bool(feature.render(with_node, near).isfinite().all())
    assert page.last["decision"] == "hit" and PROBE < page.last["computed"] < ask.steps, page.last["reason"]
    assert len(entries(bank)) == 1, "a render that was partly reused is no history"
    assert torch.equal(feature.render(model, ask), dense), "bypassed, it is the render of before"


@pytest.mark.parametrize(("family", "feature"), cases((ASIDE, DECLINES)))
def test_carnator_keeps_out_of(family: Family, feature: Feature, comfy: Any, bank: Any, page: Page) -> None:
    model, ask = model_of(family), asked(family, feature)
    dense = feature.render(feature.change(model, family), ask)

    def with_node(given: Any) -> Any:
        return reuse(given, bank, probe_steps=PROBE, strictness=ANYTHING)

    lines = [with_node(feature.change(model, family))]
    if feature.change is not unchanged:
        lines.append(feature.change(with_node(model), family))
    for line in lines:
        page.lines.clear()
        assert torch.equal(feature.render(line, ask), dense)
        assert feature.words in page.said and entries(bank) == []


SAMPLERS = ["heun", "dpmpp_2m", "euler_ancestral", "dpmpp_sde", "uni_pc", "lcm", "er_sde", "res_multistep_ancestral_cfg_pp",
            "euler_cfg_pp", "dpmpp_2s_ancestral_cfg_pp"]


def everywhere(feature: str, outcome: str = WORKS, only: tuple[Family, ...] = FAMILIES) -> Any:
    """A test for each family, and what it shows."""
    return pytest.mark.parametrize("family", [pytest.param(f, marks=shows(f.name, feature, outcome), id=f.name) for f in only])


@everywhere("samplers of each kind, `_cfg_pp` included", only=FAMILIES[1:])
def test_samplers_of_each_kind_are_recorded_and_replayed(family: Family, comfy: Any, tmp_path: Path, page: Page) -> None:
    model = model_of(family)
    for sampler in SAMPLERS:
        with_node = reuse(model, bank_at(tmp_path / sampler), probe_steps=1)
        ask = family.ask(sampler=sampler, steps=4, cfg=2.0)
        recorded = ksampler(with_node, ask)
        assert page.last["computed"] >= 4 and torch.equal(recorded, ksampler(model, ask)), sampler
        assert torch.equal(ksampler(with_node, ask), recorded) and page.last["computed"] == 0, sampler


@everywhere("a history of another number of steps")
@pytest.mark.parametrize(("kept", "asked_for"), [(12, 7), (6, 10)])
def test_a_history_serves_a_schedule_of_another_length(kept: int, asked_for: int, family: Family, comfy: Any, bank: Any,
                                                      page: Page) -> None:
    model = model_of(family)
    with_node = reuse(model, bank, probe_steps=PROBE, strictness=ANYTHING, mode="forecast")
    history = ksampler(with_node, family.ask(steps=kept))
    target = family.ask(NEAR, steps=asked_for)
    output, dense = ksampler(with_node, target), ksampler(model, target)
    assert page.last["decision"] == "hit" and page.last["computed"] < asked_for
    assert page.last["computed"] + page.last["forecast"] + page.last["replayed"] == asked_for
    assert float((output - dense).norm()) < float((history - dense).norm()), "nearer to its own render than the history is"


@everywhere("interrupt")
def test_an_interrupt_keeps_nothing_and_the_next_render_is_the_same(family: Family, comfy: Any, bank: Any, page: Page) -> None:
    import comfy.model_management as management

    model, ask = model_of(family), family.ask()
    with_node = reuse(model, bank, probe_steps=PROBE)

    def stop(i: int, *_: Any) -> None:
        if i == 3:
            management.interrupt_current_processing(True)

    with pytest.raises(management.InterruptProcessingException):
        custom(with_node, ask, schedule(model, ask.steps), stop)
    assert entries(bank) == [] and not page.summaries
    dense = ksampler(model, ask)
    assert torch.equal(ksampler(with_node, ask), dense) and page.last["computed"] == ask.steps
    assert torch.equal(ksampler(with_node, ask), dense) and page.last["computed"] == 0


@everywhere("previews of every kind")
def test_previews_of_every_kind_are_those_of_the_stock_render(family: Family, comfy: Any, bank: Any, page: Page,
                                                             monkeypatch: pytest.MonkeyPatch) -> None:
    import comfy.utils
    from comfy.cli_args import LatentPreviewMethod, args

    seen: list[bytes | None] = []

    def shown(bar: Any, value: int, total: int | None = None, preview: Any = None) -> None:
        seen.append(preview[1].tobytes() if preview is not None else None)

    monkeypatch.setattr(comfy.utils.ProgressBar, "update_absolute", shown)
    ask, with_node = family.ask(), reuse(model_of(family), bank, probe_steps=PROBE)
    for method in LatentPreviewMethod:
        monkeypatch.setattr(args, "preview_method", method)
        runs: list[list[bytes | None]] = []
        for model in (model_of(family), with_node, with_node):
            seen.clear()
            ksampler(model, ask)
            runs.append(list(seen))
        assert len(runs[0]) == ask.steps and runs[1] == runs[0] and runs[2] == runs[0], method
        assert (runs[0][0] is None) == (method is LatentPreviewMethod.NoPreviews), method
    assert page.last["computed"] == 0


@everywhere("fp8 weights")
def test_fp8_weights_are_a_model_of_their_own(family: Family, comfy: Any, bank: Any, page: Page) -> None:
    small, ask = model_of(family, options=(("dtype", torch.float8_e4m3fn),)), family.ask()
    weights = {p.dtype for p in small.model.diffusion_model.parameters()}
    assert torch.float8_e4m3fn in weights
    ksampler(reuse(model_of(family), bank, probe_steps=PROBE), ask)
    dense = ksampler(small, ask)
    with_node = reuse(small, bank, probe_steps=PROBE, strictness=ANYTHING)
    assert torch.equal(ksampler(with_node, ask), dense)
    assert page.last["decision"] == "miss" and "precision" in page.last["reason"]
    assert torch.equal(ksampler(with_node, ask), dense) and page.last["computed"] == 0
    ksampler(with_node, family.ask(NEAR))
    assert page.last["decision"] == "hit" and page.last["computed"] < ask.steps


class Compiled:
    """A compiler backend that runs the graph as it is, and counts."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any, **_: Any) -> Any:
        self.graphs += 1
        return graph.forward


@everywhere("torch.compile")
@pytest.mark.parametrize("before", [True, False])
def test_a_compiled_model_is_recorded_and_reused_without_anything_patched_into_it(before: bool, family: Family, comfy: Any,
                                                                                 bank: Any, page: Page) -> None:
    from comfy_extras.nodes_torch_compile import TorchCompileModel

    backend = Compiled()

    def compiled(model: Any) -> Any:
        return TorchCompileModel.execute(model, backend).result[0]

    torch.compiler.reset()
    plain, ask = model_of(family), family.ask()
    dense = ksampler(compiled(plain), ask)
    assert backend.graphs > 0

    def line(**settings: Any) -> Any:
        settings = {"probe_steps": PROBE, "strictness": ANYTHING, "mode": "joint", "active_radius": 0, **settings}
        return reuse(compiled(plain), bank, **settings) if before else compiled(reuse(plain, bank, **settings))

    assert torch.equal(ksampler(line(), ask), dense), "recording changed the render"
    assert page.last["decision"] == "miss" and page.last["regions"] == {}
    assert torch.equal(ksampler(line(), ask), dense) and page.last["computed"] == 0
    ksampler(line(), family.ask(NEAR))
    assert page.last["decision"] == "hit" and page.last["restricted"] == 0
    ksampler(line(mode="ours"), family.ask(NEAR))
    assert page.last["decision"] == "hit" and page.last["computed"] < ask.steps
    assert torch.equal(ksampler(compiled(plain), ask), dense), "bypassed, it is the render of before"


def unknown_cache(model: Any) -> Any:
    """A step cache of another pack, under a name that nobody knows: every second step repeats the one before."""
    from comfy.patcher_extension import WrappersMP

    clone, kept = model.clone(), []

    def forward(executor: Any, *args: Any, **kwargs: Any) -> Any:
        sigma = float(kwargs.get("transformer_options", args[5] if len(args) > 5 else {})["sigmas"][0])
        steps = sorted({*(s for s, _ in kept), sigma}, reverse=True)
        if steps.index(sigma) % 2 and len(kept) > 0:
            return kept[-1][1]
        out = executor(*args, **kwargs)
        kept.append((sigma, out))
        return out

    clone.add_wrapper_with_key(WrappersMP.DIFFUSION_MODEL, "quicker", forward)
    return clone


@everywhere("a step cache of an unknown pack", DECLINES)
def test_a_step_that_another_node_did_not_compute_is_never_stored(family: Family, comfy: Any, bank: Any, page: Page) -> None:
    model, ask = model_of(family), family.ask()
    dense = ksampler(unknown_cache(model), ask)
    assert not torch.equal(dense, ksampler(model, ask)), "the cache has an effect"
    for line in (reuse(unknown_cache(model), bank, probe_steps=PROBE), unknown_cache(reuse(model, bank, probe_steps=PROBE))):
        assert torch.equal(ksampler(line, ask), dense)
        assert "another node left the model out at" in page.said and page.last["skipped"] > 0 and entries(bank) == []


def test_nag_evaluates_the_negative_prompt_at_cfg_1_too(comfy: Any, bank: Any, page: Page) -> None:
    model = families.nag(model_of(WAN), WAN)
    with_node = reuse(model, bank, probe_steps=PROBE, strictness=ANYTHING)
    ksampler(with_node, WAN.ask(cfg=1.0))
    other = WAN.ask(cfg=1.0, negative="a blue ring")
    assert torch.equal(ksampler(with_node, other), ksampler(model, other))
    assert page.last["decision"] == "miss" and "negative" in page.last["reason"]


def with_little_memory(patch: pytest.MonkeyPatch, state: str) -> None:
    """The host's memory management as a flag sets it, and as if the CPU were a device of its own that is full of weights."""
    import comfy.model_management as management

    free = management.get_free_memory
    patch.setattr(management, "vram_state", management.VRAMState[state])
    patch.setattr(management, "is_device_cpu", lambda device: False)
    patch.setattr(management, "get_free_memory", lambda device=None, both=False: free(device, both) if both else 0)


def offloaded(patcher: Any) -> int:
    """How many of the model's layers move their weights at use."""
    return sum(bool(getattr(m, "comfy_patched_weights", True)) is False or bool(getattr(m, "weight_function", []))
               for m in patcher.model.diffusion_model.modules() if hasattr(m, "comfy_cast_weights"))


@pytest.mark.parametrize(("flag", "state", "family"), [
    pytest.param(flag, state, family, id=f"{flag}-{family.name}", marks=shows(family.name, f"`{flag}`", WORKS))
    for flag, state in (("--lowvram", "LOW_VRAM"), ("--novram", "NO_VRAM")) for family in FAMILIES])
def test_weights_that_move_at_use(flag: str, state: str, family: Family, comfy: Any, bank: Any, page: Page,
                                  monkeypatch: pytest.MonkeyPatch) -> None:
    import comfy.model_management as management

    model = families.with_lora(model_of.__wrapped__(family), family)
    ask = family.ask()
    whole = ksampler(model, ask)
    management.unload_all_models()
    with_little_memory(monkeypatch, state)
    dense = ksampler(model, ask)
    assert offloaded(model) > 0, "the host kept weights back"
    with_node = reuse(model, bank, probe_steps=PROBE, strictness=ANYTHING)
    assert torch.equal(ksampler(with_node, ask), dense) and page.last["decision"] == "miss"
    ksampler(with_node, family.ask(NEAR))
    assert page.last["decision"] == "hit" and page.last["computed"] < ask.steps
    monkeypatch.undo()
    management.unload_all_models()
    torch.testing.assert_close(dense, whole, atol=1e-3, rtol=1e-3)
