"""Forecasting from history: what the target's next prediction is, read off a render of nearly the same scene.

Between computed steps serve  D^q(s) ~ D^q(s_k) + a (D^j(s) - D^j(s_k)) + slope,  where s_k is the last computed step,
D^j the history, and the weight a is earned, per visual token, at computed steps. What the two renders have in common
drops out, and only their difference has to be smooth. a = 1 trusts the history, a = 0 repeats the last prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

Lookup = Callable[[float], Tensor]
PREDICTORS = ("repeat", "history", "fitted", "slope")


@dataclass
class Forecaster:
    """Predicts between computed steps of one sampling run.

    history(sigma) -> prediction [S, C, T, H, W], or None without a history. weight [T, H, W] in 0..1 says where
    errors count (the Active Region); None counts everywhere.
    """

    history: Lookup | None = None
    weight: Tensor | None = None
    points: list[tuple[float, Tensor, Tensor | None]] = field(default_factory=list)  # sigma, D^q and D^j there
    errors: dict[str, float] = field(default_factory=dict)
    best: str = ""

    def observe(self, sigma: float, prediction: Tensor) -> float:
        """Add a computed prediction; returns the relative error of the best predictor at this step (inf at first).

        The error is ||D_forecast - D|| / ||D||, so that it can be compared between steps and models.
        """
        error = float("inf")
        theirs = self.history(sigma) if self.history is not None else None
        if self.points:
            norm = self._norm(prediction) + 1e-12
            self.errors = {n: self._norm(self._predict(n, sigma, theirs) - prediction) / norm for n in self._available()}
            self.best = min(self.errors, key=lambda n: self.errors[n])
            error = self.errors[self.best]
        self.points = [*self.points[-1:], (float(sigma), prediction, theirs)]
        return error

    def moved(self) -> tuple[float, float]:
        """Squared movement between the last two computed steps: one's own, and the history's. (0, 0) before there are two."""
        if len(self.points) < 2:
            return 0.0, 0.0
        (_, before, theirs_before), (_, last, theirs) = self.points[-2:]
        if theirs is None or theirs_before is None:
            return 0.0, 0.0
        return float((last - before).float().square().sum()), float((theirs - theirs_before).float().square().sum())

    def predict(self, sigma: float) -> Tensor:
        """The forecast prediction at sigma, by the predictor that erred least at the last computed step.

        Raises ValueError before anything was computed.
        """
        if not self.points:
            raise ValueError("nothing was computed yet, so there is nothing to forecast from")
        return self._predict(self._chosen(), sigma)

    @property
    def straight(self) -> bool:
        """Whether the error of what `predict` gives grows in proportion to the distance: no slope of its own is in it."""
        return self._chosen() in ("repeat", "history")

    def _chosen(self) -> str:
        return self.best if self.best in self._available() else ("history" if self.history else "repeat")

    def carried(self, sigma: float) -> Tensor:
        """The last prediction moved as the history moved: what stands where nothing was computed."""
        return self._predict("history" if self.history else "repeat", sigma)

    def _available(self) -> list[str]:
        names = ["repeat"]
        if self.history is not None:
            names.append("history")
        if len(self.points) >= 2:
            names += ["slope"] if self.history is None else ["fitted", "slope"]
        return names

    def _norm(self, x: Tensor) -> float:
        square = x.float().square()
        if self.weight is not None:
            square = square * self.weight.to(square)
        return float(square.sum().sqrt())

    def _predict(self, name: str, sigma: float, theirs: Tensor | None = None) -> Tensor:
        """By one predictor; theirs: the history's prediction at sigma, when it was looked up already."""
        last_sigma, last, last_theirs = self.points[-1]
        if name == "repeat":
            return last
        if name in ("history", "fitted") and theirs is None:
            assert self.history is not None
            theirs = self.history(sigma)
        if name == "history":
            return last + (theirs - last_theirs)  # type: ignore[operator]
        before_sigma, before, before_theirs = self.points[-2]
        reach = min(1.0, abs((sigma - last_sigma) / (last_sigma - before_sigma + 1e-12)))
        if name == "slope":
            return last + (last - before) * reach
        moved = last_theirs - before_theirs  # type: ignore[operator]
        a = self._share(last - before, moved)
        rest = (last - before) - a * moved
        return last + a * (theirs - last_theirs) + rest * reach  # type: ignore[operator]

    @staticmethod
    def _share(own: Tensor, theirs: Tensor) -> Tensor:
        """Least-squares share a in 0..1 of the history's movement in one's own, per latent cell, [S, 1, T, H, W]."""
        dot = (own * theirs).sum(1, keepdim=True)
        return (dot / (theirs.square().sum(1, keepdim=True) + 1e-8)).clamp(0, 1)


@dataclass
class Pace:
    """Decides on a miss which steps are computed after the probe, from the error seen at each computed one.

    tolerance: relative error of a forecast that is accepted, 0 computes every step. At most `longest` steps in a
    row are forecast; the last `tail` calls are always computed, since nothing corrects them.
    """

    tolerance: float
    longest: int = 4
    tail: int = 1
    rate: float = float("inf")  # error per forecast step, as last seen
    waiting: float = 0.0
    skipped: int = 0

    def computed(self, error: float) -> None:
        """A step was computed and its forecast would have erred by `error` after the steps skipped before it."""
        steps = self.skipped + 1
        self.rate = error / steps
        self.waiting, self.skipped = 0.0, 0

    def compute_next(self, calls_left: int) -> bool:
        """Whether the next step (of `calls_left`, itself included) has to be computed."""
        if self.tolerance <= 0 or calls_left <= self.tail or self.skipped >= self.longest:
            return True
        if not self.waiting + self.rate <= self.tolerance:  # an error that is not a number computes, too
            return True
        self.waiting += self.rate
        self.skipped += 1
        return False


def blend(own: Tensor, history: Tensor, weights: Tensor | None) -> Tensor:
    """Region-guided fusion, W * D^q + (1 - W) * D^j (section 3.3); weights [T, H, W], None means all own."""
    if weights is None:
        return own
    w = weights.to(own)
    return torch.where(w >= 1, own, torch.where(w <= 0, history, w * own + (1 - w) * history))
