"""The demo world on Wan2.2 5B and LTX-Video: latents, what the transformers take over from Wan2.1's, what the host makes of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from carnator.demo import data, dit, evaluate, families, latents, ltx, scorer, transfer, words, world
from carnator.demo.families import FAMILIES, LTX, WAN, WAN22, Family
from carnator.demo.swap import on_family
from hosting import Page, bank_at, reuse
from safetensors.torch import load_file
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
WEIGHTS = Path(families.__file__).parent / "weights"
LARGEST = 16e6  # bytes
OTHERS = [f for f in FAMILIES.values() if f is not WAN]
every = pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda f: f.name)
others = pytest.mark.parametrize("family", OTHERS, ids=lambda f: f.name)


def latents_of(count: int = 2, seed: int = 3) -> Tensor:
    return torch.randn(count, 16, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


@every
def test_latents_are_wans_and_keep_their_lengths(family: Family) -> None:
    z = latents_of()
    mine = family.from_wan(z)
    assert mine.shape == (2, *family.latent)
    back = family.to_wan(mine)
    kept = list(family.kept) or list(range(16))
    assert torch.allclose(back[:, kept], z[:, kept], atol=0 if not family.lifted else 1e-5)
    # Orthonormal: lengths and angles are those of what is kept.
    mine64, back64 = mine.double().flatten(1), back.double().flatten(1)
    assert torch.allclose(mine64 @ mine64.T, back64 @ back64.T, rtol=1e-5)
    assert torch.allclose(family.from_wan(back), mine, atol=0 if not family.lifted else 1e-5)


def test_of_all_that_is_left_out_nothing_is_seen() -> None:
    """Wan2.2's 48 channels lack diagonal detail: the scorer reads such a clip as it reads the whole one."""
    scene = world.Scene("grass", "left", (world.placed(world.Thing("star", "red"), (3, 4), "left", lattice=world.COARSE),))
    z = latents.normalised(world.render(scene)[0][None] * 2 - 1)
    for family in FAMILIES.values():
        assert all(scorer.agrees(scorer.score(evaluate.picture(family.from_wan(z))[0]), scene).values()), family.name


@every
def test_a_clip_of_the_familys_size_gives_wans_back(family: Family) -> None:
    clip = torch.rand(1, 3, 9, 32, 32, generator=torch.Generator().manual_seed(1))
    large = family.enlarged(clip)
    assert large.shape == (1, 3, 1 + 8 * family.coarse, 32 * family.coarse, 32 * family.coarse)
    assert torch.allclose(family.reduced(large), clip, atol=1e-6)


@every
def test_a_familys_noise_says_where_things_stand(family: Family) -> None:
    pairing = family.coupling()
    assert torch.allclose(pairing.templates @ pairing.templates.T, torch.eye(2), atol=1e-5)
    noise = torch.stack([family.noise(s) for s in range(8)])
    first, second = pairing.read(noise)
    wanted = torch.stack([first.roll(1), torch.full_like(second, -1)], 1)
    made = pairing.couple(noise, wanted)
    assert torch.equal(pairing.read(made)[0], wanted[:, 0]) and torch.allclose(made.norm(), noise.norm(), rtol=1e-3)


def test_one_by_one_patches_take_over_every_velocity() -> None:
    """Wan2.2's start computes what Wan computes where the values that it lacks are zero."""
    torch.manual_seed(0)
    wan = {k: v + 0.02 * torch.randn(v.shape) for k, v in dit.init(dit.Shape(layers=1)).items()}
    text = words.mixing("a red ball on snow", data.VOCABULARY)[None]
    z, sigma = WAN22.from_wan(latents_of(1)), torch.tensor([0.6])
    theirs, _ = dit.Forward(dit.Shape(layers=1), data.vectors())(wan, WAN22.to_wan(z), sigma, text)
    start = transfer.start(WAN22, wan)
    mine, _ = dit.Forward(dit.Shape(channels=48, layers=1, patch=1), data.vectors())(start, z, sigma, text)
    assert float((mine - WAN22.from_wan(theirs)).norm() / mine.norm()) < 0.02


@every
def test_shipped_files_are_small(family: Family) -> None:
    assert (WEIGHTS / family.weights).stat().st_size <= LARGEST


