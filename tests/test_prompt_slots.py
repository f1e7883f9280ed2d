"""Which conditioning slots hold an entity's noun."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from carnator.carnator_core.prompt import Entity, mention_spans, parse, token_slots

PROMPTS = Path(__file__).parent / "data" / "prompts"


def slots(text: str, pieces: Sequence[str]) -> dict[str, list[str]]:
    """Lemma -> the pieces of its slots. The prompt as typed and as stripped must give the same."""
    prompt = parse(text)
    found = token_slots(text, pieces, prompt.entities)
    assert token_slots(prompt.text, pieces, prompt.entities) == found
    return {lemma: [pieces[i] for i in where] for lemma, where in found.items()}


def test_sentencepiece_every_occurrence_and_padding() -> None:
    pieces = ["\u2581a", "\u2581sports", "\u2581car", "\u2581and", "\u2581two", "\u2581dog", "s", "\u2581near",
              "\u2581the", "\u2581car", "</s>", "", ""]
    prompt = parse("a sports car and two dogs near the car")
    assert token_slots(prompt.text, pieces, prompt.entities) == {"car": (2, 9), "dog": (5, 6)}


def test_a_head_noun_in_several_pieces() -> None:
    pieces = ["\u2581a", "\u2581light", "house", "</s>"]
    assert slots("a lighthouse", pieces) == {"lighthouse": ["\u2581light", "house"]}


def test_weights_are_not_in_the_pieces() -> None:
    pieces = ["\u2581a", "\u2581red", "\u2581fox", "\u2581running", "</s>"]
    assert slots("a (red:1.2) ((fox:1.3):1.1) running", pieces) == {"fox": ["\u2581fox"]}


def test_words_of_the_demo_encoder() -> None:
    pieces = ["a", "big", "red", "ball", "moving", "left", "on", "snow", "</s>", "", "", ""]
    assert slots("A big RED ball moving left on snow.", pieces) == {"ball": ["ball"], "snow": ["snow"]}


def test_pieces_that_are_not_in_the_text() -> None:
    pieces = ["<|startoftext|>", "describe</w>", ":</w>", "<</w>", "lora</w>", "a</w>", "teddy</w>", "bear</w>",
              "eats</w>", "a</w>", "car</w>", "rot</w>", "<|endoftext|>"]
    assert slots("<lora:x:1> a teddy bear eats a carrot", pieces) == {"teddy bear": ["bear</w>"],
                                                                     "carrot": ["car</w>", "rot</w>"]}


def test_text_cut_short_by_the_tokenizer() -> None:
    assert slots("a dog and a horse", ["\u2581a", "\u2581dog", "</s>"]) == {"dog": ["\u2581dog"], "horse": []}


def test_normalised_pieces() -> None:
    pieces = ["\u2581the", "\u2581man", "'", "s", "\u2581hat", "\u2581on", "\u2581a", "\u2581caf\u00e9", "\u2581table",
              "</s>"]
    typed = "The man\u2019s \u200b HAT on a caf\u0065\u0301 table"
    assert slots(typed, pieces) == {"hat": ["\u2581hat"], "table": ["\u2581table"]}


def test_a_possessor_counts_as_an_occurrence() -> None:
    pieces = ["\u2581a", "\u2581cat", "\u2581and", "\u2581the", "\u2581cat", "'", "s", "\u2581ball"]
    assert slots("a cat and the cat's ball", pieces) == {"cat": ["\u2581cat", "\u2581cat"], "ball": ["\u2581ball"]}


def test_colour_and_thing_of_one_word_are_told_apart() -> None:
    pieces = ["an", "orange", "on", "an", "orange", "table"]
    prompt = parse("an orange on an orange table")
    assert token_slots(prompt.text, pieces, prompt.entities) == {"orange": (1,), "table": (5,)}


def test_entities_of_another_text_have_no_slots() -> None:
    entities = parse("a red ball on snow").entities
    assert token_slots("x", ["x"], entities) == {"ball": (), "snow": ()}


def test_no_pieces_and_no_entities() -> None:
    assert token_slots("a dog", [], parse("a dog").entities) == {"dog": ()}
    assert token_slots("a dog", ["a", "dog"], ()) == {}


@pytest.mark.host
def test_the_hosts_own_tokenizers(comfy: Any) -> None:
    from comfy.sd1_clip import SD1Tokenizer
    from comfy.text_encoders.sd3_clip import T5XXLTokenizer

    text = r"<lora:x:0.8> a (lighthouse:1.3) \(old\) and the (man's:0.9) hat, two Teddy  bears near the lighthouse"
    prompt = parse(text)
    for tokenizer in (T5XXLTokenizer(), SD1Tokenizer()):
        found = tokenizer.tokenize_with_weights(text)
        batches = found if isinstance(found, list) else next(iter(found.values()))
        pieces = [piece for batch in batches for _, piece in tokenizer.untokenize(batch)]
        read = {lemma: "".join(pieces[i] for i in where) for lemma, where in
                token_slots(text, pieces, prompt.entities).items()}
        plain = {lemma: word.replace("\u2581", "").replace("</w>", "") for lemma, word in read.items()}
        assert plain == {"lighthouse": "lighthouselighthouse", "hat": "hat", "teddy bear": "bears"}


@pytest.fixture(scope="module")
def umt5(comfy: Any) -> Any:
    """Wan's own tokenizer class. Its SentencePiece model comes with the encoder's weights, so that one of the same kind is
    trained here, on the fixture's prompts."""
    sentencepiece = pytest.importorskip("sentencepiece")
    from comfy.text_encoders.wan import WanT5Tokenizer

    made = io.BytesIO()
    lines = (PROMPTS / "vbench.txt").read_text(encoding="utf-8").splitlines()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=made, vocab_size=1200, pad_id=0, eos_id=1,
                                             unk_id=2, bos_id=-1, byte_fallback=True, num_threads=1, minloglevel=2)
    model = torch.frombuffer(bytearray(made.getvalue()), dtype=torch.uint8)
    return WanT5Tokenizer(tokenizer_data={"spiece_model": model})


