"""The matrix of frameworks judges its own judgement: what is right, wrong and unknown."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.frameworks import __main__ as matrix
from tests.frameworks import page
from tests.frameworks.cells import Cell

RIGHT = Cell("hf", "hf.py")
LOST = Cell("hf", "hf.py", "--broken optimizer", lost=("optimizer",))


@pytest.mark.parametrize(
    ("cell", "verdict", "true", "named", "expected"),
    [
        (RIGHT, "PASS", [], set(), "right"),
        (RIGHT, "FAIL", [], {"weights"}, "wrong FAIL"),
        (RIGHT, "UNKNOWN", [], set(), "unknown"),
        (RIGHT, "PASS", ["weights"], set(), "broken: the job is not what the cell says"),
        (LOST, "FAIL", ["optimizer"], {"optimizer", "replay-equal"}, "right"),
        (LOST, "FAIL", ["optimizer"], {"weights"}, "wrong part"),
        (LOST, "PASS", ["optimizer"], set(), "wrong PASS"),
    ],
)
def test_a_verdict_is_compared_with_what_the_job_wrote(
    cell: Cell, verdict: str, true: list[str], named: set[str], expected: str
) -> None:
    assert matrix.compared(cell, verdict, true, named) == expected


def test_the_last_attempt_is_compared_with_the_undisturbed_job(tmp_path: Path) -> None:
    clean, drill = tmp_path / "clean", tmp_path / "drill"
    rows = [{"step": step, "weights": [float(step), 1.0], "RNG": f"{step}"} for step in (1, 2, 3)]
    for folder, name, kept in (
        (clean, "0.1", rows),
        (drill, "0.1", rows[:2]),
        (drill, "0.2", [rows[1], {**rows[2], "weights": [3.5, 1.0]}]),
    ):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert list(matrix.differences(clean, drill)) == ["weights"]


def test_the_page_says_what_the_results_say() -> None:
    results = json.loads(matrix.RESULTS.read_text())
    assert page.PAGE.read_text() == page.rendered(results)
    assert not [name for name, row in results.items() if row["result"].startswith("wrong")]
