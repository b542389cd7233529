"""A script that reports no steps: what is not known of it is left out or unknown, never a number and never a pass."""

from __future__ import annotations

import dataclasses

import pytest

from orchestrator import views
from orchestrator.cli.render import summary_lines
from orchestrator.core.engine import engine, recovery
from orchestrator.core.engine.state import State
from orchestrator.core.verdict import run_metrics, sentence
from orchestrator.model import watch
from orchestrator.model.run import Run, StepRecord
from orchestrator.model.trial import Trigger
from orchestrator.reports import html, metrics, summary
from orchestrator.reports.page import loss_chart

from ..sim import world
from . import history
from .synthetic import Files
from .verdicts import ask
from .watched_jobs import Job

NO_LOSSES = loss_chart.Losses(epochs={}, twin={})
STEPS = ("rank.step", "progress", "checkpoint.commit", "rank.restored")


#: What the events of such a run say instead.
INSTEAD: dict[str, dict[str, object]] = {
    "rank.held": {"step": None},
    "rank.finished": {"steps": None, "loss": None, "loss_mean": None},
    "rank.exit": {"last_step": 0},
    "resume.chosen": {"step": 0, "name": None, "sha256": None},
    "gang.start": {"resume": None},
    "gang.stop": {"last_step": {}},
}


def script(run: Run) -> Run:
    """The same run of a script: node n2 was lost and replaced, the script finished, and no step was reported."""
    events = [
        dataclasses.replace(event, value={**event.value, **INSTEAD.get(event.f, {})})
        for event in run.history.events
        if event.f not in STEPS
    ]
    fault = dataclasses.replace(run.trial.faults[0], at=Trigger(after_s=1.0))
    trial = dataclasses.replace(run.trial, workload="script", faults=(fault,))
    run = history.with_records(history.with_events(run, events), [])
    return dataclasses.replace(run, trial=trial, twin=None)


@pytest.mark.parametrize(
    ("steps", "ends", "text"),
    [
        ((30, 30, 29, 30), "", "no rank wrote the end of its record, and rank 2 (n2) stopped after step 29, rank 0 (n0) after step 30"),
        ((30, 30, 30, 30), "", "no rank wrote the end of its record after step 30, as where os._exit hides an error; --reference shows"),
        ((30, 30, 29, 30), "013", ""),  # the line of the last step of rank 2 is not written yet
        ((60, 60, 30, 60), "013", "rank 2 (n2) never wrote the end of its record, and rank 2 (n2) stopped after step 30"),
        ((30, 30, 29, 30), "0123", ""),  # no-step-lost judges it
    ],
)  # fmt: skip
def test_exit_codes_of_0_are_no_end_where_ranks_stopped_elsewhere(steps: tuple[int, ...], ends: str, text: str) -> None:
    job = Job(world=4, saves=False)
    for rank, count in enumerate(steps):
        job.now = 100.0
        job.attempt(1, 0, count, ends=str(rank) in ends, bare=set(range(4)) - {rank})
    judged = dataclasses.replace(script(history.reference()), files=Files(processes=job.files))
    verdict = ask(judged, "finished")
    assert verdict.outcome == ("unknown" if text else "pass") and verdict.text.startswith(text), verdict.text


def test_a_reference_run_of_the_same_steps_shows_that_the_job_ends_by_leaving() -> None:
    files = Files(processes=Job(world=4, saves=False).attempt(1, 0, 30).files)
    run = history.reference()
    judged = dataclasses.replace(script(run), files=files, twin=run.twin)
    assert run.twin and ask(judged, "finished").outcome == "pass"


@pytest.mark.parametrize(("n", "outcome"), [(30, "unknown"), (20, "pass")])
@pytest.mark.parametrize("ends", [False, True])
def test_an_error_in_the_middle_of_a_step_that_no_step_follows_may_be_hidden(n: int, outcome: str, ends: bool) -> None:
    """A job that catches it and goes on, as after a lack of memory, hides nothing."""
    job = Job(world=4, saves=False).attempt(1, 0, 30, ends=ends)
    line = watch.Raised(t=job.now, n=n, where="the backward pass", error="RuntimeError: Connection closed by peer")
    job.files[1] = dataclasses.replace(job.files[1], lines=(*job.files[1].lines, line))
    run = history.reference()
    verdict = ask(dataclasses.replace(script(run), files=Files(processes=job.files), twin=run.twin), "finished")
    assert verdict.outcome == outcome, verdict.text
    assert (
        "rank 1 (n1) made no step after the backward pass that followed step 30 had raised an error" in verdict.text
    ) == (outcome == "unknown")


@pytest.fixture(scope="module")
def run() -> Run:
    return script(history.reference())


