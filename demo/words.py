"""The demo's text encoder: seeded word vectors with a leaky left context; no vocabulary file, no weights.

Slot i holds c_i = word_i * weight_i + LEAK * c_(i-1): a noun's slot carries its own colour and size,
which Wan's cross-attention, having no text positions, could not tie to the noun otherwise.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SLOTS, WIDTH, LEAK, END = 12, 4096, 0.5, "</s>"
PADDED = 512  # slots of the conditioning, the unused ones zero, as the real Wan text encoder pads


@lru_cache(maxsize=4096)
def word_vector(word: str) -> Tensor:
    """A word's vector of WIDTH values, each +1 or -1, from SHAKE-256 of the word."""
    bits = np.unpackbits(np.frombuffer(hashlib.shake_256(b"carnator:" + word.encode()).digest(WIDTH // 8), np.uint8))
    return torch.from_numpy(bits.astype(np.float32) * 2 - 1)


def split(text: str) -> list[str]:
    """Lower-case words, in order; punctuation is dropped."""
    return re.findall(r"[a-z0-9]+", text.lower())


def slots(words: Sequence[tuple[str, float]]) -> list[tuple[str, float]]:
    """Cut to SLOTS - 1 words and close with the end word."""
    return [*words[: SLOTS - 1], (END, 1.0)]


def encode(words: Sequence[tuple[str, float]]) -> Tensor:
    """Weighted words -> [PADDED, WIDTH] float32; unused slots are zero."""
    out = torch.zeros(PADDED, WIDTH)
    context = torch.zeros(WIDTH)
    for i, (word, weight) in enumerate(slots(words)):
        context = context * LEAK + word_vector(word) * weight
        out[i] = context
    return out


def mixing(text: str, vocabulary: Sequence[str]) -> Tensor:
    """The same as coefficients over a vocabulary, [SLOTS, len(vocabulary)]: encode(text)[:SLOTS] = mixing @ vectors."""
    out, context = torch.zeros(SLOTS, len(vocabulary)), torch.zeros(len(vocabulary))
    for i, (word, _) in enumerate(slots([(w, 1.0) for w in split(text)])):
        context = context * LEAK
        context[vocabulary.index(word)] += 1
        out[i] = context
    return out
