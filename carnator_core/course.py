"""Which steps a hit computes: chosen from the history, before any step is skipped.

A step that is not computed is served what the last computed one predicted, moved on. What that costs is known of the
history: its predictions D_0 .. D_{n-1} are all there, so the error that skipping would have left in *its* latent can be
computed for any choice of steps. Two renders of nearly the same scene bend at the same places (in the demo world the
target's own error at the same steps lay within 0.8 to 1.5 times the history's), so the steps that are best for the
history are computed for the target.

An ordinary solver of the flow moves by x_{j+1} = r x_j + (1 - r) D_j with r = s_{j+1} / s_j, hence an error e_j of the
prediction at step j is, in x / s, an error of (1 / s_{j+1} - 1 / s_j) e_j. Holding D_i over the steps i+1 .. k-1 leaves
sum_j w_j (D_j - D_i), w_j = 1 / s_{j+1} - 1 / s_j, whose square norm is a quadratic form of the inner products of the
history's movements: its *bend*, a small matrix that a bank keeps beside the predictions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .record import around

# A tolerance of 1 stands for an error of x of this share of the final latent's norm.
UNIT = 0.3
SAMPLED = 1 << 18  # elements of a prediction that go into the bend; more change its entries by little


def bend(predictions: Sequence[Tensor]) -> Tensor:
    """Inner products [m, m] float32 of the movements D_1 - D_0 .. D_{m-1} - D_{m-2} and, last, of D_{m-1} itself.

    predictions: m tensors of one shape. Movements and not predictions, so that small differences stay exact.
    Raises ValueError for no predictions.
    """
    if not len(predictions):
        raise ValueError("a history without predictions has no bend")
    stride = max(1, -(-predictions[0].numel() // SAMPLED))
    flat = torch.stack([p.flatten()[::stride].to("cpu", torch.float32) for p in predictions])
    basis = torch.cat([flat[1:] - flat[:-1], flat[-1:]])
    return basis @ basis.T


def skipping_costs(inner: Tensor, calls: Sequence[float], sigmas: Sequence[float]) -> Tensor:
    """Squared errors [n, n] float64: entry (i, k) is what holding D_i over the steps between i and k leaves in x, as a
    share of |D_{m-1}|^2; infinite for k <= i.

    inner: the `bend` of a history's m calls, made at the noise levels `calls`; sigmas: the n + 1 noise levels of the
    schedule asked for, or its n positive ones. Where the schedules differ, predictions are interpolated as they are when
    served. The error counts as it stands in x at step k, where the next prediction is made from it: counted by what is left
    of it at the end, early steps look free, and a first gap that is too long changes the scene.
    Raises ValueError when these do not fit together.
    """
    m, steps = len(calls), [float(s) for s in sigmas]
    if steps and steps[-1] <= 0:
        steps.pop()
    n = len(steps)
    if inner.shape != (m, m) or n < 1 or min(steps) <= 0:
        raise ValueError(f"a bend {list(inner.shape)} of {m} calls does not fit a schedule of {list(sigmas)}")
    s = torch.tensor(steps, dtype=torch.float64)
    mixed = torch.zeros(n, m, dtype=torch.float64)  # how each step's prediction is mixed from the calls
    for row, sigma in zip(mixed, steps, strict=True):
        found = around(calls, sigma)
        share = (calls[found[0]] - sigma) / (calls[found[0]] - calls[found[-1]]) if len(found) == 2 else 0.0
        row[found[0]] += 1 - share
        row[found[-1]] += share
    weights = torch.zeros(n, dtype=torch.float64)
    weights[:-1] = 1 / s[1:] - 1 / s[:-1]  # the last step is always computed
    summed, totals = (weights[:, None] * mixed).cumsum(0), weights.cumsum(0)
    costs = torch.full((n, n), torch.inf, dtype=torch.float64)
    exact = inner.double().cpu()
    for i in range(n - 1):
        ends = torch.arange(i + 1, n)
        left = summed[ends - 1] - summed[i] - (totals[ends - 1] - totals[i])[:, None] * mixed[i]
        moved = -left.cumsum(1)  # D_j is D_{m-1} less the movements that follow; the last entry, of D_{m-1}, is nought
        costs[i, i + 1:] = ((moved @ exact) * moved).sum(1).clamp_min(0)
    return costs * s**2 / max(float(exact[-1, -1]), 1e-30)


def choose(costs: Tensor, start: int, allowed: float, longest: int) -> tuple[int, ...]:
    """The fewest steps after `start` that keep the summed costs within `allowed`, the last step always among them.

    costs [n, n] squared errors; at most `longest` steps in a row are left out. Of sets of one size the cheapest, by
    dynamic programming over (steps used, last step). When nothing keeps within `allowed`, every step.
    """
    n = costs.shape[0]
    gap = torch.arange(n)[None] - torch.arange(n)[:, None] - 1
    legal = torch.where(gap <= longest, costs, torch.inf)
    best = torch.full((n,), torch.inf, dtype=costs.dtype)
    best[start] = 0.0
    came: list[Tensor] = []
    while not float(best[-1]) <= allowed and len(came) < n - 1 - start:
        best, before = (best[:, None] + legal).min(0)
        came.append(before)
    steps, at = [n - 1], n - 1
    for before in reversed(came):
        at = int(before[at])
        steps.append(at)
    return tuple(sorted({*steps} - {start}))


@dataclass
class Course:
    """The steps that one run computes, chosen anew after each computed one as the target turns out to move.

    costs: of the history, from `skipping_costs`. Its errors are multiplied by the target's own movement against the
    history's over the same steps, seen so far. tolerance: in UNIT; longest: steps left out in a row, of a schedule of 50.
    """

    costs: Tensor
    tolerance: float
    longest: int
    steps: tuple[int, ...] = ()
    at: int = -1
    spent: float = 0.0  # of the history's costs
    own: float = 0.0
    theirs: float = 0.0

    def due(self, step: int) -> bool:
        """Whether a step has to be computed. Every one is, until one was."""
        return self.at < 0 or step in self.steps

    def computed(self, step: int, own: float, theirs: float) -> None:
        """A step was computed; own and theirs: squared movement of the target's and of the history's prediction since the
        step computed before it (0 and 0 at the first). Further calls at one step (heun, dpm_2) say nothing."""
        if step == self.at:
            return
        if 0 <= self.at < step:
            self.spent += float(self.costs[self.at, step])
        self.at, self.own, self.theirs = step, self.own + own, self.theirs + theirs
        scale = self.own / self.theirs if self.theirs > 0 and math.isfinite(self.own) else 1.0
        allowed = (UNIT * self.tolerance) ** 2 / max(scale, 1e-12) - self.spent
        longest = max(1, round(self.longest * len(self.costs) / 50))
        self.steps = choose(self.costs, step, allowed, longest) if step < len(self.costs) - 1 else ()
