"""Which region serves best, and whose connectivity: measured on the pairs of `bench scope`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from carnator.carnator_core import change, decide, gate, recall
from carnator.carnator_core.change import ChangeScale
from carnator.carnator_core.connectivity import morton_order
from carnator.carnator_core.observe import branches, split_heads
from carnator.carnator_core.outcome import Verdict
from carnator.carnator_core.prompt import parse
from carnator.carnator_core.regions import evidence_union, latent_weights, regions, token_weights
from carnator.demo.evaluate import picture
from carnator.kernels import mass, select
from torch import Tensor

from ._scope_methods import Pair, Studio
from ._stage import alignment, psnr, settings

Row = dict[str, Any]
SOURCES = ("history", "target", "change map", "history + target", "history + change map", "all three")
SHOWN = ("history", "history + target", "change map", "all three")  # rendered; the others are measured by their tokens alone
BLOCK_Q, BLOCK_K = 16, 8  # of 192 tokens, as 128 x 64 is of the real clips' thousands


def unions(studio: Studio, pairs: Sequence[Pair]) -> list[Row]:
    """Per source of the Evidence Region, means over the pairs where it is not empty: covered (share of the truly changed tokens in
    it, and in its Active Region), tokens (share of all in it, and active), alignment and PSNR to dense of `joint` with it."""
    found: dict[str, list[Row]] = {name: [] for name in SOURCES}
    stage = studio.stage
    for pair in pairs:
        past = stage.render(pair.history, pair.seed, settings())
        dense = stage.render(pair.target, pair.seed, settings())
        history, probe = stage.history(past, pair.seed), dense.run.finish_probe()
        truth = change.change_region(change.change_map(dense.latent, past.latent, probe.patch).cpu())
        if not bool(truth.any()):
            continue
        signature = stage.signature(probe)
        said = recall.correspond(parse(pair.target), parse(pair.history))
        share, changed = decide.predicted_change(probe, history, ChangeScale())
        recompute: Sequence[tuple[str, str]] = ()
        if not isinstance(said, recall.Refusal):
            loose = gate.Thresholds().scaled(1e9)
            recompute = gate.judge(signature, history.signature or {}, said, loose, share, "", own_steps=True).recompute
        theirs, ours = evidence_union(None, history.signature, recompute), evidence_union(signature, None, recompute)
        for name, region in zip(SOURCES, _combined(theirs, ours, changed), strict=True):
            if region is None or not bool(region.any()):
                continue
            scope = regions(region)
            row = {"covered": _inside(truth, scope.evidence), "covered_active": _inside(truth, scope.active),
                   "tokens": float(scope.evidence.float().mean()), "tokens_active": scope.share()}
            if name in SHOWN:
                weights = latent_weights(token_weights(scope), dense.latent.shape[1:], probe.patch)  # type: ignore[arg-type]
                shown = stage.render(pair.target, pair.seed, settings(mode="joint"),
                                     (probe, Verdict(True, "", history, "id", scope, weights)))
                row |= {"alignment": alignment(picture(shown.latent[None])[0], pair.target)[0],
                        "psnr_latent": min(99.0, psnr(shown.latent, dense.latent))}
            found[name].append(row)
    return [{"source": name, "pairs": len(rows)} | _means(rows) for name, rows in found.items() if rows]


def _combined(theirs: Tensor | None, ours: Tensor | None, changed: Tensor) -> list[Tensor | None]:
    def union(*parts: Tensor | None) -> Tensor | None:
        known = [p for p in parts if p is not None]
        return torch.stack(known).any(0) if known else None
    return [theirs, ours, changed, union(theirs, ours), union(theirs, changed), union(theirs, ours, changed)]


def _inside(truth: Tensor, region: Tensor) -> float:
    return float((truth & region).sum() / truth.sum())


def _means(rows: Sequence[Row]) -> Row:
    names = {k for row in rows for k in row}
    return {k: round(sum(row[k] for row in rows) / len(rows), 3) for k in sorted(names) if all(k in row for row in rows)}


class Watched:
    """Attention mass per block of every self-attention of a dense render, on some of its steps."""

    def __init__(self, grid: tuple[int, int, int], layers: int, every: int) -> None:
        self.order, self.layers, self.every = morton_order(grid), layers, every
        self.mass: dict[tuple[int, int, int], Tensor] = {}  # step, branch, layer -> [H, nq, nk]
        self._calls = 0

    def __call__(self, func: Any, q: Tensor, k: Tensor, v: Tensor, heads: int, *args: Any, **kwargs: Any) -> Tensor:
        if q.shape == k.shape and q.shape[1] == len(self.order):
            step, layer = divmod(self._calls, self.layers)
            self._calls += 1
            if step % self.every == self.every // 2:
                kinds = branches(kwargs.get("transformer_options") or {}, q.shape[0])
                for item, kind in enumerate(kinds):
                    qi, ki = (split_heads(x[item], heads, False)[None].index_select(2, self.order) for x in (q, k))
                    self.mass[step, kind, layer] = mass(qi, ki, BLOCK_Q, BLOCK_K, rows=None)[0]
        return func(q, k, v, heads, *args, **kwargs)  # type: ignore[no-any-return]


def sources(studio: Studio, pairs: Sequence[Pair], coverage: float = 0.9) -> list[Row]:
    """Whose connectivity to follow: share of the target's attention mass that it covers, and its density; means.

    own: the target's own smallest sets (cannot be known); history: of the pair's history; model: averaged over the other
    pairs' histories, as many blocks a row as they keep; random: as many blocks at random."""
    seen = {prompt: _watch(studio, prompt, pair.seed) for pair in pairs for prompt in (pair.history, pair.target)}
    rows: dict[str, list[tuple[float, float]]] = {"own": [], "history": [], "model": [], "random": []}
    generator = torch.Generator().manual_seed(0)
    for pair in pairs:
        others = [seen[p.history] for p in pairs if p is not pair]
        for key, there in seen[pair.target].items():
            theirs = select(seen[pair.history][key], coverage)
            votes = torch.stack([select(other[key], coverage) for other in others]).float()
            width = votes.sum(-1).mean(0).round().long()
            kept = {"own": select(there, coverage), "history": theirs, "model": _widest(votes.mean(0), width),
                    "random": _widest(torch.rand(there.shape, generator=generator), theirs.sum(-1))}
            for name, mask in kept.items():
                rows[name].append((float((there * mask).sum(-1).mean()), float(mask.float().mean())))
    return [{"source": name, "covers": round(sum(c for c, _ in found) / len(found), 4),
             "density": round(sum(d for _, d in found) / len(found), 4)} for name, found in rows.items()]


def _widest(rank: Tensor, width: Tensor) -> Tensor:
    """The `width` [..., nq] highest of every row of rank [..., nq, nk], as flags."""
    return rank.argsort(stable=True, dim=-1, descending=True).argsort(-1) < width[..., None]


def _watch(studio: Studio, prompt: str, seed: int) -> dict[tuple[int, int, int], Tensor]:
    model = studio.stage.model.clone()
    watched = Watched((3, 8, 8), studio.stage.layers, max(1, studio.stage.steps // 4))
    model.model_options["transformer_options"]["optimized_attention_override"] = watched
    studio.stage.sample(model, prompt, seed)
    return watched.mass
