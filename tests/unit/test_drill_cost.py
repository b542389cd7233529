"""What a drill costs is said before it starts: how often the job runs."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.app import run
from orchestrator.cli.render import live_lines, terminal
from orchestrator.model.event import History, event
from orchestrator.model.events import RankStep
from orchestrator.model.trial import FaultPlan, Trigger
from orchestrator.run import twin_runs
from orchestrator.store import bundle

from . import history
from .test_cli import Desk, ccbed

__all__ = ["ccbed"]

LOSS = FaultPlan(id="f0", fault="crash-node", node=2, at=Trigger(after_save=2))


@pytest.mark.parametrize(
    ("faults", "is_first", "follows", "cost"),
    [
        ((LOSS,), False, True, "up to 3 times: with the fault, undisturbed, restarted (the last two only if it takes under 60 s; "),
        ((LOSS,), True, False, "up to 3 times: with the fault, undisturbed, restarted ("),
        ((), True, False, "twice ("),
    ],
)  # fmt: skip
def test_a_script_with_references_is_said_to_run_several_times(
    faults: tuple[FaultPlan, ...], is_first: bool, follows: bool, cost: str
) -> None:
    trial = history.trial(*faults, workload="script")
    (text,) = run._cost(trial, is_first, follows)
    assert text == f"the job runs {cost}--no-reference: once)"


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


@pytest.mark.parametrize(("took_s", "is_told"), [(299.0, False), (720.0, True)])
def test_a_drill_whose_last_run_was_long_is_told_how_to_be_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, is_told: bool
) -> None:
    trial = dataclasses.replace(
        history.trial(LOSS, workload="script"), name="job", params={"args": ("x",), "root": None}
    )
    others = {
        "2026-11-21T02-00-07Z-job-9d12": dataclasses.replace(trial, params={"args": ["x"]}),
        "2026-11-21T03-00-07Z-job-aaaa": dataclasses.replace(trial, params={"args": ["y"]}),
        "2026-11-21T04-00-07Z-job-twin-bbbb": trial,
    }
    for name in others:
        (tmp_path / name).mkdir()
    monkeypatch.setattr(bundle, "load_trial", lambda directory: others[directory.name])
    monkeypatch.setattr(bundle, "read_history", lambda directory: lasting(took_s))
    expected = ("its last run took 12 min 00 s; a shorter drill: --budget 5m, --no-reference, or fewer steps",)
    assert run._shorter(tmp_path, trial) == (expected if is_told else ())


def test_a_reference_run_shows_how_far_it_is_and_how_long_it_takes() -> None:
    out = io.StringIO()
    screen = terminal.Terminal(out=out, err=out)
    printer = live_lines.Printer(terminal=screen, trial=history.trial(workload="script"))
    at, source = history.clean().history.events[0].at, history.clean().history.events[0].source
    for step, t in ((1, 2.0), (10, 11.0), (11, 12.0), (30, 31.0)):
        made = event(RankStep(rank=0, step=step, mark="newest"), at=at, source=source)
        printer.reference(60, dataclasses.replace(made, t=t))
    assert out.getvalue().splitlines() == [
        " 11.000  reference step 10 of 60, about 50 s left", " 31.000  reference step 30 of 60, about 30 s left",
    ]  # fmt: skip
