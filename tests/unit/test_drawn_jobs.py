"""The draws of the judge's matrix, and what is right for each by the records of the jobs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.draws import FLAWS, differences, draws, momentum_draws


def test_a_seed_draws_the_same_jobs_whatever_the_number() -> None:
    assert draws(3, 5) == draws(3, 20)[:5] != draws(4, 5)


def test_a_flaw_is_drawn_with_kinds_that_it_breaks_and_half_of_the_jobs_have_none() -> None:
    drawn = draws(1, 400)
    assert {draw.flaw for draw in drawn} == {"none", *FLAWS}
    assert all(draw.kinds[name] in values for draw in drawn for name, values in FLAWS.get(draw.flaw, {}).items())
    assert 150 < sum(draw.flaw == "none" for draw in drawn) < 250


def record(folder: Path, *processes: tuple[int, range, dict[int, dict[str, Any]]]) -> Path:
    """``processes``: its number, the steps that it made, and what was otherwise at some of them."""
    (folder / "truth").mkdir(parents=True)
    rows = [
        {"step": n, "pid": pid, "weights": 1000.0 + n, "batch": n, "lr": 0.1, **changes.get(n, {})}
        for pid, steps, changes in processes
        for n in steps
    ]
    (folder / "truth" / "r0.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize(
    ("changes", "true"),
    [
        ({}, []),
        ({24: {"weights": 1024.001}}, []),
        ({24: {"weights": 1030.0}}, ["weights from step 24"]),
        ({25: {"batch": 7}, 21: {"lr": 0.2}}, ["lr from step 21", "batch from step 25"]),
    ],
    ids=["as undisturbed", "rounding", "weights", "two parts"],
)
def test_what_a_job_did_otherwise_is_named_with_its_first_step(tmp_path: Path, changes: Any, true: list[str]) -> None:
    clean = record(tmp_path / "clean", (1, range(1, 41), {}))
    drill = record(tmp_path / "drill", (2, range(1, 27), {}), (3, range(21, 41), changes))
    assert differences(clean, drill) == true


def test_work_that_is_done_twice_and_steps_that_are_missing_are_differences(tmp_path: Path) -> None:
    clean = record(tmp_path / "clean", (1, range(1, 41), {}))
    early = record(tmp_path / "early", (2, range(1, 27), {}), (3, range(16, 41), {}))
    assert differences(clean, early) == ["work twice from step 16"]
    short = record(tmp_path / "short", (2, range(1, 27), {}), (3, range(21, 31), {}))
    assert differences(clean, short) == ["steps from step 0"]


def test_every_second_job_with_its_own_momentum_loses_it_at_a_rate_that_changes_weights() -> None:
    drawn = momentum_draws(1, 60)
    assert momentum_draws(1, 8) == drawn[:8] and {draw.flaw for draw in drawn} == {"none", "lost"}
    assert all(draw.kinds["dtype"] == "float32" or draw.kinds["lr"] in (1e-3, 1e-2) for draw in drawn)
