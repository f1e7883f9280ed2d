"""Text-level recall: which remembered prompts are worth a closer look, and how their entities correspond.

The paper's rule accepts identical entity sets or one substitution. Two things are stricter here: a substitution between
prompts of one entity each is vacuous ("a beach", "a castle") unless something else is shared, and every modifier that
the prompts do not share is handed on, so that no later stage can overlook it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .prompt import Entity, Modifier, Prompt

Change = tuple[str, Modifier | None, Modifier | None]


@dataclass(frozen=True)
class Correspondence:
    """How a target's entities map to a history's.

    pairs: (target lemma, history lemma) of all entities, the substituted one included last. substituted: that pair, if
    any. modifiers: (target lemma, target's modifier, history's) for every difference; lemma "" for the whole picture.
    """

    pairs: tuple[tuple[str, str], ...]
    substituted: tuple[str, str] | None
    modifiers: tuple[Change, ...]


@dataclass(frozen=True)
class Refusal:
    """Why a remembered prompt cannot serve, in words for the creator."""

    reason: str


def text_vector(conditioning: Tensor) -> Tensor:
    """Pooled text conditioning: the mean over slots that are not padding, [1, L, D] or [L, D] -> [D] unit float32.

    Raises ValueError for another number of axes, or a batch.
    """
    rows = conditioning.float().squeeze(0) if conditioning.ndim == 3 else conditioning.float()
    if rows.ndim != 2:
        raise ValueError(f"the conditioning must be [1, L, D] or [L, D], not {list(conditioning.shape)}")
    used = rows[rows.abs().amax(1) > 0]
    mean = used.mean(0) if len(used) else torch.zeros(rows.shape[1])
    return mean / mean.norm().clamp_min(1e-12)


def top_k(query: Tensor, vectors: Tensor, k: int = 10) -> list[tuple[int, float]]:
    """Indices and cosine similarities of the k rows of `vectors` [M, D] (unit) closest to `query` [D], best first."""
    if vectors.shape[0] == 0:
        return []
    similarity = vectors.float() @ query.float()
    values, order = similarity.topk(min(k, len(similarity)))
    return list(zip(order.tolist(), values.tolist(), strict=True))


def correspond(target: Prompt, history: Prompt) -> Correspondence | Refusal:
    """Entity correspondence of two prompts: identical sets, or one substitution."""
    for prompt, whose in ((target, "this prompt"), (history, "the remembered prompt")):
        if not prompt.entities:
            return Refusal(f"{whose} names no thing to compare ({prompt.reason or 'no entity found'})")
    ours, theirs = {e.lemma: e for e in target.entities}, {e.lemma: e for e in history.entities}
    new, gone = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    if len(new) != len(gone) or len(new) > 1:
        parts = [f"{_listed(new)} {'is' if len(new) == 1 else 'are'} new here"] if new else []
        parts += [f"{_listed(gone)} {'is' if len(gone) == 1 else 'are'} only there"] if gone else []
        return Refusal("the things in it differ: " + ", ".join(parts))
    substituted = (new[0], gone[0]) if new else None
    pairs = [(n, n) for n in ours if n in theirs]
    if substituted and not pairs and not _kinship(ours[new[0]], theirs[gone[0]], target, history):
        return Refusal(f"{new[0]} and {gone[0]} have nothing in common but the shape of the sentence")
    if substituted:
        pairs.append(substituted)
    changes = [c for own, other in pairs for c in _changes(own, ours[own].modifiers, theirs[other].modifiers, substituted)]
    changes += _changes("", target.scene, history.scene, substituted)
    return Correspondence(tuple(pairs), substituted, tuple(changes))


def _kinship(ours: Entity, theirs: Entity, target: Prompt, history: Prompt) -> bool:
    """Whether prompts of one entity each share anything else: a modifier, or something said of the whole picture."""
    return bool(set(ours.modifiers) & set(theirs.modifiers) or set(target.scene) & set(history.scene))


def _changes(name: str, ours: tuple[Modifier, ...], theirs: tuple[Modifier, ...],
             substituted: tuple[str, str] | None) -> list[Change]:
    """Differences of two modifier lists, kind by kind. What only repeats the substitution ("on snow") is none."""
    def told(modifier: Modifier) -> tuple[str, str]:
        if modifier.kind in ("relation", "direction") and substituted and set(modifier.text.split()) & set(substituted):
            return modifier.kind, "to what is substituted"
        return modifier.kind, modifier.text

    own, other = {told(m): m for m in ours}, {told(m): m for m in theirs}
    added, missing = [m for k, m in own.items() if k not in other], [m for k, m in other.items() if k not in own]
    out: list[Change] = []
    for modifier in added:
        partner = next((m for m in missing if m.kind == modifier.kind), None)
        if partner is not None:
            missing.remove(partner)
        out.append((name, modifier, partner))
    return out + [(name, None, m) for m in missing]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
