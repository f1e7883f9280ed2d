"""README's matrix is what the suite's own marks say."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matrix
import pytest
from matrix import ASIDE, WORKS, shows


def item(file: str, *marks: pytest.MarkDecorator) -> Any:
    return SimpleNamespace(path=Path(file), originalname="test_it", nodeid=f"{file}::test_it",
                           iter_markers=lambda name: [m.mark for m in marks if m.name == name])


def test_readme_s_matrix_is_the_one_that_the_suite_shows(request: pytest.FixtureRequest) -> None:
    collected = request.config.stash[matrix.COLLECTED]
    shown = matrix.rows(collected)
    inside = matrix.written(matrix.README.read_text(encoding="utf-8")).splitlines()
    again = "README's matrix is out of date: python3 run.py test --collect-only -q --write-matrix"
    here = {i.path.name for i in collected}
    marked = {p.name for p in Path(__file__).parent.glob("test_*.py") if "shows(" in p.read_text(encoding="utf-8")}
    if marked <= here:
        assert inside == matrix.table(shown).splitlines(), again
        return
    kept = matrix.read(inside)  # a part of the suite was collected: what its files show
    for feature, row in shown.items():
        assert row.outcomes.items() <= kept[feature].outcomes.items() and set(row.tests) <= set(kept[feature].tests), again
    for feature, row in kept.items():
        ours = {test for test in row.tests if test.partition("::")[0] in here}
        assert ours <= set(shown[feature].tests if feature in shown else ()), again


def test_a_row_names_its_outcomes_and_its_tests() -> None:
    found = matrix.rows([item("b.py", shows("Wan2.1", "EasyCache", ASIDE)), item("a.py", shows("LTX-Video", "EasyCache", ASIDE)),
                         item("c.py", shows("Wan2.1", "LoRA", WORKS))])
    lines = matrix.table(found).splitlines()
    assert lines[2:] == ["| LoRA | works |  |  |  | `c.py::test_it` |",
                         "| EasyCache | steps aside |  |  | steps aside | `a.py::test_it`, `b.py::test_it` |"]
    assert matrix.read(lines) == found


def test_a_cell_that_two_tests_show_differently_is_refused() -> None:
    with pytest.raises(ValueError, match="EasyCache on Wan2.1"):
        matrix.rows([item("a.py", shows("Wan2.1", "EasyCache", ASIDE)), item("b.py", shows("Wan2.1", "EasyCache", WORKS))])


@pytest.mark.parametrize(("backbone", "outcome"), [("Wan3", WORKS), ("Wan2.1", "perhaps")])
def test_a_mark_that_the_matrix_has_no_place_for_is_refused(backbone: str, outcome: str) -> None:
    with pytest.raises(ValueError, match="the matrix has no"):
        shows(backbone, "EasyCache", outcome)


def test_only_the_part_between_the_marks_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readme = tmp_path / "README.md"
    monkeypatch.setattr(matrix, "README", readme)
    readme.write_text(f"before\n{matrix.BEGIN}\nold\n{matrix.END}\nafter\n", encoding="utf-8")
    items = [item("a.py", shows("Wan2.1", "LoRA", WORKS))]
    matrix.write(items)
    text = readme.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{matrix.BEGIN}\n|") and text.endswith(f"\n{matrix.END}\nafter\n")
    assert matrix.written(text) == matrix.table(matrix.rows(items))
    readme.write_text("no place\n", encoding="utf-8")
    with pytest.raises(ValueError, match="has no lines"):
        matrix.write(items)
