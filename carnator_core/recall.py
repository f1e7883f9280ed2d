"""Text-level recall: which remembered prompts are worth a closer look, and how their entities correspond.

The paper's rule accepts identical entity sets or one substitution. Three things go past it: a substitution between
prompts of one entity each is vacuous ("a beach", "a castle") unless more is shared; every modifier that the prompts do
not share is handed on, so that no later stage can overlook it; and the verdict rules out what no region can contain.
There is one rule: the node recalls what the verdict does not refuse, and `run.py explain` prints that verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .prompt import Entity, Modifier, Prompt
from .prompt.words import LAYOUT

Change = tuple[str, Modifier | None, Modifier | None]

# Relations that say the same.
_SAME = {"over": "above", "under": "below", "on top of": "on"}
# Prompts of more words than this rarely share their entities; a short subject text is what to compare.
LONG = 60


@dataclass(frozen=True)
class Correspondence:
    """How a target's entities map to a history's.

    pairs: (target lemma, history lemma) of all entities, the substituted one included last. substituted: that pair, if
    any. modifiers: (target lemma, target's modifier, history's) for every difference; lemma "" for the whole picture.
    known: False when there were no words to compare, so that nothing can be said of what differs.
    """

    pairs: tuple[tuple[str, str], ...]
    substituted: tuple[str, str] | None
    modifiers: tuple[Change, ...]
    known: bool = True


@dataclass(frozen=True)
class Refusal:
    """Why a remembered prompt cannot serve, in words for the creator."""

    reason: str


@dataclass(frozen=True)
class TextVerdict:
    """What the text stage makes of two prompts. kind: "reuse-candidate", "recompute" or "refuse".

    reason: what differs, or why not. recompute: lemmas of the target whose regions would be computed anew. same_seed:
    a difference is among them that only renders from the same noise can show. correspondence: None when refused.
    """

    kind: str
    reason: str
    recompute: tuple[str, ...] = ()
    same_seed: bool = False
    correspondence: Correspondence | None = None

    def __str__(self) -> str:
        kind = f"{self.kind} (same seed)" if self.same_seed else self.kind
        return f"{kind}: {self.reason}" if self.reason else kind


def text_vector(conditioning: Tensor, mask: Tensor | None = None) -> Tensor:
    """Pooled text conditioning: the mean over slots that are not padding, [1, L, D] or [L, D] -> [D] unit float32.

    mask [1, L] or [L]: zero where a slot is padding (LTX-Video's is not zeros); of another length it is not used. All slots
    count, so a difference late in a long prompt does too. Zeros when every slot is padding.
    Raises ValueError for another number of axes, for a batch, and for values that are not finite.
    """
    rows = conditioning.float()
    if rows.ndim == 3 and rows.shape[0] == 1:
        rows = rows[0]
    if rows.ndim != 2:
        raise ValueError(f"the conditioning must be [1, L, D] or [L, D], not {list(conditioning.shape)}")
    if not bool(torch.isfinite(rows).all()):
        raise ValueError("the conditioning holds values that are not finite")
    filled = (rows != 0).any(1)
    if mask is not None and mask.numel() == len(rows):
        filled &= mask.flatten().to(filled.device) > 0
    used = rows[filled]
    if not len(used):
        return torch.zeros(rows.shape[1])
    mean = used.double().mean(0)
    return (mean / mean.norm().clamp_min(1e-30)).float().cpu()


def top_k(query: Tensor, vectors: Tensor, k: int = 10) -> list[tuple[int, float]]:
    """Indices and cosine similarities of the k rows of `vectors` [M, D] (unit) closest to `query` [D], best first.

    Exact: one matrix product; of equals, the earlier row comes first. The paper's K is 10.
    """
    if vectors.shape[0] == 0 or k <= 0:
        return []
    similarity = vectors.float() @ query.float()
    values, order = similarity.sort(descending=True, stable=True)
    return list(zip(order[:k].tolist(), values[:k].tolist(), strict=True))


def correspond(target: Prompt, history: Prompt) -> Correspondence | Refusal:
    """Entity correspondence of two prompts: identical sets, or one substitution; and all that differs otherwise.

    Prompts that name nothing, or that nothing here can read, correspond when they are the same words.
    """
    if target.text and not target.entities and target.text.split() == history.text.split():
        return Correspondence((), None, ())
    for prompt, whose in ((target, "this prompt"), (history, "the remembered prompt")):
        if not prompt.entities:
            return Refusal(f"{whose} names nothing to compare ({prompt.reason or 'no object found'})")
    ours, theirs = {e.lemma: e for e in target.entities}, {e.lemma: e for e in history.entities}
    new, gone = [n for n in ours if n not in theirs], [n for n in theirs if n not in ours]
    if len(new) != len(gone) or len(new) > 1:
        parts = [f"{_listed([_name(ours[n]) for n in new])} only here"] if new else []
        parts += [f"{_listed([_name(theirs[n]) for n in gone])} only there"] if gone else []
        long = max(len(target.text.split()), len(history.text.split())) > LONG
        hint = "; a short subject text would let a long prompt match" if long else ""
        return Refusal("they show different things: " + ", ".join(parts) + hint)
    substituted = (new[0], gone[0]) if new else None
    pairs = [(n, n) for n in ours if n in theirs]
    if substituted and not pairs and not _linked(ours[new[0]], theirs[gone[0]]):
        both = f"{_name(ours[new[0]])} and {_name(theirs[gone[0]])}"
        return Refusal(f"{both} share nothing that would make the scenes alike")
    if substituted:
        pairs.append(substituted)
    renamed = {gone[0]: new[0]} if new else {}
    layout = _layout(target, {}) & _layout(history, renamed)
    things = set(ours) | set(theirs)
    changes = [c for own, other in pairs for c in _changes(ours[own], theirs[other], renamed, layout, things)]
    changes += _paired("", list(target.scene), list(history.scene))
    return Correspondence(tuple(pairs), substituted, tuple(changes))


def verdict(target: Prompt, history: Prompt) -> TextVerdict:
    """What the text alone says about reusing `history` for `target`.

    It refuses what no region can contain: another look or camera, a thing that must be absent in one of them, another
    layout, another action or number where nothing else is sure to stay. Everything else is to be recomputed.
    """
    found = correspond(target, history)
    if isinstance(found, Refusal):
        return TextVerdict("refuse", found.reason)
    names = {e.lemma: _name(e) for e in (*history.entities, *target.entities)}
    changed = {name for name, _, _ in found.modifiers} | set(found.substituted or ())
    stays = [n for n, _ in found.pairs if n not in changed]
    for name, ours, theirs in found.modifiers:
        differs = said(name, ours, theirs)
        kind = (ours or theirs or Modifier("", "")).kind
        if not name:
            return TextVerdict("refuse", f"the whole picture differs: {differs}")
        if kind == "negation":
            return TextVerdict("refuse", f"{name} must be absent in one of them: {differs}")
        if kind == "relation" and (_is_layout(ours) or _is_layout(theirs)):
            return TextVerdict("refuse", f"the layout differs: {differs}")
        if kind in ("action", "count") and not stays:
            return TextVerdict("refuse", f"nothing is sure to stay: {differs}")
    same_seed = any(needs_same_noise(change) for change in found.modifiers)
    recompute = tuple(n for n, _ in found.pairs if n in changed)
    parts = [f"{names[found.substituted[1]]} -> {names[found.substituted[0]]}"] if found.substituted else []
    parts += [said(*change) for change in found.modifiers]
    kind = "recompute" if parts else "reuse-candidate"
    return TextVerdict(kind, ", ".join(parts), recompute, same_seed, found)


def needs_same_noise(change: Change) -> bool:
    """Whether only a change map can show a difference: a relation is in no Evidence Region's size, colour or motion."""
    _, ours, theirs = change
    return (ours or theirs or Modifier("", "")).kind == "relation"


def _linked(ours: Entity, theirs: Entity) -> bool:
    """Whether prompts of one entity each share what makes a scene: what it does, where it is, or two more words."""
    shared = [m.kind for m in ours.modifiers if m in theirs.modifiers and m.kind != "count"]
    return len(shared) > 1 or any(kind in ("action", "direction", "relation") for kind in shared)


def _split(modifier: Modifier, things: set[str]) -> tuple[str, str]:
    """A relation or direction as (preposition, thing): "left of teddy bear" -> ("left of", "teddy bear")."""
    for thing in things:
        if modifier.text.endswith(" " + thing):
            how = modifier.text.removesuffix(" " + thing)
            return _SAME.get(how, how), thing
    return modifier.text, ""


def _fact(how: str, subject: str, other: str) -> tuple[str, str, str]:
    """Who stands where, said in one way: "a left of b" and "b right of a" are the same fact."""
    return min((how, subject, other), (LAYOUT[how], other, subject))


def _layout(prompt: Prompt, renamed: dict[str, str]) -> set[tuple[str, str, str]]:
    things, facts = set(prompt.lemmas), set()
    for entity in prompt.entities:
        for modifier in entity.modifiers:
            how, other = _split(modifier, things)
            if modifier.kind == "relation" and how in LAYOUT and other:
                facts.add(_fact(how, renamed.get(entity.lemma, entity.lemma), renamed.get(other, other)))
    return facts


def _is_layout(modifier: Modifier | None) -> bool:
    if modifier is None:
        return False
    places = (*LAYOUT, *(k for k, v in _SAME.items() if v in LAYOUT))
    return modifier.text.startswith(("on the ", *(how + " " for how in places)))


def _changes(ours: Entity, theirs: Entity, renamed: dict[str, str], layout: set[tuple[str, str, str]],
             things: set[str]) -> list[Change]:
    """Differences of one pair, kind by kind. What only repeats a substitution ("on snow", "on sand") is none, nor what
    both prompts say of the layout, from whichever side."""
    def unsaid(own: Entity, other: Entity, new: dict[str, str], back: dict[str, str]) -> list[Modifier]:
        known = {told(m, other.lemma, back) for m in other.modifiers}
        keys = ((m, told(m, own.lemma, new)) for m in own.modifiers)
        # "traffic" of a traffic light that replaces a bus is its name, no further difference.
        name = own.text.lower().split() if own.lemma != other.lemma else []
        return [m for m, key in keys if key not in known and key not in layout
                and not (m.kind in ("attribute", "material") and m.text in name)]

    def told(modifier: Modifier, subject: str, new: dict[str, str]) -> tuple[str, ...]:
        if modifier.kind not in ("relation", "direction"):
            return modifier.kind, modifier.text
        how, other = _split(modifier, things)
        other = new.get(other, other)
        if how in LAYOUT and other and modifier.kind == "relation":
            return _fact(how, new.get(subject, subject), other)
        return modifier.kind, how, other

    return _paired(ours.lemma, unsaid(ours, theirs, {}, renamed), unsaid(theirs, ours, renamed, {}))


def _name(entity: Entity) -> str:
    return entity.text.lower()


def _paired(name: str, ours: list[Modifier], theirs: list[Modifier]) -> list[Change]:
    """Modifiers of two lists, those in both left out, as changes: each with one of its kind, or alone."""
    added, missing = [m for m in ours if m not in theirs], [m for m in theirs if m not in ours]
    out: list[Change] = []
    for modifier in added:
        partner = next((m for m in missing if m.kind == modifier.kind), None)
        if partner is not None:
            missing.remove(partner)
        out.append((name, modifier, partner))
    return out + [(name, None, m) for m in missing]


def said(name: str, ours: Modifier | None, theirs: Modifier | None) -> str:
    """ "ball: colour red -> blue", from the remembered prompt to this one."""
    kind = (ours or theirs or Modifier("", "")).kind
    if not name:
        kind = {"attribute": "look", "action": "camera"}.get(kind, kind)
    change = f"{theirs.text if theirs else 'none'} -> {ours.text if ours else 'none'}"
    return f"{name}: {kind} {change}" if name else f"{kind} {change}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else ", ".join(names[:-1]) + " and " + names[-1]
