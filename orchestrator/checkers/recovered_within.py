"""All ranks completed their first new step within a time limit after every loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import views
from ..model import events
from ..model.event import Event
from ..model.frozen import dataclass
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``seconds``: the limit."""

    seconds: float = 10.0


def check(run: Run, params: Params) -> Verdict:
    """Measure the time from the injection, or the detection of an unplanned loss, to the first step of the last rank."""
    failovers = training.recoveries(run)
    refused = run.history.of(events.RecoveryRefused)
    doubts = [*views.not_ended(run.history)]
    if not failovers and not refused:
        return views.conclude("recovered-within", "", doubts=[_unrecovered(run, is_cut=bool(doubts)), *doubts])
    counted = views.counts_steps(run.trial, run.history, tuple(run.files.steps()))
    unclear = (
        {item.id: item.reason for item in training.worker_returns(run) if not item.is_known} if _is_theirs(run) else {}
    )
    failures = [*_slow([f for f in failovers if f.fault not in unclear], params, ended=counted and not doubts)]
    doubts += [views.finding(f"time to recover {reason}") for reason in unclear.values()]
    if not counted and failovers:
        doubts.append(views.finding("the script reported no step, so the time to recover is not known"))
    failures += [views.finding(f"no recovery: {event.data.reason}", event) for event in refused]
    worst = max((failover.ttr_s for failover in failovers if failover.ttr_s is not None), default=0.0)
    many = f" at worst of {len(failovers)}" if len(failovers) > 1 else ""
    return views.conclude(
        "recovered-within", f"back in {worst * 1000:.0f} ms{many}, limit {params.seconds:g} s",
        failures=failures, doubts=doubts, evidence={"ttr_s": {f"attempt {failover.epoch}": failover.ttr_s for failover in failovers}},
    )  # fmt: skip


def _unrecovered(run: Run, *, is_cut: bool) -> views.Finding:
    """Return what was lost, or may be lost by a fault that a run injected before it was cut off; no recovery followed."""
    killed, lost = set[str | None](), dict[str, Event]()
    for event in run.history.with_subject(events.NodeExit, events.NodeSilent, events.NodeKill):
        if event.kind is events.NodeKill:
            killed.add(event.node)
        elif event.type == "note" and event.node and event.node not in killed:
            lost.setdefault(event.node, event)
    if lost:
        text = f"{', '.join(lost)} {'were' if len(lost) > 1 else 'was'} lost, and no recovery followed"
        return views.finding(text, *lost.values())
    known = views.gangs(run.history)
    if cause := views.root_cause(run.history, known[-1]) if known else None:
        return views.finding(f"rank {cause.rank} ({cause.node}) {cause.how}, and no recovery followed", cause.exit)
    for trace in views.traces(run.trial, run.history) if is_cut else ():
        if injected := trace.first(events.FaultInjected):
            text = f"{trace.plan.fault} was injected on {injected.node}; whether a node was lost is not known"
            return views.finding(text, injected)
    return views.finding("no node was lost")


def _is_theirs(run: Run) -> bool:
    """Return whether the job's own launcher recovered: then only the watcher's records show its steps."""
    return run.history.first(events.RecoveryReplaced) is not None


def _slow(failovers: Sequence[views.Failover], params: Params, *, ended: bool) -> Iterator[views.Finding]:
    for index, failover in enumerate(failovers):
        seqs = tuple(point.seq for point in failover.milestones)
        overtaken = index + 1 < len(failovers)
        if failover.ttr_s is None and ended and not overtaken:
            yield views.Finding(
                text=f"{views.start_name(failover.epoch)} never completed its first step on every rank", seqs=seqs
            )
        elif failover.ttr_s is not None and failover.ttr_s > params.seconds:
            yield views.Finding(
                text=f"{views.start_name(failover.epoch)}: back in {failover.ttr_s:.3g} s, limit {params.seconds:g} s",
                seqs=seqs,
            )
