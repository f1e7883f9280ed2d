"""Steps that are not computed: which ones, what is served instead, and what the next computed step puts right.

One for a sampling run, on a hit (a `Course` chosen from the history, forecasts from it) or on a miss for which the creator
asked for it (a `Pace` by the error seen, forecasts from the render's own slope).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .course import Course
from .forecast import Forecaster, Pace
from .retrospect import Retrospect


@dataclass
class Skipping:
    """forecaster: what a skipped step is served. course or pace: which steps are skipped; with neither, none is.
    corrects: whether the sampler moves by the last prediction alone, so that forecasts can be settled (`retrospect`)."""

    forecaster: Forecaster
    course: Course | None = None
    pace: Pace | None = None
    corrects: bool = False
    _served: Retrospect = field(default_factory=Retrospect)

    def skips(self, step: int, left: int) -> bool:
        """Whether this step is served a forecast; left: steps to go, itself included."""
        if not self.forecaster.points:
            return False
        if self.course is not None:
            return not self.course.due(step)
        return self.pace is not None and not self.pace.compute_next(left)

    def forecast(self, sigma: float, following: float) -> Tensor:
        """The prediction of a skipped step, noted for when the next computed one shows what it should have been."""
        forecast = self.forecaster.predict(sigma)
        if self.corrects:
            self._served.note(sigma, following, forecast)
        return forecast

    def computed(self, step: int, sigma: float, following: float, prediction: Tensor) -> Tensor:
        """A step was computed: what to serve for it, with the errors of the forecasts before it taken out where possible.

        The prediction itself is what later forecasts go by; it is copied.
        """
        settled = prediction
        if self.corrects and self.forecaster.points:
            settled = self._served.settle(sigma, following, prediction, self.forecaster.points[-1][:2],
                                          self.forecaster.predict(sigma), self.forecaster.straight)
        self.observe(step, sigma, prediction.detach().clone())
        return settled

    def observe(self, step: int, sigma: float, prediction: Tensor) -> None:
        """Learn from a prediction that was computed at a step and that nobody changes any more."""
        error = self.forecaster.observe(sigma, prediction)
        if self.course is not None:
            self.course.computed(step, *self.forecaster.moved())
        if self.pace is not None:
            self.pace.computed(error)

    def forget(self) -> None:
        """Another model computes from here on: nothing it predicts is forecast before it was computed once."""
        self.forecaster.points.clear()
        self._served = Retrospect()
