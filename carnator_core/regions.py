"""Reuse scope: Evidence, Active and Context Region on the token grid, and the blending weights W.

Everything is per latent frame on the H x W grid of visual tokens (paper, section 3.3 and C.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from .recall import Correspondence
    from .signature import Signature


@dataclass(frozen=True)
class Regions:
    """evidence <= active <= context, [T, H, W] bool each; active minus evidence is the transition band."""

    evidence: Tensor
    active: Tensor
    context: Tensor

    def share(self) -> float:
        """Share of all tokens that are active, 0..1."""
        return self.active.float().mean().item()


def dilate(region: Tensor, radius: int) -> Tensor:
    """A [T, H, W] bool region grown by `radius` tokens in Chebyshev distance, every latent frame by itself."""
    if radius < 0:
        raise ValueError(f"a dilation radius is at least 0, not {radius}")
    if radius == 0 or region.numel() == 0:
        return region.to(torch.bool)
    grown = F.max_pool2d(region.float()[None], 2 * radius + 1, stride=1, padding=radius)[0]
    return grown > 0.5


def regions(evidence: Tensor, active_radius: int = 2, context_radius: int = 3) -> Regions:
    """Active = evidence dilated by `active_radius` tokens, Context = Active by a further `context_radius`.

    evidence: [T, H, W] bool. An empty one stays empty (the history alone is shown), a full one stays full.
    Raises ValueError for a negative radius or another number of axes.
    """
    if evidence.ndim != 3:
        raise ValueError(f"a region must be [T, H, W], not {list(evidence.shape)}")
    inner = evidence.to(torch.bool)
    active = dilate(inner, active_radius)
    return Regions(inner, active, dilate(active, context_radius))


def token_weights(regions: Regions) -> Tensor:
    """W on the token grid, [T, H, W] float32: 1 in evidence, 0 outside Active, 1 - smoothstep(d / d_max) in the band.

    d is the Chebyshev distance to the Evidence Region within the latent frame, d_max the largest attained in the
    band (C.3), so the band's outermost tokens are the history's own. An active token in a frame without evidence has
    no distance and counts as history.
    """
    distance = torch.full(regions.evidence.shape, torch.inf, device=regions.evidence.device)
    reached = regions.evidence
    distance[reached] = 0.0
    for d in range(1, max(regions.evidence.shape[1:], default=0) + 1):
        if not bool((regions.active & ~reached).any()):
            break
        grown = dilate(reached, 1)
        distance[grown & ~reached] = float(d)
        reached = grown
    band = regions.active & ~regions.evidence & distance.isfinite()
    weights = regions.evidence.float()
    if bool(band.any()):
        x = distance[band] / distance[band].max()
        weights[band] = 1.0 - x * x * (3.0 - 2.0 * x)
    return weights


def latent_weights(token_weights: Tensor, latent_shape: tuple[int, int, int], patch: tuple[int, int, int]) -> Tensor:
    """W in latent resolution, [T, H, W] float32: each token's weight over its patch, cropped to the latent.

    The token grid is that of the latent padded at its far ends to a multiple of the patch, as the hosts pad it.
    Raises ValueError when the grid is not the one that `latent_shape` and `patch` give.
    """
    grid = tuple(-(-size // step) for size, step in zip(latent_shape, patch, strict=True))
    if tuple(token_weights.shape) != grid:
        raise ValueError(f"a latent of {latent_shape} under patches of {patch} has {grid} tokens, "
                         f"not {tuple(token_weights.shape)}")
    weights = token_weights.float()
    for axis, step in enumerate(patch):
        weights = weights.repeat_interleave(step, dim=axis)
    frames, height, width = latent_shape
    return weights[:frames, :height, :width].contiguous()


def differing_entities(correspondence: Correspondence) -> tuple[tuple[str, str], ...]:
    """The (target, history) entities whose regions must be computed anew: the substituted one, and each with a
    modifier that the two prompts do not share. Empty when the prompts agree. Lemmas, in the target's order."""
    substituted = correspondence.substituted
    changed = {name for name, ours, theirs in correspondence.modifiers if ours != theirs}
    pairs = [pair for pair in correspondence.pairs if pair != substituted and changed.intersection(pair)]
    return (*(() if substituted is None else (substituted,)), *pairs)


def evidence_union(
    target: Signature | None,
    history: Signature | None,
    entities: Iterable[tuple[str, str]],
    changed: Tensor | None = None,
) -> Tensor | None:
    """The region to compute anew: for every (target, history) pair both Evidence Regions, and `changed` if given.

    The history's region is where the old thing must go, the target's where the new one comes; `changed` is the change
    region, [T, H, W] bool. None when nothing is known of any of them. Raises ValueError when the grids differ.
    """
    found: Tensor | None = None if changed is None else changed.to("cpu", torch.bool)
    for ours, theirs in entities:
        for sig, name in ((target, ours), (history, theirs)):
            if sig is None or name not in sig:
                continue
            region = sig[name].region
            if found is not None and found.shape != region.shape:
                raise ValueError(f"token grids differ: {list(found.shape)} and {list(region.shape)}")
            found = region if found is None else found | region
    return found
