"""The demo world on Wan2.2 5B: its latents, what its transformer takes over from Wan2.1's, and what the host makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from carnator.demo import data, dit, evaluate, families, latents, scorer, transfer, words, world
from carnator.demo.families import FAMILIES, WAN, WAN22, Family
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
    assert torch.equal(back[:, kept], z[:, kept])
    # Orthonormal: lengths and angles are those of what is kept.
    mine64, back64 = mine.double().flatten(1), back.double().flatten(1)
    assert torch.allclose(mine64 @ mine64.T, back64 @ back64.T)
    assert torch.equal(family.from_wan(back), mine)


def test_of_all_that_is_left_out_nothing_is_seen() -> None:
    """Wan2.2's 48 channels lack diagonal detail: the scorer reads such a clip as it reads the whole one."""
    scene = world.Scene("grass", "left", (world.placed(world.Thing("star", "red"), (3, 4), "left", lattice=world.COARSE),))
    z = latents.normalised(world.render(scene)[0][None] * 2 - 1)
    for family in FAMILIES.values():
        assert all(scorer.agrees(scorer.score(evaluate.picture(family.from_wan(z))[0]), scene).values()), family.name


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


def loaded(family: Family) -> Any:
    import comfy.sd

    return comfy.sd.load_diffusion_model(str(WEIGHTS / family.weights))


@pytest.mark.host
@others
def test_the_host_knows_the_class_and_computes_what_was_trained(family: Family, comfy: Any) -> None:
    from carnator.demo.export import check_forward

    model = loaded(family)
    assert type(model.model.model_config).__name__ == {"wan22": "WAN22_T2V"}[family.name]
    assert type(model.model.latent_format).__name__ == family.format
    plain = dit.from_stock(load_file(WEIGHTS / family.weights), family.shape)
    assert check_forward(model, plain, 0.7, family) < 0.03
    # What was composed is what ships.
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
    assert drawn.shape == (9, 128, 128, 3)
    assert float((drawn.permute(3, 0, 1, 2) - theirs[0]).abs().max()) < 1e-3
    tiled = nodes.VAEDecodeTiled().decode(vae, z, 512, 64, 64, 8)[0]
    assert float((tiled - drawn).abs().max()) < 1e-3
    coded = outer.process_in(vae.encode(clip.permute(1, 2, 3, 0).contiguous()))
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
    from comfy_extras.nodes_model_advanced import ModelSamplingSD3

    steps, prompts, made = 24, ("a red ball on snow", "a blue ball on snow"), list[Tensor]()
    model = ModelSamplingSD3().patch(loaded(family), 3.0)[0]
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
