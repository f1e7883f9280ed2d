"""What the text stage makes of two prompts: entities, modifiers, correspondence and verdict, as data or as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .prompt import Modifier, Prompt, parse_many
from .recall import verdict

Explanation = dict[str, Any]


def explain(pairs: Sequence[tuple[str, str]]) -> list[Explanation]:
    """Explain pairs (remembered prompt "a", new prompt "b"); JSON-able, in order.

    Keys: "a" and "b" (raw, text, entities with lemma, text, span and modifiers, scene, reason), "correspondence"
    (pairs, substituted and differing modifiers, or None when refused), "recompute" (lemmas of b), "same_seed" (only
    renders from the same noise can show a difference), "kind", "reason", "verdict" (as the node words it).
    """
    prompts = parse_many([text for pair in pairs for text in pair])
    return [_explained(prompts[i], prompts[i + 1]) for i in range(0, len(prompts), 2)]


def _explained(a: Prompt, b: Prompt) -> Explanation:
    said = verdict(b, a)
    found = said.correspondence
    matched: Explanation | None = None
    if found is not None:
        matched = {
            "pairs": [{"a": theirs, "b": ours} for ours, theirs in found.pairs],
            "substituted": {"a": found.substituted[1], "b": found.substituted[0]} if found.substituted else None,
            "modifiers": [{"entity": name, "kind": (ours or theirs or Modifier("", "")).kind,
                           "a": theirs.text if theirs else None, "b": ours.text if ours else None}
                          for name, ours, theirs in found.modifiers],
        }
    return {"a": _prompt(a), "b": _prompt(b), "correspondence": matched, "recompute": list(said.recompute),
            "same_seed": said.same_seed, "kind": said.kind, "reason": said.reason, "verdict": str(said)}


def _prompt(prompt: Prompt) -> Explanation:
    return {
        "raw": prompt.raw, "text": prompt.text, "reason": prompt.reason,
        "entities": [{"lemma": e.lemma, "text": e.text, "span": list(e.span), "modifiers": _modifiers(e.modifiers)}
                     for e in prompt.entities],
        "scene": _modifiers(prompt.scene),
    }


def _modifiers(modifiers: Sequence[Modifier]) -> list[dict[str, str]]:
    return [{"kind": m.kind, "text": m.text} for m in modifiers]


def as_text(one: Explanation) -> str:
    """One explanation as lines for a terminal."""
    lines: list[str] = []
    for side in ("a", "b"):
        prompt = one[side]
        lines.append(f"{side.upper()}  {prompt['raw']}")
        if prompt["text"] != prompt["raw"]:
            lines.append(f"   read as: {prompt['text']}")
        for entity in prompt["entities"]:
            start, end = entity["span"]
            said = ", ".join(f"{m['kind']} {m['text']}" for m in entity["modifiers"])
            lines.append(f"   {entity['text']} ({entity['lemma']}, {start}-{end}){': ' + said if said else ''}")
        lines += [f"   {'camera' if m['kind'] == 'action' else 'look'}: {m['text']}" for m in prompt["scene"]]
        lines += [f"   {prompt['reason']}"] if prompt["reason"] else []
    if one["correspondence"] and one["correspondence"]["pairs"]:
        pairs = (f"{p['a']} -> {p['b']}" if p["a"] != p["b"] else p["a"] for p in one["correspondence"]["pairs"])
        lines.append("matched: " + ", ".join(pairs))
    if one["recompute"]:
        lines.append("regions to recompute: " + ", ".join(one["recompute"]))
    return "\n".join([*lines, one["verdict"]])
