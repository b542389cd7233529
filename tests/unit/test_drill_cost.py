"""What a drill costs is said before it starts: how often the job runs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app import run
from orchestrator.model.event import History
from orchestrator.model.trial import FaultPlan, Trigger
from orchestrator.run import twin_runs

from . import history
from .test_cli import Desk, ccbed

__all__ = ["ccbed"]

LOSS = FaultPlan(id="f0", fault="crash-node", node=2, at=Trigger(after_save=2))


@pytest.mark.parametrize(
    ("faults", "is_first", "follows", "cost"),
    [
        ((LOSS,), False, True, "up to 3 times: with the fault, undisturbed, restarted (the references if it takes under 60 s, "),
        ((LOSS,), True, False, "up to 3 times: with the fault, undisturbed, restarted ("),
        ((), True, False, "twice ("),
    ],
)  # fmt: skip
def test_a_script_with_references_is_said_to_run_several_times(
    faults: tuple[FaultPlan, ...], is_first: bool, follows: bool, cost: str
) -> None:
    trial = history.trial(*faults, workload="script")
    (text,) = run._cost(trial, is_first, follows)
    assert text == f"the job runs {cost}with two saves each; --no-reference: once)"


def test_a_job_that_runs_once_is_announced_without_its_cost() -> None:
    assert run._cost(history.trial(workload="script"), is_first=False, follows=False) == ()


def test_a_budget_is_said_before_the_drill_starts() -> None:
    (text,) = run._cost(history.trial(LOSS, workload="script"), is_first=False, follows=True, budget="10m")
    assert "what does not fit into 10m is left out, the restarted one first" in text


def lasting(seconds: float) -> History:
    return History((dataclasses.replace(history.clean().history.events[-1], t=seconds),))


@pytest.mark.parametrize(
    ("budget_s", "took_s", "runs", "fits", "note"),
    [
        (None, 59.0, 2, True, ""),
        (None, 61.0, 2, False, ""),
        (600.0, 299.0, 2, True, ""),
        (600.0, 299.0, 3, False, "no X: 3 runs take about 897 s, the budget is 600 s"),
        (600.0, 301.0, 2, False, "no X: 2 runs take about 602 s, the budget is 600 s"),
    ],
)
def test_a_reference_run_follows_if_it_fits_into_the_budget(
    budget_s: float | None, took_s: float, runs: int, fits: bool, note: str
) -> None:
    notes: list[str] = []
    request: Any = SimpleNamespace(budget_s=budget_s, on_note=notes.append)
    assert twin_runs._fits(request, lasting(took_s), runs, "X") is fits
    assert "".join(notes) == note


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (("dp-ring", "--budget", "5m"), "--budget is for a script"),
        *(
            (("train.py", "--budget", wrong), f"--budget: must be a time such as 90s or 10m (got {wrong})")
            for wrong in ("5x", "0", "0s", "10", "500ms", "step=20")
        ),
        (("train.py", "--budget", "5m", "--reference"), "--budget and --reference exclude each other"),
    ],
)
def test_a_budget_that_bounds_nothing_is_refused(ccbed: Desk, line: tuple[str, ...], problem: str) -> None:
    (ccbed.root / "train.py").touch()
    ccbed("up", "local.yml")
    assert ccbed("run", *line) == 3
    assert problem in ccbed.err


def test_a_drill_with_a_budget_stops_in_time_and_its_references_follow(ccbed: Desk) -> None:
    (ccbed.root / "train.py").touch()
    (ccbed.root / "drill.yml").write_text(
        "{trial: drill, workload: script, params: {file: train.py}, checks: [bit-exact]}"
    )
    ccbed("up", "local.yml")
    for trial in ("train.py", "drill.yml", "example:gpt-ddp"):
        ccbed("run", trial, "--fail-node", "2", "--budget", "10m")
        request = ccbed.launched[-1]
        assert (request.twin, request.twin_after, request.budget_s) == (False, True, 600.0)
        assert request.trial.params["stop_at"] == "10m"
    ccbed("run", "train.py", "--fail-node", "2", "--budget", "10m", "--stop-at", "after-save=3")
    assert ccbed.launched[-1].trial.params["stop_at"] == "after-save=3"


def test_a_script_whose_trial_names_bit_exact_has_one_reference_run_and_not_two(ccbed: Desk) -> None:
    (ccbed.root / "train.py").touch()
    (ccbed.root / "drill.yml").write_text(
        "{trial: drill, workload: script, params: {file: train.py}, checks: [bit-exact]}"
    )
    ccbed("up", "local.yml")
    ccbed("run", "drill.yml", "--fail-node", "2")
    assert (ccbed.launched[-1].twin, ccbed.launched[-1].twin_after) == (True, False)
