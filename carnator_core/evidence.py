"""Evidence Regions: where in the clip an entity is, read from the model's own attention (paper, section 3.2 and C.1).

Seeds come from the cross-attention to the entity's words, grow through self-attention, and the two are fused and
thresholded. q and k are [heads, N, d] of one guidance branch, after normalisation and rotation, in any float dtype;
softmax is computed in float32. N x N attention is never held: rows are taken in chunks, one head at a time.

The defaults were chosen on 56 objects of a small Wan at steps 2 to 10 of 30: Otsu's level reaches the mean IoU of the
best fixed one (.54), whose place wanders from .7 to .25 as sigma falls. Places (snow, sand) are another matter: their
attention covers a fifth of what they are, so where a place changes the region must come from the change map.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Grid = tuple[int, int, int]


@dataclass(frozen=True)
class Evidence:
    """region: [T, H, W] bool, the Evidence Region. soft: [T, H, W] float32, F in 0..1, for a viewer."""

    region: Tensor
    soft: Tensor


def cross_response(q: Tensor, k: Tensor, columns: Sequence[int], chunk: int = 4096, bias: Tensor | None = None) -> Tensor:
    """C_i of one layer: mean over heads of softmax(q k^T / sqrt d + bias), summed over the entity's text slots; [N] float32.

    q: [heads, N, d] visual tokens; k: [heads, L, d] text slots; columns: indices into L; bias [L]: of an attention mask.
    Without columns, zeros.
    Raises IndexError for a column that does not exist.
    """
    total = torch.zeros(q.shape[1], dtype=torch.float32, device=q.device)
    wanted = sorted(set(columns))
    if not wanted:
        return total
    if wanted[0] < 0 or wanted[-1] >= k.shape[1]:
        raise IndexError(f"text slots {wanted} of {k.shape[1]}")
    index = torch.tensor(wanted, device=q.device)
    keys = k.float().transpose(1, 2) * q.shape[2] ** -0.5
    for start in range(0, q.shape[1], chunk):
        logits = q[:, start : start + chunk].float() @ keys
        weights = torch.softmax(logits if bias is None else logits + bias, dim=-1)
        total[start : start + chunk] = weights[..., index].sum(dim=-1).mean(dim=0)
    return total


def seeds(response: Tensor, positive: float = 0.9, negative: float = 0.6, most: int = 1024) -> tuple[Tensor, Tensor]:
    """I+ and I-: the tokens above the `positive` and below the `negative` quantile of C; two int64 index tensors.

    At least one and at most `most` of each, an even sample of their quantile. A response without contrast (range
    within 1 % of its maximum, which is what half precision leaves of a constant) or not finite has no seeds.
    """
    count = response.numel()
    none = torch.empty(0, dtype=torch.int64, device=response.device)
    if count < 2 or not bool(response.isfinite().all()):
        return none, none
    value = response.float()
    if float(value.max() - value.min()) <= 0.01 * float(value.max().abs()):
        return none, none
    order = torch.argsort(value, stable=True)
    high = max(1, round((1.0 - positive) * count))
    low = min(max(1, round(negative * count)), count - high)
    return order[count - high :][:: -(-high // most)], order[:low][:: -(-low // most)]


def expand(
    q: Tensor,
    k: Tensor,
    positive: Tensor,
    negative: Tensor,
    chunk: int = 1024,
    sampled: int | None = None,
) -> Tensor:
    """S_i: mean over heads of max over I+ of A_self[i, u] minus max over I- of A_self[i, u]; [N] float32.

    q, k: [heads, N, d]. The row sums of the softmax run over all N keys or, with `sampled`, over the seeds and that
    many evenly spaced others, scaled up: N x sampled instead of N x N, and nearly the same ranking, since the seeds
    hold what the object's tokens attend to most. A set without tokens contributes zero.
    """
    heads, count, width = q.shape
    columns = torch.cat((positive, negative)).to(q.device)
    total = torch.zeros(count, dtype=torch.float32, device=q.device)
    if len(columns) == 0:
        return total
    rest = torch.ones(count, dtype=torch.bool, device=q.device)
    rest[columns] = False
    others = torch.nonzero(rest).flatten()
    picked = others if sampled is None else others[:: max(1, len(others) // max(1, sampled))]
    scale = math.log(len(others) / len(picked)) if len(picked) else 0.0
    for head in range(heads):
        keys = k[head].float().T * width**-0.5
        seed_keys, other_keys = keys[:, columns], keys[:, picked]
        for start in range(0, count, chunk):
            rows = q[head, start : start + chunk].float()
            logits = rows @ seed_keys
            others_sum = torch.logsumexp(rows @ other_keys, dim=-1) + scale
            weights = torch.exp(logits - torch.logaddexp(torch.logsumexp(logits, dim=-1), others_sum)[:, None])
            total[start : start + chunk] += _row_max(weights[:, : len(positive)])
            total[start : start + chunk] -= _row_max(weights[:, len(positive) :])
    return total / heads


def support(cross: Tensor, self_: Tensor, gamma: float = 1.5, epsilon: float = 0.1) -> Tensor:
    """F = Norm[S (epsilon + (1 - epsilon) C^gamma)], with C and S brought to 0..1 first (C.1); [N] float32 in 0..1."""
    return _norm(_norm(self_) * (epsilon + (1.0 - epsilon) * _norm(cross) ** gamma))


def otsu(values: Tensor, bins: int = 64) -> float:
    """The level that splits values in 0..1 into two classes with the largest variance between them (Otsu 1979)."""
    counts = torch.histc(values.float().cpu(), bins=bins, min=0.0, max=1.0).double()
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below, mass = counts.cumsum(0), (counts * centres).cumsum(0)
    above = below[-1] - below
    between = below * above * (mass / below.clamp_min(1.0) - (mass[-1] - mass) / above.clamp_min(1.0)) ** 2
    best = torch.nonzero(between == between.max()).flatten()
    return float(best.double().mean() + 1.0) / bins  # an empty gap between the classes is split in its middle


def evidence_region(support: Tensor, grid: Grid, threshold: float | None = None) -> Tensor:
    """R_evidence: the tokens whose support exceeds the threshold (Otsu's level when None); [T, H, W] bool.

    support: [N] in 0..1 with N = T x H x W. A flat support is no evidence: the region is empty.
    Raises ValueError when N does not fit the grid.
    """
    soft = soft_support(support, grid)
    if float(soft.max()) <= 0.0:
        return torch.zeros_like(soft, dtype=torch.bool)
    return soft > (otsu(soft) if threshold is None else threshold)


def soft_support(support: Tensor, grid: Grid) -> Tensor:
    """The support on its token grid, [T, H, W] float32 in 0..1; raises ValueError when it does not fit."""
    if support.numel() != grid[0] * grid[1] * grid[2]:
        raise ValueError(f"{support.numel()} tokens do not fill a grid of {grid}")
    return support.float().reshape(grid)


def locate(
    cross: Tensor, attentions: Sequence[tuple[Tensor, Tensor]], grid: Grid, sampled: int | None = None
) -> Evidence:
    """Seeds, expansion, fusion and threshold in one: an entity's Evidence from C and some layers' self-attention.

    cross: [N]. attentions: (q, k) of each layer, [heads, N, d]; their S are brought to 0..1 before the mean, so that
    no layer outweighs the others. An entity without response gives an empty region and zero support.
    """
    positive, negative = seeds(cross)
    grown = [_norm(expand(q, k, positive, negative, sampled=sampled)) for q, k in attentions]
    fused = support(cross, torch.stack(grown).mean(dim=0))
    return Evidence(evidence_region(fused, grid), soft_support(fused, grid))


def _norm(values: Tensor) -> Tensor:
    """To 0..1 in float32 between the minimum and the 99 % quantile, beyond which is 1; zeros when flat or not finite.

    One token of outlying attention (to itself, or a sink) would otherwise push the whole object under the threshold.
    """
    value = values.float()
    low, high = value.min(), value.max()
    if not bool(torch.isfinite(high - low)) or bool(high <= low):
        return torch.zeros_like(value)
    common = value.kthvalue(value.numel() - value.numel() // 100).values
    high = common if bool(common > low) else high
    return ((value - low) / (high - low)).clamp_max(1.0)


def _row_max(weights: Tensor) -> Tensor:
    return weights.amax(dim=-1) if weights.shape[1] else weights.new_zeros(weights.shape[0])
