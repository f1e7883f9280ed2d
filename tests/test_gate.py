"""The compatibility gate: which discrepancies count, what modifier conflicts lead to, and the words of the answer."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from carnator.carnator_core.gate import Decision, Thresholds, judge, report
from carnator.carnator_core.prompt import Modifier as Said
from carnator.carnator_core.recall import Correspondence
from carnator.carnator_core.signature import EntitySignature, Signature, signature
from hypothesis import given, settings
from hypothesis import strategies as st

BALL, SNOW, WOLF = ("ball", "ball"), ("snow", "snow"), ("wolf", "fox")  # (target, history)
GREY, RED, BLUE = (0.5, 0.5, 0.5), (0.8, 0.1, 0.1), (0.1, 0.1, 0.8)
WIDE = Thresholds(size=0.7, shape=0.5, colour=20.0, motion=0.12, change=0.6)


def match(
    pairs: tuple[tuple[str, str], ...] = (),
    substituted: tuple[str, str] | None = None,
    modifiers: tuple[tuple[str, Said | None, Said | None], ...] = (),
) -> Correspondence:
    return Correspondence(pairs, substituted, modifiers)


def thing(rgb: tuple[float, float, float] | None = GREY, *, height: int = 3, width: int = 3, step: int = 0,
          frames: int = 3) -> EntitySignature:
    """A box on an 8 x 12 grid that moves `step` tokens a latent frame to the right."""
    region = torch.zeros(frames, 8, 12, dtype=torch.bool)
    for t in range(frames):
        left = 5 + t * step
        region[t, 2 : 2 + height, left : left + width] = True
    return signature({"it": region}, None if rgb is None else torch.tensor(rgb).expand(16, 24, 3))["it"]


def unseen() -> EntitySignature:
    return signature({"it": torch.zeros(3, 8, 12, dtype=torch.bool)}, None)["it"]


def decide(ours: Signature, theirs: Signature, correspondence: Correspondence, share: float | None = None,
           thresholds: Thresholds = WIDE) -> Decision:
    return judge(ours, theirs, correspondence, thresholds, share, "h1")


def measured(decision: Decision) -> set[tuple[str, str]]:
    return {(d.entity, d.name) for d in decision.distances}


def test_a_shared_entity_is_compared_in_colour_and_motion() -> None:
    found = decide({"ball": thing()}, {"ball": thing()}, match((BALL,)))
    assert found.accepted
    assert found.history_id == "h1"
    assert measured(found) == {("ball", "colour"), ("ball", "motion")}
    assert found.recompute == ()
    assert found.reason == "nothing differs by name"
    assert found.unmeasured == ("predicted change",)


def test_without_words_it_does_not_say_that_nothing_differs() -> None:
    unknown = Correspondence((), None, (), known=False)
    found = decide({}, {}, unknown, 0.5)
    assert found.accepted and found.reason == "words do not tell what differs; about 50% of the picture changes"
    much = decide({}, {}, unknown, 0.6)
    assert not much.accepted and much.reason == "words do not tell what differs, and 60% of the picture changes"
    assert decide({}, {}, match(), 0.6).accepted, "where words were compared, they vouch for it"
    assert not decide({}, {}, unknown, 0.93).accepted and not decide({}, {}, unknown).accepted
    assert decide({}, {}, match(), 0.5).reason == "nothing differs by name; about 50% of the picture changes"


def test_a_substituted_entity_is_compared_in_all_and_computed_anew() -> None:
    ours, theirs = {"wolf": thing(), "snow": thing()}, {"fox": thing(), "snow": thing()}
    for agreed in (match((SNOW,), WOLF), match((SNOW, WOLF), WOLF)):
        found = decide(ours, theirs, agreed, 0.24)
        assert found.accepted
        assert {name for entity, name in measured(found) if entity == "wolf"} == {"size", "shape", "colour", "motion"}
        assert found.recompute == (WOLF,)
        assert found.reason == "computed anew: wolf for fox; about 24% of the picture changes"


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (thing(RED), thing(BLUE), "another colour here (difference 46, at most 20)"),
        (thing(height=6, width=6), thing(height=3, width=3), "4.0 times larger here (at most 2.0 times)"),
        (thing(height=2, width=2), thing(height=5, width=5), "6.2 times smaller here (at most 2.0 times)"),
        (thing(height=1, width=7), thing(height=3, width=3), "another shape here (0.65 apart, at most 0.50)"),
        (thing(step=2), thing(step=-2), "moves the other way here (100% of the frame apart, at most 12%)"),
        (thing(step=1), thing(step=0), "moves differently here (25% of the frame apart, at most 12%)"),
        (unseen(), thing(), "not to be seen here in the last frame"),
        (thing(), unseen(), "not to be seen there in the last frame"),
    ],
)
def test_each_discrepancy_refuses_in_words(ours: EntitySignature, theirs: EntitySignature, words: str) -> None:
    found = decide({"wolf": ours}, {"fox": theirs}, match((), WOLF))
    assert not found.accepted
    assert f"wolf for fox: {words}" in found.reason
    assert any(not d.within for d in found.distances)


def test_a_shared_entity_that_moves_the_other_way_refuses() -> None:
    found = decide({"ball": thing(step=1)}, {"ball": thing(step=-1)}, match((BALL,)))
    assert found.reason == "ball: moves the other way here (50% of the frame apart, at most 12%)"


def test_too_much_predicted_change_refuses() -> None:
    agreed = match((BALL,))
    assert decide({"ball": thing()}, {"ball": thing()}, agreed, 0.6).accepted
    found = decide({"ball": thing()}, {"ball": thing()}, agreed, 0.83)
    assert found.reason == "the new words change about 83% of the picture (at most 60%)"


def test_what_is_not_measured_is_named_and_not_counted() -> None:
    found = decide({"ball": thing(None, frames=1)}, {"ball": thing(frames=1)}, match((BALL,)), 0.1)
    assert found.accepted
    assert measured(found) == {("", "change")}
    assert found.unmeasured == ("ball: colour", "ball: motion")
    assert "not measured: ball: colour, ball: motion" in report(found)


@pytest.mark.parametrize("share", [None, math.nan])
def test_nothing_measured_is_never_waved_through(share: float | None) -> None:
    for ours, theirs in (({}, {}), ({"ball": thing(None, frames=1)}, {"ball": thing(None, frames=1)})):
        found = decide(ours, theirs, match((BALL,)), share)
        assert not found.accepted
        assert "nothing could be compared" in found.reason


def test_an_unseen_substitution_is_refused_although_the_rest_agrees() -> None:
    agreed = match((SNOW,), WOLF)
    found = decide({"snow": thing()}, {"snow": thing(), "fox": thing()}, agreed)
    assert not found.accepted
    assert found.reason == "wolf for fox: not to be seen in the first steps, so nothing could be compared"
    assert decide({"snow": thing()}, {"snow": thing(), "fox": thing()}, agreed, 0.2).accepted


def test_without_names_the_change_map_alone_decides() -> None:
    assert decide({}, {}, match(), 0.3).accepted
    assert not decide({}, {}, match(), 0.7).accepted


@pytest.mark.parametrize("kind", ["colour", "material"])
def test_a_declared_colour_is_computed_anew_and_not_held_against_the_history(kind: str) -> None:
    ours, theirs = {"ball": thing(RED)}, {"ball": thing(BLUE)}
    assert not decide(ours, theirs, match((BALL,))).accepted
    found = decide(ours, theirs, match((BALL,), None, (("ball", Said(kind, "red"), Said(kind, "blue")),)))
    assert found.accepted
    assert found.recompute == (BALL,)
    assert [d.expected for d in found.distances if d.name == "colour"] == [True]
    assert "asked for" in report(found)


def test_a_declared_colour_does_not_excuse_another_entity() -> None:
    agreed = match((BALL, SNOW), None, (("ball", Said("colour", "red"), Said("colour", "blue")),))
    found = decide({"ball": thing(), "snow": thing(RED)}, {"ball": thing(), "snow": thing(BLUE)}, agreed)
    assert found.reason.startswith("snow: another colour here")


def test_a_local_conflict_needs_a_known_region() -> None:
    agreed = match((BALL, SNOW), None, (("ball", Said("size", "big"), None),))
    ours, theirs = {"ball": unseen(), "snow": thing()}, {"ball": unseen(), "snow": thing()}
    found = decide(ours, theirs, agreed)
    assert "ball: size none -> big, and the first steps do not show where" in found.reason
    assert decide(ours, theirs | {"ball": thing()}, agreed).accepted
    assert decide(ours, theirs, agreed, 0.1).accepted  # the change map shows where


@pytest.mark.parametrize("kind", ["count", "negation", "action", "direction", "relation", "something new"])
def test_a_far_reaching_conflict_that_nothing_shows_refuses(kind: str) -> None:
    agreed = match((BALL,), None, (("ball", Said(kind, "left"), Said(kind, "right")),))
    found = decide({"ball": thing()}, {"ball": thing()}, agreed)
    assert not found.accepted
    assert f"ball: {kind} right -> left" in found.reason
    by_change_map = decide({"ball": thing()}, {"ball": thing()}, agreed, 0.2)
    assert by_change_map.accepted
    assert by_change_map.recompute == (BALL,)
    assert not decide({"ball": thing()}, {"ball": thing()}, agreed, 0.9).accepted


def test_a_direction_that_the_first_steps_show_is_computed_anew() -> None:
    agreed = match((BALL,), None, (("ball", Said("direction", "left"), Said("direction", "right")),))
    found = decide({"ball": thing(step=-1)}, {"ball": thing(step=1)}, agreed)
    assert found.accepted
    assert found.recompute == (BALL,)
    for other in ("negation", "relation"):  # seen motion shows neither
        conflict = match((BALL,), None, (("ball", Said(other, "no"), None),))
        assert not decide({"ball": thing(step=-1)}, {"ball": thing(step=1)}, conflict).accepted


def test_a_count_shows_in_the_size_of_a_substituted_entity_only() -> None:
    said = (("wolf", Said("count", "2"), None),)
    seen = decide({"wolf": thing(width=7)}, {"fox": thing(width=3)}, match((), WOLF, said))
    assert seen.accepted
    assert not decide({"wolf": thing()}, {"fox": thing()}, match((), WOLF, said)).accepted


def test_a_conflict_of_the_whole_scene_needs_the_change_map() -> None:
    agreed = match((BALL,), None, (("", Said("action", "zoom in"), None),))
    found = decide({"ball": thing()}, {"ball": thing()}, agreed)
    assert found.reason == "camera none -> zoom in, and nothing shows where"
    assert decide({"ball": thing()}, {"ball": thing()}, agreed, 0.3).accepted


def test_other_grids_are_a_miss_with_the_reason() -> None:
    found = decide({"ball": thing(frames=3)}, {"ball": thing(frames=5)}, match((BALL,)), 0.0)
    assert not found.accepted
    assert found.reason == "ball: the token grids differ, 3 x 8 x 12 here and 5 x 8 x 12 there"


def test_all_reasons_are_given() -> None:
    found = decide({"wolf": thing(RED, height=6, width=6)}, {"fox": thing(BLUE)}, match((), WOLF), 0.7)
    assert found.reason.count(";") == 2


def test_own_steps_hold_only_what_the_prompts_agree_on() -> None:
    target = {"wolf": thing(RED, height=6, width=6), "ball": thing(BLUE)}
    history = {"fox": thing(BLUE), "ball": thing(BLUE)}
    wanted = match((BALL,), WOLF)
    assert not judge(target, history, wanted, WIDE, 0.3).accepted
    found = judge(target, history, wanted, WIDE, 0.3, own_steps=True)
    assert found.accepted
    assert all(d.expected for d in found.distances if d.entity == "wolf")
    assert not judge(target, history, wanted, WIDE, None, own_steps=True).accepted  # without the change map nothing vouches
    history["ball"] = thing(RED)
    assert not judge(target, history, wanted, WIDE, 0.3, own_steps=True).accepted  # the ball was not asked to change


def test_report_and_json() -> None:
    found = decide({"wolf": unseen()}, {"fox": thing()}, match((), WOLF), 0.7, Thresholds(colour=math.inf, change=0.6))
    lines = report(found).splitlines()
    assert lines[0] == "no reuse: " + found.reason
    assert "picture          change      0.700  at most    0.600  TOO FAR" in "\n".join(lines)
    back = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert back["accepted"] is False
    assert {(d["name"], d["value"]) for d in back["distances"]} >= {("size", None), ("change", 0.7)}


def test_thresholds() -> None:
    chosen = Thresholds(size=math.inf, colour=5.0)
    assert Thresholds.from_dict(json.loads(json.dumps(chosen.to_dict(), allow_nan=False))) == chosen
    assert Thresholds.from_dict({"motion": 0.3}) == Thresholds(motion=0.3)
    assert chosen.scaled(0.5).colour == 2.5
    assert chosen.scaled(0.5).size == math.inf
    with pytest.raises(ValueError, match="unknown thresholds: hue"):
        Thresholds.from_dict({"hue": 1.0})
    for wrong in (-1.0, math.nan):
        with pytest.raises(ValueError, match="motion threshold"):
            Thresholds(motion=wrong)


boxes = st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(-1, 1), st.sampled_from([GREY, RED, BLUE, None]))


@given(boxes, boxes, st.one_of(st.none(), st.floats(0, 1)), st.floats(0.1, 1.0))
@settings(max_examples=40, deadline=None)
def test_stricter_thresholds_never_accept_more_and_every_refusal_has_words(
    a: tuple[int, int, int, Any], b: tuple[int, int, int, Any], share: float | None, factor: float
) -> None:
    ours, theirs = ({"x": thing(c, height=h, width=w, step=s)} for h, w, s, c in (a, b))
    agreed = match((), ("x", "x"))
    loose, strict = decide(ours, theirs, agreed, share), decide(ours, theirs, agreed, share, WIDE.scaled(factor))
    assert loose.accepted or not strict.accepted
    assert loose.reason
    assert loose.accepted == all(d.within for d in loose.distances)
