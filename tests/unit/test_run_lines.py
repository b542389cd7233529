"""A history as it is told to a person."""

from __future__ import annotations

from orchestrator.cli.render.run_lines import RunLines
from orchestrator.model.event import History
from orchestrator.model.run import Run

from . import history


def lines_of(run: Run, events: History | None = None) -> list[str]:
    run_lines = RunLines(trial=run.trial, slots=("n0", "n1", "n2", "n3"))
    printed = [line for event in (events or run.history).events for line in run_lines.feed(event)]
    return [f"{line.label}: {line.text}" for line in printed if not line.passing]


def test_a_failover_is_told_from_the_hold_to_the_first_step() -> None:
    lines = lines_of(history.reference())
    labels = [line.split(":")[0] for line in lines]
    order = ["attempt 0", "step 30", "FAULT", "detected", "attempt 1", "resume", "step 26", "finished"]
    assert [label for label in labels if label in order][: len(order)] == [
        "attempt 0", "step 30", "FAULT", "detected", "attempt 1", "resume", "attempt 1", "step 26",
    ]  # fmt: skip
    assert "attempt 0: 4 ranks on n0 n1 n2 n3" in lines
    assert "step 30: n2 held in allreduce; n0 n1 n3 are inside the same collective" in lines
    assert "attempt 1: n2 lost: spare; rank 2 is now on n4" in lines
    assert "attempt 1: 4 ranks now on n0 n1 n4 n3" in lines


def test_a_clean_run_is_told_in_few_lines() -> None:
    assert [line.split(":")[0] for line in lines_of(history.clean())] == ["attempt 0", "finished"]


def test_ranks_that_leave_because_their_node_was_lost_are_not_told_as_losses() -> None:
    assert len([line for line in lines_of(history.reference()) if line.startswith("detected")]) == 1


def test_a_fault_that_took_long_is_told_with_its_beginning() -> None:
    run = history.reference()
    injected = run.history.first("fault.injected")
    assert injected is not None
    slow = history.changed(run, "fault.injected", value={"began": injected.at.mono - 0.3})
    assert f"FAULT: crash-node on n2; began at {injected.t - 0.3:.3f}" in lines_of(slow)
    quick = history.changed(run, "fault.injected", value={"began": injected.at.mono - 0.003})
    assert "FAULT: crash-node on n2" in lines_of(quick)