@pytest.mark.parametrize("check", ["resumed-from", "resumed-newest", "resume-complete"])
def test_a_failover_before_the_first_step_shows_nothing_about_checkpoints(run: Run, check: str) -> None:
    files = Files(processes=Job(world=4).attempt(1, 0, 30, ends=True).files)
    verdict = ask(dataclasses.replace(run, files=files), check)
    text = "the job had completed no step before the failover, so it had nothing to resume"
    assert (verdict.outcome, verdict.text) == ("unknown", text)


@pytest.fixture(scope="module")
def view(run: Run) -> views.RunView:
    return views.view(run.trial, run.history, run.files.steps())


def test_the_view_knows_no_step_and_no_goodput(view: views.RunView) -> None:
    assert (view.step, view.goodput, view.failovers[0].ttr_s) == (None, None, None)


def test_the_terminal_says_once_how_it_came_back(run: Run, view: views.RunView) -> None:
    lines = list(summary_lines._failovers(run, view))
    message = sentence.sentence(run.trial, view)
    assert lines[0].startswith("recovery  back and finished: noticed ") and "back and finished" in message
    assert not any(
        word in "\n".join([*lines, message]) for word in ("not back", "redone", "goodput", "step 0", " 0 steps")
    )


@pytest.mark.parametrize("outcome", ["failed", "interrupted", "running"])
def test_of_a_script_that_did_not_finish_no_step_is_said(run: Run, view: views.RunView, outcome: str) -> None:
    message = sentence.sentence(run.trial, dataclasses.replace(view, outcome=outcome))
    assert "whether it came back is not known" in message and "not back" not in message and "step" not in message


def test_the_reports_leave_out_what_is_not_known(run: Run, view: views.RunView) -> None:
    assert [name for name, _, _ in html.figures(run, view, NO_LOSSES)] == ["steps", "detected in"]
    assert html.figures(run, view, NO_LOSSES)[0][1] == "not reported"
    text = summary.render(run)["summary.md"].decode()
    assert "back and finished" in text and "not back" not in text
    assert "resumed from not known; steps redone: not known, after not known" in text


def test_the_metrics_leave_out_what_is_not_known(run: Run) -> None:
    text = metrics.render(run)["metrics.prom"].decode()
    figures = {metric.metric for metric in run_metrics.of(run)}
    assert not any(f"ccbed_{name}" in text for name in ("run_steps", "run_goodput", "failover_lost", "failover_ttr"))
    assert "ccbed_run_failovers" in text
    assert not figures & {"lost steps", "goodput", "ttr"} and "duration" in figures


def test_steps_without_a_duration_have_no_goodput(run: Run) -> None:
    at_their_end = [
        StepRecord(rank=rank, epoch=1, step=1, loss="0x0p+0", start=5.0, end=5.0, digest=None, node="n0")
        for rank in range(4)
    ]
    assert views.goodput(run.history, at_their_end) is None


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("same-resume-step", "restart 1: no rank has a record of its training"),
        ("resumed-newest", "restart 1: no rank has a record of its training"),
        ("recovered-within", "the script reported no step, so the time to recover is not known"),
    ],
)
def test_a_check_of_what_was_not_observed_is_unknown(run: Run, check: str, text: str) -> None:
    verdict = ask(run, check)
    assert (verdict.outcome, verdict.text[: len(text)]) == ("unknown", text)


def test_a_training_that_never_came_back_still_fails() -> None:
    gone = history.reference()
    events = [e for e in gone.history.events if not (e.f == "rank.step" and e.epoch == 1)]
    assert ask(history.with_events(gone, events), "recovered-within").outcome == "fail"


def started(last_step: int | None, best: int = 0) -> State:
    trial = world.trial(policy=("restart",))
    begun, _ = engine.begin(trial, dataclasses.replace(world.plan(trial), last_step=last_step))
    return dataclasses.replace(begun, failed=frozenset({1}), best_step=best, step_at_start=best)


def test_without_steps_only_the_budget_ends_the_restarts() -> None:
    trial = dataclasses.replace(
        world.trial(policy=("restart",)), recovery=dataclasses.replace(world.trial().recovery, max_restarts=5)
    )
    state = started(None)
    for restarts in range(5):
        state = dataclasses.replace(state, restarts=restarts, stale=recovery.stale(trial, state))
        assert recovery.decide(trial, state).refused == ""
    assert recovery.decide(trial, dataclasses.replace(state, restarts=5)).refused == (
        "the budget of 5 restarts is spent"
    )


@pytest.mark.parametrize(("last_step", "best"), [(60, 0), (None, 10)])
def test_with_steps_two_starts_without_a_new_one_are_a_crash_loop(last_step: int | None, best: int) -> None:
    state = dataclasses.replace(started(last_step, best), stale=1)
    assert "crash loop" in recovery.decide(world.trial(policy=("restart",)), state).refused
