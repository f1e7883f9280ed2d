"""What the page is told of a comparison: regions by pair, bands, distances; and the history's picture."""

from __future__ import annotations

import base64
import io

import numpy as np
import torch
from carnator.carnator_core.gate import Decision, Distance
from carnator.carnator_core.hosts.telling import data_url, told_of
from carnator.carnator_core.outcome import Look, Probe, Verdict
from carnator.carnator_core.record import Trajectory
from carnator.carnator_core.regions import regions
from carnator.carnator_core.request import Settings
from carnator.carnator_core.signature import signature
from carnator.carnator_core.view import view
from PIL import Image
from torch import Tensor

GRID = (2, 6, 8)


def block(row: int, column: int, size: int = 2) -> Tensor:
    region = torch.zeros(GRID, dtype=torch.bool)
    region[:, row : row + size, column : column + size] = True
    return region


def unpacked(text: str) -> Tensor:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(text), np.uint8))[: 2 * 6 * 8]
    return torch.from_numpy(bits.astype(bool)).reshape(GRID)


def probe() -> Probe:
    found = {"cube": block(1, 1), "snow": block(3, 4)}
    return Probe(torch.zeros(1, *GRID), Trajectory([1.0], [torch.zeros(1, 1, *GRID)]), found, {}, GRID, (1, 1, 1))


def verdict(accepted: bool) -> Verdict:
    far = Distance("colour", "snow", float("inf"), 20.0)
    scope = regions(block(1, 1), 1, 2) if accepted else None
    return Verdict(accepted, "because", history_id="h" if accepted else "", regions=scope,
                   decision=Decision(accepted, "because", (far,), "h", ("cube: motion",)), look=Look("a ball on snow"))


def test_a_thing_that_was_exchanged_is_one_row_with_both_regions() -> None:
    remembered = signature({"ball": block(0, 0), "snow": block(3, 3), "tree": block(4, 6)}, None)
    shown = view(probe(), verdict(True), remembered, [("cube", "ball")], Settings())
    rows = {(r["target"], r["history"]): r for r in shown["entities"]}
    assert list(rows) == [("cube", "ball"), ("snow", "snow"), ("", "tree")]
    assert torch.equal(unpacked(rows["cube", "ball"]["target_region"]), block(1, 1))
    assert torch.equal(unpacked(rows["cube", "ball"]["history_region"]), block(0, 0))
    assert rows["", "tree"]["target_region"] == ""
    scope = regions(block(1, 1), 1, 2)
    assert all(torch.equal(unpacked(shown["bands"][n]), getattr(scope, n)) for n in ("evidence", "active", "context"))


def test_a_refusal_shows_what_a_reuse_would_have_started_from_and_what_was_too_far() -> None:
    shown = view(probe(), verdict(False), None, [], Settings(active=1, context=1))
    assert torch.equal(unpacked(shown["bands"]["evidence"]), block(1, 1) | block(3, 4))
    assert shown["decision"] == "miss" and shown["history"] == "h" and shown["history_prompt"] == "a ball on snow"
    (row,) = shown["distances"]
    assert row["value"] is None and row["threshold"] == 20.0 and not row["within"]
    assert shown["unmeasured"] == ["cube: motion"]


def test_a_probe_alone_has_no_decision() -> None:
    shown = view(probe(), None, None, [], Settings())
    assert shown["decision"] == "" and shown["distances"] == [] and len(shown["entities"]) == 2


def test_the_picture_is_small_and_of_the_right_shape() -> None:
    address = data_url(torch.full((480, 832, 3), 90, dtype=torch.uint8))
    head, body = address.split(",")
    picture = Image.open(io.BytesIO(base64.b64decode(body)))
    assert head == "data:image/jpeg;base64" and picture.size == (160, 92) and len(address) < 10_000
    assert told_of(None)["thumbnail"] == "" and told_of(verdict(True))["thumbnail"] == ""
