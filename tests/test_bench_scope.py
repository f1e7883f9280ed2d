"""The figures that `bench scope` and `bench gpu` derive, and the GPU bench's own code on stand-in shapes on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from carnator.bench import _attention as attention
from carnator.bench import gpu, scope
from carnator.bench._scope_methods import pairs
from carnator.bench._shapes import SHAPES, random_mask, smaller

Row = dict[str, Any]


def row(name: str, e2e: float, hit: bool = True, **more: Any) -> Row:
    return {"name": name, "kind": "noun", "hit": hit, "e2e_s": e2e, "dit_s": e2e / 2, "e2e_ratio": 10 / e2e,
            "dit_ratio": 10 / e2e, "evals": 20.0, "tokens_share": 0.5, "density": 1.0, "alignment": 1.0, "psnr": 40.0, "ssim": 0.9,
            "psnr_latent": 45.0, **more}


def test_pairs_take_every_kind_in_turn_and_are_the_same_every_time() -> None:
    found = pairs(14, 3)
    assert found == pairs(14, 3) != pairs(14, 4)
    assert [p.kind for p in found[:7]] == [p.kind for p in found[7:]] and len({p.kind for p in found}) == 7
    assert all(p.history != p.target for p in found)


def test_a_method_is_summed_up_over_its_hits_alone() -> None:
    rows = [row("joint", s, psnr=p) for s, p in ((5.0, 30.0), (2.0, 40.0), (4.0, 35.0))] + [row("joint", 100.0, hit=False)]
    found = scope.summed_up(rows, 30)
    assert found["hits"] == 3 and found["pairs"] == 4
    assert found["e2e_ratio"] == 2.5 and found["psnr_dense"] == 35.0 and found["psnr_worst"] == 30.0
    assert scope.summed_up(rows[-1:], 30) == {"name": "joint", "pairs": 1, "hits": 0}


def test_ours_is_held_against_joint_where_both_are_hits_pair_by_pair() -> None:
    rows = []
    for number, joint_hit in enumerate((True, False, True)):
        rows += [row("ours", 4.0 + number, pair=number),
                 row("joint", 2 * (4.0 + number), hit=joint_hit, alignment=0.5, pair=number)]
    found = scope.against(rows)
    assert found == {"pairs": 2, "alignment_joint": 0.5, "alignment_ours": 1.0, "e2e_speed": 2.0, "dit_speed": 2.0}
    assert scope.against(rows[:1]) == {"pairs": 0}


def point(name: str, speed: float, psnr: float, alignment: float = 1.0) -> Row:
    return {"name": name, "hits": 3, "setting": {"x": speed}, "evals": 30 / speed, "dit_ratio": speed, "e2e_ratio": speed,
            "psnr_dense": psnr, "alignment": alignment}


def test_equal_quality_lies_between_the_rivals_settings_and_says_when_none_is_as_good() -> None:
    points = [point("ours", 3.0, 40.0), point("ours", 2.0, 60.0), point("easycache", 1.5, 45.0), point("easycache", 1.2, 50.0),
              point("easycache", 2.5, 30.0, 0.9)]
    near, far = scope.at_equal_quality(points, "easycache")
    at_40 = 2.5 + (1.5 - 2.5) * (40 - 30) / (45 - 30)
    assert near["psnr_dense"]["dit_speed"] == pytest.approx(3.0 / at_40, abs=1e-3) and not near["psnr_dense"]["at_least"]
    evals = 30 / 2.5 + (30 / 1.5 - 30 / 2.5) * (40 - 30) / (45 - 30)
    assert near["psnr_dense"]["theirs"] == 40.0 and near["psnr_dense"]["evals_ratio"] == pytest.approx(evals / 10, abs=1e-3)
    assert near["alignment"]["dit_speed"] == 2.0, "the one at 2.5 follows the prompt less"
    slow = point("easycache", 1.1, 44.0)  # slower and worse than another: no setting that anybody would take
    assert scope.at_equal_quality([*points, slow], "easycache") == [near, far]
    (easy,) = scope.at_equal_quality([point("ours", 3.0, 20.0), *points[2:]], "easycache")
    assert easy["psnr_dense"]["dit_speed"] == pytest.approx(3.0 / 2.5, abs=1e-3), "all are better: the fastest"
    assert far["psnr_dense"]["at_least"] and far["psnr_dense"]["dit_speed"] == pytest.approx(2.0 / 1.2, abs=1e-3)


def test_a_part_keeps_what_the_file_holds_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "scope.json"
    scope.keep(file, {"methods": [1], "steps": 30}, fresh=True)
    scope.keep(file, {"curve": [2], "steps": 30}, fresh=False)
    assert json.loads(file.read_text()) == {"methods": [1], "curve": [2], "steps": 30}
    scope.keep(file, {"methods": [3]}, fresh=True)
    assert json.loads(file.read_text()) == {"methods": [3]}


def test_shapes_are_the_published_ones() -> None:
    assert {s.name.split()[0]: s.tokens for s in SHAPES[::-1]} == {"Wan2.1-1.3B": 32760, "Wan2.2-5B": 27280, "LTX-13B": 14080}
    assert all(s.dim % s.heads == 0 for s in SHAPES) and smaller(SHAPES[0], 2).layers == 2


def test_without_a_gpu_the_table_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    result = gpu.not_measured()
    gpu.show(result)
    assert len(result["modes"]) == 4 and "not measured" in capsys.readouterr().out
    assert json.loads(json.dumps(result)) == result


def test_one_attention_alone_is_measured_beside_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise ImportError("not here")
    monkeypatch.setattr(attention, "flex", lambda q, k, v, mask: lambda: torch.zeros_like(q))
    monkeypatch.setattr(attention, "sparge", broken)
    rows, missing = attention.alone(300, 2, 64, "cpu", torch.float32, (0.4, 1.0), 1)
    assert missing["sparge"] == "ImportError: not here" and "kitchen" in missing
    for found in rows:
        assert found["error"] < 1e-5 and min(found["dense"], found["ours"], found["flex"]) > 0 and "sparge" not in found
    assert rows[0]["density"] < rows[1]["density"] == 1.0
    assert random_mask(300, 0.4, 2).kept[0, :, [0, 1, 2], [0, 2, 4]].all()


@pytest.mark.host
@pytest.mark.parametrize("shape", gpu.TINY, ids=["wan", "ltx"])
def test_every_mode_of_the_gpu_bench_runs_on_stand_ins(shape: Any, comfy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from carnator.carnator_core import connectivity

    monkeypatch.setattr(connectivity, "worthwhile", lambda *_: True)
    found = gpu.modes(shape, "cpu", torch.float32, 1, share=0.05, density=0.3)
    assert min(found[mode] for mode in (*gpu.MODES, "record")) > 0
    assert found["tokens"] == shape.tokens and 0 < found["active_share"] <= 1 and found["peak"] is None
    assert found["joint_ratio"] > 0 and found["ours_ratio"] > found["joint_ratio"]

    stand = gpu.Stand(shape, "cpu", torch.float32, 1.0, 1.0)
    dense = stand.evaluate("dense")
    stand.evaluate("full")
    for mode in ("latent", "attention", "joint"):  # the region everywhere and all blocks kept: the dense evaluation
        torch.testing.assert_close(stand.evaluate(mode), dense, atol=1e-4, rtol=1e-3)
    recorder = stand.recorder()
    assert torch.equal(stand.evaluate("dense", recorder), dense)
    kept = recorder.finish()
    assert kept is not None and len(kept.bits) == 2 * shape.layers
    with pytest.raises(KeyError):
        stand.evaluate("another")
