"""Demo Text Encoder: the demo world's seeded word vectors as a CLIP of the host. No download, no weights."""

from __future__ import annotations

import re
from typing import Any

import torch
from comfy_api.latest import io

from ..demo import words

KEY, PAD = "carnator_demo", "<pad>"


class DemoTokenizer:
    """One slot a word; the host's weight syntax is honoured."""

    clip = KEY

    def __init__(self, embedding_directory: Any = None, tokenizer_data: Any = None) -> None:
        pass

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **_: Any) -> dict[str, Any]:
        from comfy.sd1_clip import escape_important, token_weights, unescape_important

        pairs: list[tuple[str, float]] = []
        for segment, weight in token_weights(escape_important(text), 1.0):
            pairs += [(w, weight) for w in re.findall(r"[a-z0-9]+", unescape_important(segment).lower())]
        row: list[tuple[Any, ...]] = list(words.slots(pairs))
        row += [(PAD, 1.0)] * (words.PADDED - len(row))
        if return_word_ids:
            row = [(w, weight, i + 1) for i, (w, weight) in enumerate(row)]
        return {KEY: [row]}

    def untokenize(self, pairs: list[tuple[Any, ...]]) -> list[tuple[Any, str]]:
        return [(pair, pair[0]) for pair in pairs]

    def state_dict(self) -> dict[str, Any]:
        return {}

    def decode(self, *_: Any, **__: Any) -> str:
        return ""


class DemoTextModel(torch.nn.Module):
    """The encoder behind the host's CLIP interface; it computes, and has nothing to load."""

    def __init__(self, device: Any = "cpu", dtype: Any = None, model_options: Any = None) -> None:
        super().__init__()
        self.dtypes = {torch.float32}
        self.register_buffer("place", torch.zeros(1))

    def set_clip_options(self, options: dict[str, Any]) -> None:
        pass

    def reset_clip_options(self) -> None:
        pass

    def encode_token_weights(self, tokens: dict[str, Any]) -> tuple[torch.Tensor, None, dict[str, torch.Tensor]]:
        rows = [words.encode([(w, weight) for w, weight, *_ in row if w not in (PAD, words.END)]) for row in tokens[KEY]]
        text = torch.cat(rows).unsqueeze(0)
        # The host's LTX-Video cannot run without a mask. The demo models learned with the empty slots heard.
        return text, None, {"attention_mask": torch.ones(text.shape[:2], dtype=torch.long)}

    def load_sd(self, sd: dict[str, Any]) -> tuple[list[str], list[str]]:
        return [], []


class CarnatorDemoText(io.ComfyNode):
    """-> CLIP, for the demo models that ship with the pack."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorDemoTextEncoder", display_name="Carnator Demo Text Encoder", category="Carnator/demo",
            description="The text encoder of the small demo models that ship with Carnator. Nothing is downloaded.",
            inputs=[], outputs=[io.Clip.Output(display_name="clip")],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        import comfy.sd
        from comfy.supported_models_base import ClipTarget

        return io.NodeOutput(comfy.sd.CLIP(ClipTarget(DemoTokenizer, DemoTextModel), parameters=1))
