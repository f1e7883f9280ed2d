"""From a gate's decision to a verdict: what a mode needs besides a history that fits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from carnator.carnator_core.change import ChangeScale
from carnator.carnator_core.decide import NOTHING_NAMED, Candidate, candidates, judge
from carnator.carnator_core.gate import Thresholds
from carnator.carnator_core.history import History, Identity
from carnator.carnator_core.outcome import Probe, Verdict
from carnator.carnator_core.prompt import parse
from carnator.carnator_core.recall import Correspondence
from carnator.carnator_core.record import Trajectory
from carnator.carnator_core.request import Request, Settings
from carnator.carnator_core.signature import signature
from torch import Tensor

GRID = (1, 6, 6)
BOX = torch.zeros(GRID, dtype=torch.bool)
BOX[:, 2:4, 2:4] = True


def judged(changed: Tensor, mode: str) -> Verdict:
    """A verdict on a history from the same noise, in which the prediction differs where `changed` is."""
    generator = torch.Generator().manual_seed(0)
    noise, ours = torch.randn(4, *GRID, generator=generator), torch.randn(4, *GRID, generator=generator)
    theirs = torch.where(changed, ours + 4.0, ours)
    seen = signature({"ball": BOX, "snow": ~BOX}, None)
    history = History(Identity({}), "a red ball on snow", torch.ones(1), noise, torch.tensor([1.0, 0.0]), torch.tensor([1.0]),
                      theirs[None], signature=seen)
    probe = Probe(noise, Trajectory([1.0], [ours[None]]), {"ball": BOX, "snow": ~BOX}, {}, GRID, (1, 1, 1))
    card: Any = SimpleNamespace(id="h1", prompt=history.prompt)
    found = Candidate(card, 0.9, Correspondence((("ball", "ball"), ("snow", "snow")), None, ()), True)
    request: Any = None
    return judge(request, probe, [found], lambda name: history, seen, Thresholds(), ChangeScale(),
                 Settings(mode=mode, active=0, context=0))


@pytest.mark.parametrize("mode", ["joint", "latent"])
def test_a_mode_that_keeps_the_history_outside_a_region_refuses_when_nothing_is_outside(mode: str) -> None:
    verdict = judged(torch.ones(GRID, dtype=torch.bool), mode)
    assert not verdict.accepted and "reaches over the whole picture" in verdict.reason and mode in verdict.reason
    inside = judged(BOX, mode)
    assert inside.accepted and inside.regions is not None and inside.regions.active.equal(BOX)


@pytest.mark.parametrize("mode", ["ours", "forecast"])
def test_forecasting_needs_no_region(mode: str) -> None:
    verdict = judged(torch.ones(GRID, dtype=torch.bool), mode)
    assert verdict.accepted and verdict.regions is None and verdict.weights is None


def recalled(text: str, encoded: str | None, prompt: str, theirs: str | None, subject: str = "") -> Candidate:
    """What a request with a text and a digest of its conditioning recalls of one history from the same noise."""
    request = Request(Identity({}), parse(subject or text), torch.ones(1), torch.zeros(1), torch.zeros(1),
                      facts={"text": text, "conditioning": encoded})
    card: Any = SimpleNamespace(id="h1", prompt=prompt, identity=Identity({}), noise_digest="n",
                                facts={"conditioning": theirs, "subject": subject})
    bank: Any = SimpleNamespace(nearest=lambda *_: [(card, 0.9)], identities=lambda: [Identity({})])
    (found,), reason = candidates(request, bank, "n", Settings())
    assert not reason
    return found


def test_equal_words_of_different_conditionings_tell_nothing() -> None:
    fox = "a fox on snow"
    found = recalled(fox, "a", fox, "b")
    assert found.correspondence is NOTHING_NAMED and "the words are the same" in found.text
    for text, encoded, prompt, theirs in ((fox, "a", fox, "a"), (fox, "a", fox, None), (fox, "a", "the fox on snow", "b")):
        found = recalled(text, encoded, prompt, theirs)
        assert found.correspondence.known and found.correspondence.pairs == (("fox", "fox"), ("snow", "snow"))
    assert recalled("a fox on snow, 4k", "a", "a fox on snow, 8k", "b", subject="a fox on snow").correspondence.known, "its purpose"
    for text, prompt in (("", ""), ("", fox), (fox, "")):
        found = recalled(text, "a", prompt, "b")
        assert found.correspondence is NOTHING_NAMED and found.text == "the prompt's text is not known"
