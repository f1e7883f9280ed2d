"""Calibration: pairs as JSON lines, the split, the profile and where it counts as certified; the node and the command."""

from __future__ import annotations

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from carnator.carnator_core.calibrate import (
    calibrate,
    merged,
    only,
    pack_version,
    pairs_of,
    read_pairs,
    split,
    tolerances_of,
)
from carnator.carnator_core.change import ChangeScale
from carnator.carnator_core.gate import Distance, Thresholds
from carnator.carnator_core.history import Identity
from carnator.carnator_core.profile import LARGEST, Profile, model_of, shape_class
from carnator.carnator_core.request import Settings
from carnator.carnator_core.verdicts import Hit, Label
from carnator.demo.calibrate import main
from hosting import ANYTHING, GATE_DEFAULTS, Ask, Page, entries, ksampler, node, reuse

pytest_plugins = ["hosting_fixtures"]
IDENTITY = Identity({"model": "WAN21", "weights": "0123456789abcdef", "patches": "none", "latent": "16x3x8x8"})
FACTS = {"model": model_of(IDENTITY), "shape_class": "16x3x8x8", "settings": {"mode": "ours", "probe": 4, "tolerance": 0.25}}


def world(count: int, seed: int, noise: float = 0.0) -> list[str]:
    """Lines of pairs that are safe while little changes; with `noise`, some are unsafe whatever is measured."""
    rng = random.Random(seed)
    rows = []
    for i in range(count):
        change, colour = rng.random(), 40 * rng.random()
        safe = change <= 0.5 and colour <= 20 and rng.random() >= noise
        rows.append(json.dumps({"distances": {"change": change, "colour": colour}, "safe": safe, "request": f"r{i // 2}"}))
    return [json.dumps({"facts": FACTS}), *rows]


def made(count: int = 800, **how: Any) -> tuple[Profile, str]:
    return calibrate(read_pairs("\n".join(world(count, 3))), "tiny", **how)


def test_thresholds_come_near_the_truth_and_are_certified_on_other_pairs() -> None:
    profile, report = made(alpha=0.0)
    assert 0.4 < profile.thresholds.change <= 0.5 and 15 < profile.thresholds.colour <= 20
    held = profile.certificate
    assert held is not None
    assert held["tried"] + held["chosen_on"]["tried"] == 800 and abs(held["tried"] - 400) <= 2
    assert (held["unsafe"], held["bound"] < 0.05, held["confidence"]) == (0, True, 0.95)
    assert (held["model"], held["shape_class"], held["settings"]) == tuple(FACTS.values())
    assert (held["pack_version"], held["sources"], len(held["date"])) == (pack_version(), {"bench": 800}, 10)
    assert "certified: at most" in report and "0 unsafe" in report


def test_a_bound_that_is_not_reached_says_how_many_pairs_it_takes() -> None:
    _, report = made(100, alpha=0.05)
    assert "for a bound of 5% at 95%, 59 accepted pairs are needed with 0 unsafe among them" in report


def test_nothing_accepted_certifies_nothing() -> None:
    rows = [json.dumps({"distances": {"change": 0.1 * i}, "safe": False}) for i in range(8)]
    profile, report = calibrate(read_pairs("\n".join(rows)), "none")
    assert profile.certificate is None and report.splitlines()[-1].startswith("uncertified: nothing was accepted")
    assert profile.standing(IDENTITY, Settings()) == "uncertified: it has no certificate"


def test_the_bound_covers_the_true_risk_of_chosen_thresholds_in_simulation() -> None:
    """Choosing on one half must not spoil the bound of the other: in 100 worlds it fails about 5 times, not much more."""
    failed = 0
    for seed in range(100):
        profile, _ = calibrate(read_pairs("\n".join(world(120, seed, noise=0.1))), "x", alpha=0.2, seed=seed)
        change, colour = min(profile.thresholds.change, 1.0), min(profile.thresholds.colour, 40.0)
        sound = 0.9 * min(change, 0.5) * min(colour, 20.0) / (change * colour)
        held = profile.certificate
        failed += held is not None and 1.0 - sound > held["bound"]
    assert failed <= 5 + 3 * math.sqrt(100 * 0.05 * 0.95)


def test_halves_are_disjoint_whole_requests_and_repeatable() -> None:
    pairs = read_pairs("\n".join(world(101, 1)))
    one, other = split(pairs, 5)
    assert len(one) + len(other) == 101 and abs(len(one) - len(other)) <= 3
    assert not {p.request for p in one} & {p.request for p in other}
    assert split(pairs, 5) == (one, other) and split(pairs, 6) != (one, other)


