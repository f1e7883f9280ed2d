"""Fixtures of the host tests; a test module names this one in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from experts import Pair
from families import WAN, model_of
from hosting import Ask, Page, bank_at, ksampler, ltx, wan
from torch import Tensor


@pytest.fixture(scope="session")
def wan_model(comfy: Any) -> Any:
    """The Wan patcher that tests share; whatever a test does to a clone must not show on it."""
    return wan()


@pytest.fixture(scope="session")
def ltx_model(comfy: Any) -> Any:
    """The LTX-Video patcher that tests share."""
    return ltx()


@pytest.fixture
def experts(comfy: Any) -> Pair:
    """The high-noise and the low-noise model of a pair."""
    return model_of(WAN, 0), model_of(WAN, 1)


@pytest.fixture
def page(comfy: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Page]:
    """What nodes say while a test runs. A test that shows a cell of the matrix has to have been told just that."""
    import server

    shown = Page()
    monkeypatch.setattr(server.PromptServer, "instance", shown)
    yield shown
    for mark in request.node.iter_markers("shows"):
        assert mark.args[2] in shown.outcomes, f"marked {mark.args}, but the nodes said: {shown.said}"


@pytest.fixture
def bank(tmp_path: Path) -> Any:
    """An empty bank of a test's own."""
    return bank_at(tmp_path / "bank")


@pytest.fixture(scope="session")
def stock(wan_model: Any) -> Callable[[Ask], Tensor]:
    """The host's own KSampler on the shared Wan model, rendered once for each request."""
    kept: dict[str, Tensor] = {}

    def render(ask: Ask) -> Tensor:
        if str(ask) not in kept:
            kept[str(ask)] = ksampler(wan_model, ask)
        return kept[str(ask)].clone()
    return render
