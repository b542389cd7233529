"""The verdict of a run that was ended on purpose: it finished, unless it proves nothing or a rank left before."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator import views
from orchestrator.core.verdict import sentence
from orchestrator.model.event import Event, Source
from orchestrator.model.run import Run

from . import history
from .verdicts import ask


def stopped(run: Run, *, code: int = -9, early: bool = False) -> Run:
    """The same run, whose last ranks were ended by a planned stop; ``early``: they left with ``code`` before it."""
    last = max(event.epoch or 0 for event in run.history.events)
    events: list[Event] = []
    note = Event(
        type="note", f="run.stopped", at=run.history.events[-1].at, source=Source(writer="ctl", n=9999), epoch=last,
        key="stop-at", value={"at": "step=50", "steps": 55, "saves": 9},
    )  # fmt: skip
    for event in run.history.events:
        is_exit = event.f == "rank.exit" and event.epoch == last
        if is_exit and not early and note not in events:
            events.append(note)
        if event.f == "run.end" and early:
            events.append(note)
        more = (
            {"reason": "stopped as planned at step=50"} if event.f == "run.end" else {"code": code} if is_exit else {}
        )
        if event.f != "rank.finished" or event.epoch != last:
            events.append(dataclasses.replace(event, value={**event.value, **more}))
    trial = dataclasses.replace(run.trial, workload="script")
    return dataclasses.replace(history.with_events(run, events), trial=trial)


def test_ranks_that_the_stop_ended_finished() -> None:
    verdict = ask(stopped(history.reference()), "finished")
    assert (verdict.outcome, verdict.text) == (
        "pass",
        "stopped as planned at step=50, after at least 55 steps and 9 saved checkpoints",
    )


def test_a_rank_that_left_before_the_stop_failed() -> None:
    assert ask(stopped(history.reference(), code=1, early=True), "finished").outcome == "fail"


def test_a_signal_without_a_stop_is_a_failure() -> None:
    run = stopped(history.reference())
    assert ask(history.without(run, "run.stopped"), "finished").outcome == "fail"


def test_nothing_saved_before_the_fault_proves_nothing() -> None:
    run = stopped(history.reference())
    late = [event for event in run.history.events if not (event.f == "checkpoint.commit" and event.epoch == 0)]
    verdict = ask(history.with_events(run, late), "finished")
    assert verdict.outcome == "unknown"
    assert "no checkpoint was saved before the fault" in verdict.text


def test_a_fault_that_was_not_injected_proves_nothing() -> None:
    run = history.without(stopped(history.reference()), "fault.injected")
    verdict = ask(run, "finished")
    assert verdict.outcome == "unknown"
    assert "stopped before a planned fault was injected" in verdict.text


@pytest.mark.parametrize("make", [history.clean, history.reference])
def test_the_sentence_says_so(make: object) -> None:
    run = stopped(make())  # type: ignore[operator]
    view = views.view(run.trial, run.history, run.files.steps())
    assert sentence.sentence(run.trial, view).lower().endswith("stopped as planned at step=50; no verdicts yet.")
