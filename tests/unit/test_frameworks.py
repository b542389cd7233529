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


def written(folder: Path, name: str, *rows: dict[str, object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def step(number: int, world: int = 2, weights: float = 1.0, batch: str = "a") -> dict[str, object]:
    return {"step": number, "world": world, "weights": [weights, weights], "data position": batch}


@pytest.mark.parametrize(
    ("resumed", "expected"),
    [((step(2, 1), step(3, 1, 7.0, "b")), []), ((step(2, 1, 7.0), step(3, 1)), ["weights"])],
    ids=["right", "wrong"],
)
def test_a_smaller_world_is_compared_by_the_state_that_it_resumed(
    tmp_path: Path, resumed: tuple[dict[str, object], ...], expected: list[str]
) -> None:
    for rank in (0, 1):
        written(tmp_path / "clean", f"{rank}.1", step(1), step(2), step(3))
        written(tmp_path / "drill", f"{rank}.1", step(1), step(2))
    written(tmp_path / "drill", "0.2", *resumed)
    assert list(matrix.differences(tmp_path / "clean", tmp_path / "drill")) == expected


def test_a_job_that_ends_before_its_last_step_is_otherwise(tmp_path: Path) -> None:
    written(tmp_path / "clean", "0.1", step(1), step(2))
    written(tmp_path / "drill", "0.1", step(1))
    assert list(matrix.differences(tmp_path / "clean", tmp_path / "drill")) == ["end"]


def test_a_fault_that_no_option_names_is_that_of_a_file(tmp_path: Path) -> None:
    cell = Cell("hf", "hf.py", "--preempt", "preempt: {node: 2, at: {step: 21}}")
    assert matrix.trial(cell, tmp_path) == ["trial.yml", "--bed", "fw-hf", *matrix.STRICT]
    assert '"args": ["--preempt"]' in (tmp_path / "trial.yml").read_text()
    assert matrix.trial(RIGHT, tmp_path) == ["hf.py", "--bed", "fw-hf", "--fail-node", "2", *matrix.STRICT, "--"]


def test_the_page_says_what_the_results_say() -> None:
    results = json.loads(matrix.RESULTS.read_text())
    assert page.PAGE.read_text() == page.rendered(results)
    assert not [name for name, row in results.items() if row["result"].startswith("wrong")]
