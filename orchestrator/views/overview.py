"""A run at a glance: how it stands or ended, where the ranks are, what was lost and came back."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ..model.event import History
from ..model.events import Progress, RankFinished, RankStep, RunEnd, RunInterrupted, RunResumed
from ..model.run import StepRecord
from ..model.trial import Trial
from .clock import clock, number
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
    return trial.workload != "script" or bool(records) or bool(history.of(Progress, RankStep))


def ending(history: History) -> tuple[str, str, str]:
    """(outcome, reason, kind); outcome is ``running`` as long as nothing ended it, or since it was resumed."""
    events = history.of(RunEnd, RunResumed, RunInterrupted)
    last = events[-1].data if events else None
    match last:
        case RunEnd():
            return last.outcome or "failed", last.reason or "", last.kind or ""
        case RunInterrupted():
            return "interrupted", last.reason or "", ""
        case _:
            return "running", "", ""


def _step(history: History, records: Iterable[StepRecord]) -> int:
    """The last step that is known to be done; after a failover that of the new epoch."""
    epoch = max((gang.epoch for gang in gangs(history)), default=0)
    told = [e.data.step or 0 for e in history.of(Progress, RankStep) if e.epoch == epoch]
    told += [e.data.steps or 0 for e in history.of(RankFinished) if e.epoch == epoch]
    return max([*told, *(record.step for record in records if record.epoch == epoch)], default=0)


def _steps(history: History) -> int | None:
    told = (event.data.steps for event in history.of(Progress, RankFinished))
    return max((steps for steps in told if steps), default=None)


def _loss(history: History) -> float | None:
    """At the end the mean over ranks of the last step, where the ranks told it; before, what rank 0 told last."""
    ends = [event for event in history.of(RankFinished) if event.data.rank == 0]
    told = [number(event.data.loss) for event in history.of(Progress)]
    told += [number(event.data.loss) for event in ends]
    told += [number(event.data.loss_mean) for event in ends]
    return next((loss for loss in reversed(told) if loss is not None), None)