@pytest.fixture(scope="module")
def t5(comfy: Any) -> Any:
    """LTX-Video's own tokenizer."""
    from comfy.text_encoders.lt import LTXVT5Tokenizer

    return LTXVT5Tokenizer()


def spelled(text: str, entity: Entity) -> str:
    """The head noun's letters at every place where the text has the entity."""
    places = sorted({*mention_spans(text).get(entity.lemma, ()), entity.span})
    return "".join(c for start, end in places for c in text[start:end].casefold() if c.isalnum())


@pytest.mark.host
@pytest.mark.parametrize("name", ["umt5", "t5"])
def test_real_prompts_by_the_models_own_tokenizers(comfy: Any, name: str, request: pytest.FixtureRequest) -> None:
    from carnator.nodes.text_encode import pieces_of

    clip = SimpleNamespace(tokenizer=request.getfixturevalue(name))
    typed = (PROMPTS / "vbench.txt").read_text(encoding="utf-8").splitlines()[::16]
    typed += (PROMPTS / "long.txt").read_text(encoding="utf-8").splitlines()
    typed += [f"<lora:film:0.7> ({text}:1.3), \\(4k\\)" for text in typed[:20] if not set("()") & set(text)]
    wrong, seen = [], 0
    for text in typed:
        prompt = parse(text)
        pieces = pieces_of(clip, clip.tokenizer.tokenize_with_weights(text))
        found = token_slots(prompt.text, pieces, prompt.entities)
        for entity in prompt.entities:
            seen += 1
            letters = "".join(c for slot in found[entity.lemma] for c in pieces[slot].casefold() if c.isalnum())
            if letters != spelled(prompt.text, entity):
                wrong.append((entity.text, letters, text[:60]))
    assert seen > 300
    assert wrong == []
