"""A run at a glance: how it stands or ended, where the ranks are, what was lost and came back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..model.event import Event, History
from ..model.run import StepRecord
from ..model.trial import Trial
from .clock import clock, number, whole
from .failovers import failovers
from .faults import faults
from .gangs import gangs
from .progress import goodput
from .shapes import RunView


def view(trial: Trial, history: History, steps: Iterable[StepRecord] = ()) -> RunView:
    """The whole run at a glance; ``steps`` (the node files' records) add lost steps, caught-up and goodput."""
    records = tuple(steps)
    outcome, reason, kind = ending(history)
    known = gangs(history)
    return RunView(
        outcome=outcome,
        reason=reason,
        kind=kind,
        step=_step(history, records) if counts_steps(trial, history, records) else None,
        steps=_steps(history),
        loss=_loss(history),
        duration_s=max(map(clock(history), history.events), default=0.0),
        epochs=len(known),
        slots=known[-1].nodes if known else (),
        failovers=failovers(trial, history, records),
        faults=faults(trial, history),
        goodput=goodput(history, records) if records else None,
    )


def counts_steps(trial: Trial, history: History, records: Collection[StepRecord]) -> bool:
    """Whether steps of the run can be known: a script that reported none may have taken any number."""
    return trial.workload != "script" or bool(records) or bool(history.of("progress", "rank.step"))


def ending(history: History) -> tuple[str, str, str]:
    """(outcome, reason, kind); outcome is ``running`` as long as nothing ended it, or since it was resumed."""
    last: Event | None = None
    for event in history.of("run.end", "run.resumed", "run.interrupted"):
        last = event
    if last is None or last.f == "run.resumed":
        return "running", "", ""
    if last.f == "run.interrupted":
        return "interrupted", str(last.value.get("reason", "")), ""
    value = last.value
    return str(value.get("outcome", "failed")), str(value.get("reason", "")), str(value.get("kind", ""))


def _step(history: History, records: Iterable[StepRecord]) -> int:
    """The last step that is known to be done; after a failover that of the new epoch."""
    epoch = max((gang.epoch for gang in gangs(history)), default=0)
    told = [whole(e.value.get("step")) or 0 for e in history.of("progress", "rank.step") if e.epoch == epoch]
    told += [whole(e.value.get("steps")) or 0 for e in history.of("rank.finished") if e.epoch == epoch]
    return max([*told, *(record.step for record in records if record.epoch == epoch)], default=0)


def _steps(history: History) -> int | None:
    told = (whole(event.value.get("steps")) for event in history.of("progress", "rank.finished"))
    return max((steps for steps in told if steps), default=None)


def _loss(history: History) -> float | None:
    """At the end the mean over ranks of the last step, where the ranks told it; before, what rank 0 told last."""
    ends = [event for event in history.of("rank.finished") if whole(event.value.get("rank")) == 0]
    told = [number(event.value.get("loss")) for event in (*history.of("progress"), *ends)]
    told += [number(event.value.get("loss_mean")) for event in ends]
    return next((loss for loss in reversed(told) if loss is not None), None)