def test_ltx_starts_near_wan_and_with_its_shapes() -> None:
    """What is taken over is most of it: the velocity is half right before anything is taught."""
    wan = transfer.shipped_wan()
    start = transfer.start(LTX, wan)
    assert {n: tuple(v.shape) for n, v in start.items()} == ltx.shapes(ltx.Shape())
    text = words.mixing("a red ball on snow", data.VOCABULARY)[None]
    z, sigma = LTX.noise(2)[None], torch.tensor([0.9])
    theirs = LTX.from_wan(WAN.forward()(wan, LTX.to_wan(z), sigma, text)[0])
    mine = LTX.from_wan(LTX.to_wan(LTX.forward()(start, z, sigma, text)[0]))
    assert float((mine - theirs).norm() / theirs.norm()) < 0.7
    there_and_back = LTX.from_stock(LTX.to_stock(start))
    assert all(torch.equal(value, start[name]) for name, value in there_and_back.items())


def test_wans_pairs_are_each_used_once_and_keep_their_axis_where_it_counts() -> None:
    rows = transfer.turned_rows(ltx.Shape())
    assert rows.sort().values.tolist() == list(range(256))
    radians, axis = ltx.ladder(ltx.Shape())
    slowest = torch.tensor(ltx.SLOWEST, dtype=torch.float64)
    assert torch.allclose(radians[2:5], slowest) and torch.allclose(radians[-3:], 1e4 * slowest)
    assert axis[2:8].tolist() == [0, 1, 2, 0, 1, 2] and radians[:2].tolist() == [0, 0]


def loaded(family: Family) -> Any:
    import comfy.sd

    return comfy.sd.load_diffusion_model(str(WEIGHTS / family.weights))


def shifted(family: Family, model: Any, shift: float = 3.0) -> Any:
    """On the noise levels of training, by the node that creators of this family use."""
    from comfy_extras.nodes_lt import ModelSamplingLTXV
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    if family is LTX:
        return ModelSamplingLTXV.execute(model, math.log(shift), math.log(shift)).result[0]
    return ModelSamplingSD3().patch(model, shift)[0]


@pytest.mark.host
@others
def test_the_host_knows_the_class_and_computes_what_was_trained(family: Family, comfy: Any) -> None:
    from carnator.demo.export import check_forward

    model = loaded(family)
    assert type(model.model.model_config).__name__ == {"wan22": "WAN22_T2V", "ltx": "LTXV"}[family.name]
    assert type(model.model.latent_format).__name__ == family.format
    plain = family.from_stock(load_file(WEIGHTS / family.weights))
    assert check_forward(model, plain, 0.7, family) < 0.03
    if not family.lifted:  # what was composed is what ships
        start = transfer.start(family, transfer.shipped_wan())
        assert all(torch.equal(value.half().float(), plain[name]) for name, value in start.items())


@pytest.fixture(scope="module")
def wan_vae(comfy: Any) -> Any:
    from carnator.nodes.demo_vae import CarnatorDemoVAE

    return CarnatorDemoVAE.execute("Wan2.1").result[0]


@pytest.mark.host
@others
@torch.inference_mode()
def test_every_vae_draws_what_wans_draws(family: Family, wan_vae: Any) -> None:
    import comfy.latent_formats as formats
    import nodes
    from carnator.nodes.demo_vae import CarnatorDemoVAE

    ring = world.placed(world.Thing("ring", "blue"), (4, 3), "up", lattice=world.COARSE)
    clip = world.render(world.Scene("sand", "up", (ring,)))[0]
    mine = family.from_wan(latents.normalised(clip[None] * 2 - 1))
    outer, vae = getattr(formats, family.format)(), CarnatorDemoVAE.execute(family.title).result[0]
    theirs = wan_vae.decode(formats.Wan21().process_out(family.to_wan(mine))).movedim(-1, 1)
    z = {"samples": outer.process_out(mine)}
    drawn = nodes.VAEDecode().decode(vae, z)[0]
    side = 128 * family.coarse
    assert drawn.shape == (1 + 8 * family.coarse, side, side, 3)
    assert float((family.reduced(drawn.permute(3, 0, 1, 2)[None]) - theirs).abs().max()) < 1e-3
    whole = nodes.VAEDecodeTiled().decode(vae, z, 512, 64, 64, 8)[0]
    assert float((whole - drawn).abs().max()) < 1e-3
    # Several tiles: a cell's surroundings count in the decoder, so only most of the picture is the same.
    tiled = vae.decode_tiled(z["samples"], tile_x=4, tile_y=4, overlap=2).reshape(drawn.shape)
    assert float((tiled - drawn).abs().mean()) < 0.02
    coded = outer.process_in(vae.encode(family.enlarged(clip[None])[0].permute(1, 2, 3, 0).contiguous()))
    assert float((coded - mine).norm() / mine.norm()) < 0.05


