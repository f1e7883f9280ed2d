"""Reading attention: masks of the text's padding, batches, and no memory for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from carnator.carnator_core import evidence
from carnator.carnator_core.connectivity import Recorder
from carnator.carnator_core.observe import AttentionReader, slot_bias
from carnator.carnator_core.recall import text_vector
from torch import Tensor

TOKENS, SLOTS, HEADS, WIDTH = 12, 5, 2, 8


def drawn(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def additive(heard: Tensor) -> Tensor:
    """As LTX-Video's forward makes it of a mask of ones and zeros: [B, 1, 1, L]."""
    return (heard.float() - 1).view(len(heard), 1, 1, -1) * torch.finfo(torch.float32).max


@pytest.mark.parametrize("mask", [
    additive(torch.tensor([[1, 1, 1, 0, 0]])), additive(torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])),
    torch.tensor([[[[True, True, True, False, False]]]]), torch.tensor([[True, True, True, False, False]])],
    ids=["one", "of each item", "bool", "two axes"])
def test_padding_that_the_model_does_not_hear_takes_no_share(mask: Tensor) -> None:
    q, k = drawn(HEADS, TOKENS, WIDTH), drawn(HEADS, SLOTS, WIDTH, seed=2)
    bias = slot_bias(mask, 0, SLOTS)
    assert bias is not None and bias.shape == (SLOTS,)
    heard = evidence.cross_response(q, k, [1], bias=bias)
    assert torch.allclose(heard, evidence.cross_response(q, k[:, :3], [1]))
    assert not torch.allclose(heard, evidence.cross_response(q, k, [1]))


def test_a_mask_of_something_else_is_not_the_texts() -> None:
    assert slot_bias(None, 0, SLOTS) is None and slot_bias(torch.zeros(1, 1, TOKENS, TOKENS), 0, SLOTS) is None


def reader_after(q: Tensor, k: Tensor, mask: Tensor | None = None) -> AttentionReader:
    """A reader that has seen a block's two attentions; q and k [B, N or L, heads * d]."""
    reader = AttentionReader({"ball": (1,)}, range(1))
    options = {"cond_or_uncond": [1, 0][: len(q)] if len(q) > 1 else [0]}
    reader.attention(0, 1, q, q, HEADS, options, False)
    reader.attention(0, 2, q, k, HEADS, options, False, mask)
    return reader


def test_of_a_batch_one_item_is_kept_and_nothing_of_the_rest() -> None:
    q, k = drawn(2, TOKENS, HEADS * WIDTH), drawn(2, SLOTS, HEADS * WIDTH, seed=2)
    (kept, _), = reader_after(q, k).queries
    assert kept.untyped_storage().nbytes() == q[1].numel() * 4, "a copy: a view would hold the other item as well"
    assert torch.equal(kept.transpose(0, 1).flatten(1), q[1])
    mask = additive(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]))
    heard = reader_after(q, k, mask).cross["ball"][0]
    assert torch.allclose(heard, reader_after(q[1:], k[1:, :3]).cross["ball"][0])


@pytest.mark.parametrize("where", ["cross_response", "locate"])
def test_without_memory_there_are_no_regions_and_no_error(where: str, monkeypatch: pytest.MonkeyPatch,
                                                          caplog: pytest.LogCaptureFixture) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(evidence, where, full)
    reader = reader_after(drawn(1, TOKENS, HEADS * WIDTH), drawn(1, SLOTS, HEADS * WIDTH, seed=2))
    assert reader.regions((1, 3, 4)) == ({}, {}) and not reader.queries and not reader.cross
    assert caplog.text.count("no memory to read the attention") == 1
    reader.attention(0, 1, drawn(1, TOKENS, HEADS * WIDTH), drawn(1, TOKENS, HEADS * WIDTH), HEADS, {}, False)
    assert not reader.queries, "given up for this render"


def test_padding_says_nothing_of_a_prompt() -> None:
    """T5 gives its padding values of its own, and LTX-Video a mask."""
    words, padding = drawn(1, 3, 6), drawn(1, 2, 6, seed=3)
    whole, mask = torch.cat([words, padding], 1), torch.tensor([[1, 1, 1, 0, 0]])
    assert torch.allclose(text_vector(whole, mask), text_vector(words))
    assert not torch.allclose(text_vector(whole), text_vector(words))
    assert torch.equal(text_vector(words, mask), text_vector(words)), "a mask of another length is not this text's"


def test_connectivity_that_would_take_too_much_memory_is_let_go() -> None:
    q = drawn(1, 2, 256, 64)
    whole = Recorder((1, 16, 16), torch.linspace(1, 0, 9), every=1)
    small = Recorder((1, 16, 16), torch.linspace(1, 0, 9), every=1, most=5)
    for layer in range(4):
        whole.add(1.0, 0, layer, q, q)
        small.add(1.0, 0, layer, q, q)
    found = whole.finish()
    assert found is not None and len(found.bits) == 4 and whole.wants(0.5)
    assert small.finish() is None and not small.wants(0.5)
