"""The run finished: every rank of the last start completed its work and left with exit code 0."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .. import views
from ..model import events, watch
from ..model.event import Event
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training

ALWAYS = True


def check(run: Run, params: Params) -> Verdict:
    """Judge by the exit codes, and, except for scripts, by ``rank.finished`` and its last step."""
    outcome, reason, kind = views.ending(run.history)
    end = run.history.last(events.RunEnd)
    gangs = views.gangs(run.history)
    doubts = list(views.not_ended(run.history))
    if outcome == "failed":
        return views.conclude(
            "finished", "", failures=[_first_failure(run, gangs) or views.finding(_reason(reason, kind), end)]
        )
    if not gangs and not doubts:
        return views.unknown("finished", "no worker group was started", end)
    stopped = run.history.last(events.RunStopped)
    missing, failures = _exits(run, gangs[-1], stopped) if gangs and not doubts else ([], [])
    doubts += [*missing, *(_undrilled(run) if stopped else _without_end(run))]
    text = _stop_text(stopped) if stopped else _text(gangs)
    return views.conclude("finished", text + _unsaved(run), failures=failures, doubts=doubts)


def _without_end(run: Run) -> Iterator[views.Finding]:
    """Ranks that the watcher saw: those that an error ended, or that did not end as Python ends, after other steps than their peers.

    A process records a step when the next one begins. So one without an end may have done one more than its peers with an end know.
    Where all end so after one step, the reference run shows whether that is the job's end: other checks compare its steps.
    """
    attempts = training.attempts(run)
    ranks = tuple(attempts[-1].ranks.values()) if attempts else ()
    for process in ranks:
        line = next((line for line in process.file.of(watch.Raised) if line.n >= process.last), None)
        if line is not None:
            text = f"{process.name} made no step after {line.where} that followed step {line.n} had raised an error"
            yield views.finding(
                f"{text}, which exit code 0 may hide ({line.error}): a rank that leaves with another is judged"
            )
    silent = [process for process in ranks if process.end is None]
    if not silent or any(process.is_claimed for process in ranks):
        return
    unknown = len(silent) < len(ranks)
    if not unknown and run.twin is None and {process.last for process in ranks} == {ranks[0].last} != {0}:
        text = f"no rank wrote the end of its record after step {ranks[0].last}, as where os._exit hides an error"
        yield views.finding(f"{text}; --reference shows whether the job ends so")
    least = min(ranks, key=lambda process: process.last + (unknown and process.end is None))
    most = max(ranks, key=lambda process: process.last)
    if least.last + (unknown and least.end is None) < most.last:
        names = "no rank" if len(silent) == len(ranks) else ", ".join(process.name for process in silent) + " never"
        stopped = f"{least.name} stopped after step {least.last}, {most.name} after step {most.last}"
        yield views.finding(f"{names} wrote the end of its record, and {stopped}: exit code 0 may hide an error")


def _stop_text(stopped: Event[events.RunStopped]) -> str:
    return f"stopped as planned at {stopped.data.at}, after at least {stopped.data.steps} steps and {stopped.data.saves} saved checkpoints"


def _undrilled(run: Run) -> Iterator[views.Finding]:
    """A run that was stopped proves a recovery only if something was saved before its fault."""
    injected = run.history.first(events.FaultInjected)
    saves = run.history.of(events.SaveCommitted, events.CheckpointCommit)
    if run.trial.faults and injected is None:
        yield views.finding("the run was stopped before a planned fault was injected")
    elif injected is not None and not any(save.seq < injected.seq for save in saves):
        yield views.finding("no checkpoint was saved before the fault, as far as it was observed", injected)


def _reason(reason: str, kind: str) -> str:
    return f"the run failed: {reason or 'no reason given'}" + (" (infrastructure)" if kind == "infrastructure" else "")


def _first_failure(run: Run, gangs: tuple[views.Gang, ...]) -> views.Finding | None:
    """The root cause of the end of the last gang, if a rank left by itself before the gang was stopped.

    None where a node was lost, the gang stood still by then, or the whole bed has ended: the errors of ranks follow from it, and the
    reason of the run's end names it.
    """
    if views.bed_end(run.history):
        return None
    cause = views.root_cause(run.history, gangs[-1]) if gangs else None
    stalled = run.history.last(events.GangStalled)
    is_stopped = stalled is not None and cause is not None and gangs[-1].began.seq < stalled.seq < cause.exit.seq
    if cause is None or is_stopped or _follows_loss(run, gangs[-1], cause):
        return None
    return _left(cause.exit, gangs[-1], cause.followers, cause.peers)


def _follows_loss(run: Run, gang: views.Gang, cause: views.Cause) -> bool:
    """Return whether a lost node had exited, or its silence had begun, at most ``WINDOW_S`` after the cause, and not by a kill of ccbed."""
    at, refused = views.clock(run.history), run.history.last(events.RecoveryRefused)
    lost = set(refused.data.lost or ()) if refused else set()
    until = min(at(cause.exit), at(cause.error or cause.exit)) + views.WINDOW_S
    killed: set[str | None] = set()
    for event in run.history.with_subject(events.NodeExit, events.NodeSilent, events.NodeKill):
        if event.seq < gang.began.seq:
            continue
        if event.kind is events.NodeKill:
            killed.add(event.node)
        elif event.type == "note" and event.node in lost - killed and at(event) - _silent_s(event) <= until:
            return True
    return False


def _silent_s(event: Event) -> float:
    return (event.data.silent_s or 0.0) if isinstance(event.data, events.NodeSilent) else 0.0


def _left(
    event: Event[events.RankExit], gang: views.Gang, followers: Sequence[int] = (), peers: str = ""
) -> views.Finding:
    culprit, error = views.culprit_of(gang, event.data.rank)
    if error and culprit != event.data.rank:
        return views.finding(f"{error.data.kind} of {gang.ranks[culprit]}: {error.data.message}", event, error)
    cause = views.Cause(rank=event.data.rank, exit=event, error=error, peers=peers)
    listed = ", ".join(map(str, followers))
    after = f"; then rank{'s' * (len(followers) > 1)} {listed} failed" if followers else ""
    return views.finding(f"rank {cause.rank} ({cause.node}) {cause.how}{after}", event, error)


def _exits(run: Run, gang: views.Gang, stopped: Event | None) -> tuple[list[views.Finding], list[views.Finding]]:
    """(doubts, failures) about the ranks of the last attempt; their exits after a planned stop are its effect."""
    exits, ends = gang.by_rank(events.RankExit), gang.by_rank(events.RankFinished)
    missing = [views.finding(f"the exit of rank {rank} is not known") for rank in gang.ranks if rank not in exits]
    own = [event for event in exits.values() if stopped is None or event.seq < stopped.seq]
    failures = [_left(event, gang) for event in own if event.data.code != 0]
    if run.trial.workload != "script":
        silent = [rank for rank in gang.ranks if rank not in ends and rank in exits]
        failures += [views.finding(f"rank {rank} left without finishing", exits[rank]) for rank in silent]
        failures += _short(run, ends)
    if not gang.ranks:
        missing.append(views.finding("the last worker group has no ranks", gang.began))
    return missing, failures


def _short(run: Run, ends: dict[int, Event[events.RankFinished]]) -> Iterator[views.Finding]:
    """Ranks that finished before the plan's last step, without the steps that a precision made unnecessary."""
    last = views.whole(views.mapping(run.extras.get("plan.json")).get("last_step"))
    due = None if last is None else last - len(views.omitted_steps(run.history))
    for rank, event in ends.items():
        steps = event.data.steps
        if due is not None and steps != due:
            yield views.finding(f"rank {rank} finished after step {steps} of {due}", event)


def _text(gangs: tuple[views.Gang, ...]) -> str:
    if not gangs:
        return ""
    ends = gangs[-1].by_rank(events.RankFinished).values()
    steps = max((event.data.steps or 0 for event in ends), default=0)
    counted = f", {steps}/{steps} steps" if steps else ""
    return f"{len(gangs[-1].ranks)} of {len(gangs[-1].ranks)} ranks left with exit code 0{counted}"


def _unsaved(run: Run) -> str:
    lost = len(run.history.of(events.CheckpointFailed))
    return f", {lost} checkpoint{'s' * (lost > 1)} could not be written" if lost else ""
