"""Recall by CLIP: text vectors from a tiny random text tower of open_clip, without a download."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from carnator.carnator_core import textclip
from carnator.carnator_core.textclip import ClipMissing, ClipText, load
from hosting import ANYTHING, Ask, Page, entries, ksampler, node, reuse
from safetensors.torch import save_file
from torch import Tensor

pytest_plugins = ["hosting_fixtures"]
Weights = dict[str, Tensor]
LONG = "a red fox running through deep snow " + "past another quiet wooden house " * 30


@pytest.fixture(scope="module")
def weights() -> Weights:
    """A text tower of two layers, as an open_clip checkpoint holds it."""
    pytest.importorskip("open_clip", reason="open_clip is optional: pip install open_clip_torch")
    from open_clip.transformer import TextTransformer

    torch.manual_seed(0)
    tower = TextTransformer(width=64, heads=1, layers=2, output_dim=32)
    return {name: value.detach().clone() for name, value in tower.state_dict().items()}


@pytest.fixture(scope="module")
def clip(weights: Weights) -> ClipText:
    return ClipText(weights)


def hugging_face(weights: Weights) -> Weights:
    """The same tower under Hugging Face's names."""
    parts = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj", "mlp.c_fc": "mlp.fc1",
             "mlp.c_proj": "mlp.fc2"}
    out = {"text_model.embeddings.token_embedding.weight": weights["token_embedding.weight"],
           "text_model.embeddings.position_embedding.weight": weights["positional_embedding"],
           "text_projection.weight": weights["text_projection"].T.contiguous()}
    for kind in ("weight", "bias"):
        out[f"text_model.final_layer_norm.{kind}"] = weights[f"ln_final.{kind}"]
        for layer in range(2):
            here, there = f"transformer.resblocks.{layer}", f"text_model.encoder.layers.{layer}"
            for name, part in zip("qkv", weights[f"{here}.attn.in_proj_{kind}"].chunk(3), strict=True):
                out[f"{there}.self_attn.{name}_proj.{kind}"] = part.contiguous()
            out |= {f"{there}.{new}.{kind}": weights[f"{here}.{old}.{kind}"] for old, new in parts.items()}
    return out


def test_a_short_text_is_what_the_tower_itself_gives(weights: Weights, clip: ClipText) -> None:
    from open_clip.tokenizer import SimpleTokenizer
    from open_clip.transformer import TextTransformer

    tower = TextTransformer(width=64, heads=1, layers=2, output_dim=32).eval()
    tower.load_state_dict(weights)
    with torch.no_grad():
        expected = torch.nn.functional.normalize(tower(SimpleTokenizer()(["a red fox"])), dim=1)[0]
    found = clip.vector("a red fox")
    assert found.shape == (32,) and found.dtype == torch.float32
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_difference_after_the_77th_token_counts(clip: ClipText) -> None:
    one, other = clip.vector(LONG + "at night"), clip.vector(LONG + "at dawn")
    assert float(one @ other) < 1 - 1e-6
    assert torch.equal(clip.vector(LONG), clip.vector(LONG))
    assert float(one.norm()) == pytest.approx(1.0, abs=1e-5)


def test_an_empty_text_has_a_vector(clip: ClipText) -> None:
    assert torch.isfinite(clip.vector("")).all()


def test_other_spellings_of_the_same_weights(weights: Weights, clip: ClipText) -> None:
    whole = {**weights, "visual.conv1.weight": torch.ones(1), "logit_scale": torch.ones(())}
    prefixed = {"logit_scale": torch.ones(()), **{f"text.{n}": w for n, w in weights.items()}}
    for spelled in (whole, prefixed, hugging_face(weights), {n: w.half() for n, w in weights.items()}):
        found = ClipText(spelled)
        assert torch.allclose(found.vector(LONG), clip.vector(LONG), atol=2e-2 if found.kind != clip.kind else 1e-5)
    assert ClipText(hugging_face(weights)).kind == clip.kind


def test_vectors_of_other_weights_are_of_another_kind(weights: Weights, clip: ClipText) -> None:
    assert ClipText({**weights, "positional_embedding": weights["positional_embedding"] + 1}).kind != clip.kind
    assert ClipText(weights, quick=True).kind != clip.kind


def test_a_file_is_read_once_until_it_changes(weights: Weights, tmp_path: Path) -> None:
    path = tmp_path / "clip_l.safetensors"
    save_file(hugging_face(weights), path)
    first = load(path)
    assert load(path) is first
    assert first.kind == ClipText(weights, quick=True).kind  # clip_l is OpenAI's
    save_file(hugging_face({**weights, "positional_embedding": weights["positional_embedding"] * 2}), path)
    assert load(path).kind != first.kind


def test_weights_of_something_else_are_said(weights: Weights) -> None:
    short = {n: w for n, w in weights.items() if "resblocks.1" not in n or "mlp" not in n}
    for wrong in ({}, {"x": torch.ones(1)}, short, {"text_model.embeddings.token_embedding.weight": torch.ones(2, 2)}):
        with pytest.raises(ClipMissing, match="no weights of a CLIP text model"):
            ClipText(wrong)


def test_files_that_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "broken.safetensors").write_bytes(b"<html>")
    for name, complaint in (("clip.pt", "no safetensors file"), ("gone.safetensors", "cannot be read"),
                            ("broken.safetensors", "cannot be read")):
        with pytest.raises(ClipMissing, match=complaint):
            load(tmp_path / name)


def test_without_open_clip_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open_clip", "open_clip.tokenizer", "open_clip.transformer"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ClipMissing, match="pip install open_clip_torch"):
        ClipText({})


@pytest.fixture
def folder(comfy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A text_encoders folder of the host's, and a user folder, both empty."""
    import folder_paths

    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(tmp_path / "user"))
    folder_paths.add_model_folder_path("text_encoders", str(tmp_path))
    return tmp_path


@pytest.mark.host
@pytest.mark.parametrize("name", ["gone.safetensors", "../secret.safetensors", "broken.safetensors"])
def test_the_loader_says_what_is_missing_and_goes_on_without(folder: Path, page: Page, name: str) -> None:
    (folder / "broken.safetensors").write_bytes(b"x")
    handle = node("CarnatorBankLoader").execute("default", 1.0, "read only", name).result[0]
    assert handle.clip is None
    assert "prompts are compared by the model's own text conditioning" in page.said


@pytest.mark.host
def test_renders_are_recalled_by_clip_and_kinds_never_meet(folder: Path, page: Page, weights: Weights, wan_model: Any,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(weights, folder / "tiny.safetensors")
    asked: list[str] = []
    vector = textclip.ClipText.vector
    monkeypatch.setattr(textclip.ClipText, "vector", lambda self, text: asked.append(text) or vector(self, text))
    by_clip, plain = (node("CarnatorBankLoader").execute("b", 1.0, "read and remember", name).result[0]
                      for name in ("tiny.safetensors", ""))
    ksampler(reuse(wan_model, by_clip), Ask("a red ball on snow"))
    (entry,) = entries(by_clip)
    assert entry.identity.fields["recall"] == by_clip.clip.kind and len(entry.text_vector) == 32
    ksampler(reuse(wan_model, by_clip, strictness=ANYTHING, remember=False), Ask("a blue ball on snow"))
    assert page.last["decision"] == "hit" and asked == ["a red ball on snow", "a blue ball on snow"]
    ksampler(reuse(wan_model, plain, strictness=ANYTHING, remember=False), Ask("a blue ball on snow"))
    assert page.last["decision"] == "miss" and page.last["reason"].endswith("the closest differs in: recall")