def test_labels_come_from_metrics_where_tolerances_are_given() -> None:
    row = {"distances": {"change": 0.2}, "quality": {"psnr": 28.0}, "dense": {"psnr": 30.0}}
    (pair,) = read_pairs(json.dumps(row))
    assert pair.sample({"psnr": 2.0}).safe and not pair.sample({"psnr": 1.0}).safe
    with pytest.raises(ValueError, match="has no label"):
        pair.sample({})
    (pair,) = read_pairs(json.dumps({**row, "safe": True, "quality": {"psnr": None}}))
    assert pair.sample({}).safe and not pair.sample({"psnr": 9.0}).safe


@pytest.mark.parametrize(("line", "complaint"), [
    ("{", "line 2 of the pairs is not JSON"),
    ("[" * 100_000, "line 2 of the pairs is not JSON"),
    ("[]", "line 2 of the pairs is no pair"),
    ("{}", "line 2 of the pairs is no pair"),
    ('{"distances": {"hue": 1}, "safe": true}', "unknown distances: hue"),
    ('{"distances": {"size": 1}}', '"safe" has to be true or false'),
    ('{"distances": {"size": 1}, "safe": "yes"}', '"safe" has to be true or false'),
    ('{"distances": {"size": "x"}, "safe": true}', "line 2 of the pairs is no pair"),
    ('{"distances": [1], "safe": true}', "line 2 of the pairs is no pair"),
])
def test_a_bad_line_is_named(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint.replace("(", r"\(")):
        read_pairs('{"distances": {}, "safe": true}\n' + line)


def test_infinite_distances_and_pairs_refused_anyway() -> None:
    text = '{"distances": {"size": null}, "safe": true}\n\n{"distances": {}, "safe": true, "admissible": false}'
    one, other = read_pairs(text)
    assert one.distances == {"size": math.inf} and one.sample({}).admissible and not other.sample({}).admissible


def test_pairs_of_several_models_are_not_mixed() -> None:
    text = "\n".join([*world(20, 1), json.dumps({"facts": {**FACTS, "model": "LTXV 77"}}), *world(20, 2)[1:]])
    pairs = read_pairs(text)
    with pytest.raises(ValueError, match="more than one model"):
        calibrate(pairs, "x")
    profile, _ = calibrate(only(pairs, model="LTXV"), "x")
    assert profile.certificate is not None and profile.certificate["model"] == "LTXV 77"
    assert len(only(pairs, shape="16x3x8x8")) == 40 and only(pairs, mode="joint") == []


def test_facts_that_some_leave_open_are_filled_in_and_the_tightest_tolerance_counts() -> None:
    assert merged([{"model": "a"}, {"settings": {"mode": "ours", "tolerance": 0.5}}, {"settings": {"tolerance": 0.1}}]) == {
        "model": "a", "settings": {"mode": "ours", "tolerance": 0.1}}
    with pytest.raises(ValueError, match="more than one mode"):
        merged([{"settings": {"mode": "ours"}}, {"settings": {"mode": "joint"}}])


