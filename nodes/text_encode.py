"""Carnator Text Encode: a prompt as conditioning that also says which words it is made of."""

from __future__ import annotations

import logging
from typing import Any

from comfy_api.latest import io
from torch import Tensor

from ..carnator_core.hosts.identity import tensor_digest
from ..carnator_core.prompt import parse

log = logging.getLogger("carnator")


def pieces_of(clip: Any, tokens: dict[str, Any]) -> list[str]:
    """Text of each slot of the conditioning, in order; empty for special and padding tokens, [] when unknown."""
    try:
        name = next(iter(tokens))
        flat = [pair for batch in tokens[name] for pair in batch]
        tokenizer = getattr(clip.tokenizer, getattr(clip.tokenizer, "clip", name), clip.tokenizer)
        words = [piece if isinstance(piece, str) else "" for _, piece in tokenizer.untokenize(flat)]
        return ["" if w.startswith("<") and w.endswith(">") else w for w in words]
    except (AttributeError, KeyError, StopIteration, TypeError, ValueError) as error:
        log.info("Carnator: this text encoder's tokens cannot be read (%s); regions will come from the change map alone.",
                 type(error).__name__)
        return []


class CarnatorTextEncode(io.ComfyNode):
    """CLIP, text -> CONDITIONING that also carries text, entities and each entity's token span."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="CarnatorTextEncode", display_name="Carnator Text Encode", category="Carnator",
            description="Encodes a prompt exactly as CLIP Text Encode does, and remembers its words, so that Carnator "
                        "can tell which thing is where in the picture.",
            inputs=[
                io.Clip.Input("clip", tooltip="The text encoder of the video model."),
                io.String.Input("text", multiline=True, dynamic_prompts=True, tooltip="What is to be seen."),
            ],
            outputs=[io.Conditioning.Output(display_name="conditioning", tooltip="Use it like any other conditioning.")],
        )

    @classmethod
    def execute(cls, clip: Any, text: str) -> io.NodeOutput:
        if clip is None:
            raise RuntimeError("the text encoder is missing: connect a CLIP loader (for Wan: type 'wan')")
        tokens = clip.tokenize(text)
        conditioning = clip.encode_from_tokens_scheduled(tokens)
        carried = {"text": text, "pieces": pieces_of(clip, tokens), "entities": [e.lemma for e in parse(text).entities]}
        # Nodes that mix conditionings copy all this beside another tensor; the digest tells.
        return io.NodeOutput([
            [tensor, {**extra, "carnator": {**carried, "digest": tensor_digest(tensor) if isinstance(tensor, Tensor) else ""}}]
            for tensor, extra in conditioning])
