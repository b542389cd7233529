"""A run at a glance: its state or outcome, the nodes of its ranks, its losses and recoveries."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from .. import products
from ..model import events
from ..model.event import Event, History
from ..model.frozen import dataclass
from ..model.run import StepRecord
from ..model.trial import Trial
from .event_order import clock
from .failovers import Failover, failovers
from .fault_stages import FaultView, faults
from .gangs import gangs
from .json_values import number
from .progress import goodput, omitted_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run at a glance. ``outcome``: running | finished | failed | interrupted. ``goodput``: 0..1, see goodput().

    ``step``: the last completed step; None where a script reports no steps, so that it is not known.
    ``lost``: the nodes that exited or fell silent, also where no failover followed, as after an interruption.
    """

    outcome: str
    reason: str
    kind: str
    step: int | None
    steps: int | None
    loss: float | None
    duration_s: float
    epochs: int
    slots: tuple[str, ...]
    failovers: tuple[Failover, ...]
    faults: tuple[FaultView, ...]
    goodput: float | None = None
    lost: tuple[str, ...] = ()
    bed_ended: str = ""


def view(
    trial: Trial, history: History, steps: Iterable[StepRecord] = (), resumes: Mapping[int, int] | None = None
) -> RunView:
    """The whole run at a glance; ``steps`` (the node files' records) add lost steps, caught-up and goodput.

    ``resumes``: see ``failovers``.
    """
    records = tuple(steps)
    outcome, reason, kind = ending(history)
    ended, recoveries = bed_end(history), failovers(trial, history, records, resumes)
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
        failovers=tuple(failover for failover in recoveries if not ended or failover.ttr_s is not None),
        bed_ended=ended,
        faults=faults(trial, history),
        goodput=goodput(history, records, resumes) if records else None,
        lost=tuple(dict.fromkeys(event.node for event in history.of(events.NodeExit, events.NodeSilent) if event.node)),
    )


def is_collective(history: History) -> bool:
    """Return whether the run measured collectives: only then do readers load the views of them."""
    return history.first(events.CollectivePlan) is not None


def part_of_collectives(history: History, module: str) -> Any:
    """A module of the product of collectives, for a run that measured some; None for others, and where it is not installed."""
    is_there = is_collective(history) and "collectives" in products.folders()
    return products.part("collectives", module) if is_there else None


def counts_steps(trial: Trial, history: History, records: Collection[StepRecord]) -> bool:
    """Return whether the steps of the run are known: a script that reported none may have completed any number."""
    kinds = (events.Progress, events.RankStep)
    return trial.workload != "script" or bool(records) or any(event.kind in kinds for event in history.events)


def ending(history: History) -> tuple[str, str, str]:
    """(outcome, reason, kind); the outcome is ``running`` until an event ends the run, or after it was resumed."""
    last: Event | None = None
    for event in history.events:
        if event.kind in (events.RunEnd, events.RunResumed, events.RunInterrupted):
            last = event
    if last is None or last.kind is events.RunResumed:
        return "running", "", ""
    if last.kind is events.RunInterrupted:
        return "interrupted", last.data.reason or "", ""
    return last.data.outcome or "failed", last.data.reason or "", last.data.kind or ""


def bed_end(history: History) -> str:
    """Return why the whole bed has ended, as after the end of its job; empty where it has not.

    Nodes that are lost with it are no failover.
    """
    ended = ""
    for event in history.events:
        ended = "" if event.kind is events.RunResumed else ended or getattr(event.data, "bed_ended", None) or ""
    return ended


def _step(history: History, records: Iterable[StepRecord]) -> int:
    """The last step that is known to be completed; after a failover that of the new attempt. Omitted steps do not count."""
    epoch = max((gang.epoch for gang in gangs(history)), default=0)
    steps = [event.data.step or 0 for event in history.of(events.Progress) if event.epoch == epoch]
    steps += [event.data.step for event in history.of(events.RankStep) if event.epoch == epoch]
    steps += [event.data.steps or 0 for event in history.of(events.RankFinished) if event.epoch == epoch]
    last = max([*steps, *(record.step for record in records if record.epoch == epoch)], default=0)
    return last - sum(step <= last for step in omitted_steps(history))


def _steps(history: History) -> int | None:
    reported = [event.data.steps for event in history.of(events.Progress)]
    reported += [event.data.steps for event in history.of(events.RankFinished)]
    return max((steps for steps in reported if steps), default=None)


def _loss(history: History) -> float | None:
    """Return the mean over ranks of the last step at the end, where ranks reported it; before, the newest of rank 0."""
    ends = [event.data for event in history.of(events.RankFinished) if event.data.rank == 0]
    losses = [number(event.data.loss) for event in history.of(events.Progress)]
    losses += [number(end.loss) for end in ends] + [number(end.loss_mean) for end in ends]
    return next((loss for loss in reversed(losses) if loss is not None), None)