@pytest.mark.parametrize("how", [{"alpha": 1.0}, {"alpha": -0.1}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_figures_out_of_range(how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="the risk has to be"):
        made(**how)


@pytest.mark.parametrize("text", ["", '{"distances": {}, "safe": true}', "\n".join(
    ['{"distances": {}, "safe": true, "request": "same"}'] * 9)])
def test_too_few_to_split(text: str) -> None:
    with pytest.raises(ValueError, match="too few to choose"):
        calibrate(read_pairs(text), "x")


def test_a_creators_verdicts_are_pairs() -> None:
    distances = (Distance("colour", "fox", 31.0, 20.0, expected=True), Distance("colour", "snow", 4.0, 20.0),
                 Distance("size", "fox", math.inf, 0.7), Distance("change", "", 0.2, 1.0))
    hit = Hit("0" * 24, "1" * 24, "a red fox", "a wolf", "ours", 0.9, distances, 1.0, 2.0, "WAN21 77", "16x3x8x8", 4, 0.25)
    kept, wrong = pairs_of([Label(hit, True, 3.0), Label(dataclasses.replace(hit, prompt="a dog"), False, 4.0)])
    assert kept.distances == {"colour": 4.0, "size": math.inf, "change": 0.2}
    assert (kept.safe, wrong.safe, kept.source, kept.request) == (True, False, "creator", "a wolf")
    assert kept.facts == {"model": "WAN21 77", "shape_class": "16x3x8x8",
                          "settings": {"mode": "ours", "probe": 4, "tolerance": 0.25}}
    _, report = calibrate([kept, wrong], "mine", alpha=0.0)
    assert "your own verdicts" in report


def test_a_profile_survives_its_file() -> None:
    profile = dataclasses.replace(made()[0], scale=ChangeScale((0.9, 0.5), (2.0, 1.0)))
    assert Profile.from_json(profile.to_json()) == profile
    assert Profile.from_json('{"thresholds": {"size": null}}').thresholds == Thresholds(size=math.inf)


@pytest.mark.parametrize("text", [
    "", "x", "[]", "{}", "[" * 100_000, '{"thresholds": 3}', '{"thresholds": {"hue": 1}}', '{"thresholds": {"size": -1}}',
    '{"thresholds": {"size": "x"}}', '{"thresholds": {}, "carnator_profile": 2}', '{"thresholds": {}, "change_scale": {}}',
    '{"thresholds": {}, "change_scale": 3}', " " * (LARGEST + 1)])
def test_what_is_no_profile_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="not a profile that Carnator Calibrate wrote"):
        Profile.from_json(text)


def test_a_profile_is_certified_where_it_was_made_for() -> None:
    profile, _ = made()
    assert profile.standing(IDENTITY, Settings()).startswith("certified: at most")
    assert profile.standing(IDENTITY, Settings(tolerance=0.1)).startswith("certified: at most")
    assert shape_class(IDENTITY) == "16x3x8x8"


@pytest.mark.parametrize(("field", "value", "word"), [
    ("latent", "16x5x8x8", "another shape (16x3x8x8; this is 16x5x8x8)"),
    ("weights", "ffff", "another model (WAN21 0123456789abcdef; this is WAN21 ffff)"),
    ("patches", "abcd", "another model"),
])
def test_a_profile_of_another_model_or_shape_is_uncertified(field: str, value: str, word: str) -> None:
    said = made()[0].standing(Identity({**IDENTITY.fields, field: value}), Settings())
    assert said.startswith("uncertified: it was made for ") and word in said


@pytest.mark.parametrize(("settings", "word"), [
    (Settings(mode="joint"), "another mode (ours; this is joint)"),
    (Settings(probe=2), "another number of probe steps (4; this is 2)"),
    (Settings(tolerance=0.5), "tighter forecast tolerance (0.25; this is 0.5)"),
    (Settings(strictness=2.0), "multiplied by 2"),
])
def test_a_profile_under_other_settings_is_uncertified(settings: Settings, word: str) -> None:
    said = made()[0].standing(IDENTITY, settings)
    assert said.startswith("uncertified: ") and word in said


def test_an_edited_profile_is_uncertified() -> None:
    body = json.loads(made()[0].to_json())
    laxer = {**body, "thresholds": {**body["thresholds"], "change": 0.9}}
    better = {**body, "certificate": {**body["certificate"], "bound": 0.001}}
    scaled = {**body, "change_scale": {"sigmas": [1.0], "factors": [9.0]}}
    odd = {**body, "certificate": {**body["certificate"], "settings": 3}}
    odder = {**body, "certificate": {**body["certificate"], "thresholds": 3}}
    for edited in (laxer, better, scaled, odd, odder):
        said = Profile.from_json(json.dumps(edited)).standing(IDENTITY, Settings())
        assert said == "uncertified: its certificate does not add up"


def test_tolerances_as_text() -> None:
    assert tolerances_of(" alignment=0.05; psnr = 1, ") == {"alignment": 0.05, "psnr": 1.0}
    assert tolerances_of("") == {}
    for wrong in ("psnr", "psnr=", "=1", "psnr=x", "psnr=-1", "psnr=nan", "psnr=inf"):
        with pytest.raises(ValueError, match="metric=number"):
            tolerances_of(wrong)


def test_the_command_writes_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pairs.jsonl").write_text("\n".join(world(300, 4)), encoding="utf-8")
    out = tmp_path / "tiny.json"
    assert main([str(tmp_path / "pairs.jsonl"), "--out", str(out), "--risk", "0"]) == 0
    assert "profile 'tiny' for model WAN21" in capsys.readouterr().out
    assert Profile.from_json(out.read_text(encoding="utf-8")).standing(IDENTITY, Settings()).startswith("certified")
    assert main([str(tmp_path / "pairs.jsonl"), "--risk", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["thresholds"] == json.loads(out.read_text(encoding="utf-8"))["thresholds"]


@pytest.mark.parametrize("arguments", [[], ["no-such-file"], ["x", "--tolerance", "psnr"], ["--verdicts", "no-such-folder"]])
def test_the_command_called_wrongly(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text('{"distances": {}, "safe": true}', encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        main([str(tmp_path / a) if a == "x" else a for a in arguments])
    assert ended.value.code == 2
    assert "calibrate: error:" in capsys.readouterr().err


@pytest.fixture
def home(comfy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user folder's part that is Carnator's, empty."""
    import folder_paths

    monkeypatch.setattr(folder_paths, "get_user_directory", lambda: str(tmp_path / "user"))
    return tmp_path / "user" / "carnator"


def calibrated(pairs: str, profile: str = "my profile", **how: Any) -> tuple[str, str]:
    told = {"risk": 0.05, "confidence": 0.95, **how}
    return node("CarnatorCalibrate").execute(profile=profile, pairs=pairs, **told).result


@pytest.mark.host
def test_the_node_reads_a_file_by_name_saves_by_name_and_sees_changes(home: Path, page: Page) -> None:
    (home / "pairs").mkdir(parents=True)
    (home / "pairs" / "mine.jsonl").write_text("\n".join(world(300, 4)), encoding="utf-8")
    before = node("CarnatorCalibrate").fingerprint_inputs(pairs="mine")
    text, report = calibrated("mine")
    assert Profile.from_json((home / "profiles" / "my profile.json").read_text(encoding="utf-8")) == Profile.from_json(text)
    assert "certified: at most" in report and page.said == report
    assert calibrated("\n".join(world(300, 4)))[0] == text
    (home / "pairs" / "mine.jsonl").write_text("\n".join(world(302, 4)), encoding="utf-8")
    assert node("CarnatorCalibrate").fingerprint_inputs(pairs="mine") != before


@pytest.mark.host
@pytest.mark.parametrize(("pairs", "complaint"), [
    ("../../secrets", "the name of pairs '../../secrets' cannot be used"), ("none", "does not exist"), ("", "too few"),
    ('{"distances": 3}', "line 1 of the pairs is no pair")])
def test_the_node_says_what_is_wrong(home: Path, page: Page, pairs: str, complaint: str) -> None:
    with pytest.raises(RuntimeError, match="no profile was made: .*" + complaint.replace(".", r"\.")):
        calibrated(pairs)
    assert not (home / "profiles").exists()


@pytest.mark.host
def test_names_that_are_paths_are_refused_before_the_run(comfy: Any) -> None:
    assert "cannot be used" in str(node("CarnatorCalibrate").validate_inputs(profile="../x"))
    assert node("CarnatorCalibrate").validate_inputs(profile="my profile") is True
    assert "folders of their own" in str(node("CarnatorBankLoader").validate_inputs(name="profiles"))


@pytest.mark.host
def test_a_profile_speaks_on_the_node_in_the_report_and_in_the_summary(wan_model: Any, bank: Any, page: Page, home: Path) -> None:
    ksampler(reuse(wan_model, bank), Ask())
    (entry,) = entries(bank)
    facts = {"model": model_of(entry.identity), "shape_class": shape_class(entry.identity),
             "settings": {"mode": "ours", "probe": 4, "tolerance": 0.25}}
    rows = [json.dumps({"distances": {"change": 1.0, "size": 9, "shape": 1, "colour": 99, "motion": 9}, "safe": True})] * 20
    text, _ = calibrated("\n".join([json.dumps({"facts": facts}), *rows]), profile="wan")
    ask = Ask("a blue ball on snow")
    for given in ("wan", text):
        ksampler(reuse(wan_model, bank, profile=given, remember=False), ask)
        assert page.last["decision"] == "hit" and page.last["certificate"].startswith("certified: at most")
        assert page.last["reason"].endswith("profile 'wan' " + page.last["certificate"])
        assert page.last["report"][0] == "profile 'wan': " + page.last["certificate"]
        assert page.last["certificate"] in page.lines[-1]
    ksampler(reuse(wan_model, bank, profile="wan", pace="fast", remember=False), ask)
    assert "profile 'wan' uncertified: it was made at a tighter forecast tolerance" in page.lines[-1]
    ksampler(reuse(wan_model, bank, strictness=ANYTHING, remember=False), ask)
    assert page.last["certificate"] == "uncertified: the default ones" and "certified" not in page.lines[-1]


@pytest.mark.host
def test_a_profile_that_is_not_there_renders_densely_and_says_so(wan_model: Any, bank: Any, page: Page, home: Path,
                                                                 stock: Any) -> None:
    ksampler(reuse(wan_model, bank), Ask())
    entries(bank)
    ask = Ask("a blue ball on snow")
    assert ksampler(reuse(wan_model, bank, profile="gone", remember=False), ask).equal(stock(ask))
    assert "the profile 'gone' does not exist" in page.lines[-1]
    probe = node("CarnatorEarlySignatureProbe").execute(model=wan_model, bank=bank, probe_steps=4, **ask.inputs()).result[0]
    decision, report = node("CarnatorRiskGate").execute(probe, **GATE_DEFAULTS, profile="{").result
    assert not decision.verdict.accepted and report.startswith("MISS: this is not a profile that Carnator Calibrate wrote")
