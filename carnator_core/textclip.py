"""CLIP text similarity for recall (the paper's), from weights that the creator already has; open_clip does the work.

The text tower's sizes are read off the weights, in open_clip's or in Hugging Face's spelling (the `clip_l.safetensors`
that most ComfyUI folders hold). Nothing is downloaded, and only safetensors files are read. A text longer than CLIP's 77
tokens is read in parts of 75, so that a difference anywhere in it counts.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HEAD = 64  # width of an attention head in every CLIP text tower
_QUICK = re.compile(r"openai|quickgelu|clip_l\b", re.IGNORECASE)
_PARTS = {"layer_norm1": "ln_1", "layer_norm2": "ln_2", "self_attn.out_proj": "attn.out_proj", "mlp.fc1": "mlp.c_fc",
          "mlp.fc2": "mlp.c_proj"}


class ClipMissing(Exception):
    """CLIP cannot be used for recall; the message says why and what to do."""


class ClipText:
    """A CLIP text tower. kind: names the vectors it makes; those of another kind are never compared with them."""

    def __init__(self, weights: Mapping[str, Tensor], quick: bool = False) -> None:
        """weights: an open_clip or Hugging Face state dict, image tower or not. quick: QuickGELU, as OpenAI's have it.

        Raises ClipMissing when open_clip is not installed or the weights are of no CLIP text tower.
        """
        try:
            from open_clip.tokenizer import SimpleTokenizer
            from open_clip.transformer import QuickGELU, TextTransformer
        except ImportError as error:
            raise ClipMissing(f"open_clip is not installed ({error}): pip install open_clip_torch") from error
        try:
            state = text_tower(weights)
            projection = state.get("text_projection")
            (vocabulary, width), layers = state["token_embedding.weight"].shape, _layers(state)
            self._model = TextTransformer(
                context_length=len(state["positional_embedding"]), vocab_size=vocabulary, width=width, heads=max(1, width // HEAD),
                layers=layers, mlp_ratio=len(state["transformer.resblocks.0.mlp.c_fc.weight"]) / width,
                output_dim=projection.shape[1] if projection is not None else None,  # type: ignore[arg-type]
                act_layer=QuickGELU if quick else torch.nn.GELU).eval().requires_grad_(False)
            self._model.load_state_dict(state)
        except (KeyError, IndexError, ValueError, RuntimeError) as error:
            raise ClipMissing(f"these are no weights of a CLIP text model ({str(error).splitlines()[0]})") from error
        self._tokens = SimpleTokenizer()
        digest = hashlib.sha256(state["positional_embedding"].float().numpy().tobytes())
        digest.update(state["ln_final.weight"].float().numpy().tobytes() + bytes([quick]))
        self.kind = f"clip {digest.hexdigest()[:16]}"

    @torch.inference_mode()
    def vector(self, text: str) -> Tensor:
        """A text as [D] unit float32: the mean of its parts of at most 75 tokens, each weighed by its length."""
        ids, room = self._tokens.encode(text), self._model.context_length - 2
        parts = [ids[i:i + room] for i in range(0, len(ids), room)] or [[]]
        rows = torch.zeros(len(parts), room + 2, dtype=torch.long)
        for row, part in zip(rows, parts, strict=True):
            row[:len(part) + 2] = torch.tensor([self._tokens.sot_token_id, *part, self._tokens.eot_token_id])
        found = torch.nn.functional.normalize(self._model(rows).double(), dim=1)
        mean = (found * torch.tensor([[max(1, len(p))] for p in parts])).sum(0)
        return (mean / mean.norm().clamp_min(1e-30)).float()


@lru_cache(maxsize=1)
def _load(path: Path, stamp: tuple[int, int]) -> ClipText:
    from safetensors.torch import load_file

    try:
        weights = load_file(path)
    except Exception as error:  # safetensors raises its own type, and OSError
        raise ClipMissing(f"{path.name} cannot be read ({error})") from error
    return ClipText(weights, quick=_QUICK.search(path.stem) is not None)


def load(path: Path) -> ClipText:
    """The text tower of a file, kept while the file does not change. Raises ClipMissing."""
    if path.suffix != ".safetensors":
        raise ClipMissing(f"{path.name} is no safetensors file, and no other kind is read")
    try:
        found = path.stat()
    except OSError as error:
        raise ClipMissing(f"{path.name} cannot be read ({error.strerror})") from error
    return _load(path, (found.st_mtime_ns, found.st_size))


def text_tower(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The text tower of a CLIP state dict, float32, under open_clip's names. Raises KeyError where a part is missing."""
    if "text_model.embeddings.token_embedding.weight" in weights:
        return _from_hugging_face(weights)
    inside = "text." if "text.token_embedding.weight" in weights else ""
    kept = ("token_embedding.", "positional_embedding", "transformer.", "ln_final.", "text_projection")
    names = (n for n in weights if n.startswith(inside) and n.removeprefix(inside).startswith(kept))
    return {n.removeprefix(inside): weights[n].float() for n in names}


def _from_hugging_face(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    model = {n.removeprefix("text_model."): w.float() for n, w in weights.items() if n.startswith("text_model.")}
    state: dict[str, Any] = {"token_embedding.weight": model["embeddings.token_embedding.weight"],
                             "positional_embedding": model["embeddings.position_embedding.weight"]}
    for kind in ("weight", "bias"):
        state[f"ln_final.{kind}"] = model[f"final_layer_norm.{kind}"]
        for layer in range(len({n.split(".")[2] for n in model if n.startswith("encoder.layers.")})):
            there, here = f"encoder.layers.{layer}", f"transformer.resblocks.{layer}"
            state |= {f"{here}.{new}.{kind}": model[f"{there}.{old}.{kind}"] for old, new in _PARTS.items()}
            state[f"{here}.attn.in_proj_{kind}"] = torch.cat([model[f"{there}.self_attn.{n}_proj.{kind}"] for n in "qkv"])
    if "text_projection.weight" in weights:
        state["text_projection"] = weights["text_projection.weight"].float().T.contiguous()
    return state


def _layers(state: Mapping[str, Tensor]) -> int:
    return len({n.split(".")[2] for n in state if n.startswith("transformer.resblocks.")})
