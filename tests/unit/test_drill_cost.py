"""What a drill costs is said before it starts: how often the job runs."""

from __future__ import annotations

import pytest

from orchestrator.app import run
from orchestrator.model.trial import FaultPlan, Trigger

from . import history

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