def asked(text: str) -> Any:
    """Conditioning of the length that the demo models were trained with."""
    from carnator.nodes.demo_clip import CarnatorDemoText
    from carnator.nodes.text_encode import CarnatorTextEncode

    return CarnatorTextEncode.execute(CarnatorDemoText.execute().result[0], text).result[0]


@pytest.mark.host
@others
@torch.inference_mode()
def test_a_hit_computes_less_and_shows_what_the_prompt_says(family: Family, page: Page, tmp_path: Path) -> None:
    import nodes
    from carnator.carnator_core.hosts import storing

    steps, prompts, made = 24, ("a red ball on snow", "a blue ball on snow"), list[Tensor]()
    model = shifted(family, loaded(family))
    line = reuse(model, bank_at(tmp_path / "bank"), vae=None)
    for prompt in prompts:
        latent = nodes.KSampler().sample(line, 11, steps, 5.0, "euler", "simple", asked(prompt), asked(""),
                                         {"samples": torch.zeros(1, *family.latent)})[0]["samples"]
        storing.settle()
        made.append(model.model.process_latent_in(latent))
    assert page.last["decision"] == "hit" and page.last["computed"] < steps, page.last["reason"]
    for z, prompt in zip(made, prompts, strict=True):
        seen = scorer.agrees(scorer.score(evaluate.picture(z)[0]), prompt)
        assert seen["colour"] and seen["place"] and seen["count"] and seen["motion"], (prompt, seen)


def test_the_demos_workflow_on_another_family_has_its_nodes_and_size() -> None:
    prompt = {"0": {"class_type": "CreateVideo", "inputs": {"images": ["9", 0], "fps": 8.0}},
              "1": {"class_type": "UNETLoader", "inputs": {"unet_name": WAN.weights, "weight_dtype": "default"}},
              "2": {"class_type": "ModelSamplingSD3", "inputs": {"model": ["1", 0], "shift": 3.0}},
              "3": {"class_type": "VAELoader", "inputs": {"vae_name": families.WAN_VAE}},
              "4": {"class_type": "EmptyHunyuanLatentVideo", "inputs": {"width": 128, "height": 128, "length": 9, "batch_size": 1}},
              "5": {"class_type": "KSampler", "inputs": {"model": ["2", 0], "latent_image": ["4", 0], "seed": 1}}}
    assert on_family(prompt, WAN) == prompt
    five, ltxv = on_family(prompt, WAN22), on_family(prompt, LTX)
    assert five["4"] == {"class_type": "Wan22ImageToVideoLatent",
                         "inputs": {"width": 128, "height": 128, "length": 9, "batch_size": 1, "vae": ["3", 0]}}
    assert ltxv["4"] == {"class_type": "EmptyLTXVLatentVideo",
                         "inputs": {"width": 256, "height": 256, "length": 17, "batch_size": 1}}
    assert five["0"] == prompt["0"] and ltxv["0"]["inputs"]["fps"] == 16.0, "twice the frames in the same time"
    assert five["2"] == prompt["2"] and ltxv["2"]["inputs"]["max_shift"] == pytest.approx(math.log(3.0))
    for family, swapped in ((WAN22, five), (LTX, ltxv)):
        assert swapped["1"]["inputs"] == {"unet_name": family.weights, "weight_dtype": "default"}
        assert swapped["3"] == {"class_type": "CarnatorDemoVAE", "inputs": {"model": family.title}} and swapped["5"] == prompt["5"]


@pytest.mark.host
@every
@torch.inference_mode()
def test_benches_count_every_familys_evaluations_and_keep_its_text(family: Family, comfy: Any) -> None:
    from carnator.bench import _scope_methods as methods
    from carnator.bench._stage import Kept, Stage, _keep_text

    stage = Stage(steps=4, halved=False, family=family.name)
    plain, _ = stage.sample(stage.model, "a red ball on snow", 3)
    transformer = stage.model.model.diffusion_model
    _keep_text(transformer)
    asked, layers = list[int](), [m for m in transformer.modules() if isinstance(m, Kept)]
    for kept in layers:
        kept.layer.register_forward_hook(lambda *_: asked.append(1))
    meter = methods.Meter(stage.model)
    with meter.attached():
        latent, _ = stage.sample(stage.model, "a red ball on snow", 3)
    assert meter.take()[0] == stage.steps and torch.equal(latent, plain) and latent.shape == family.latent
    assert len(asked) == len(layers) == 1 + 2 * stage.layers, "once for a prompt, not once a step"
    assert stage.video(latent).shape == (3, 9, 128, 128)
