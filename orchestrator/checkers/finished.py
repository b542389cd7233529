"""The run ended as it should: every rank of the last epoch finished and left with exit code 0."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import CheckpointFailed, GangStop, RankExit, RankFinished, RunEnd
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = True
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """The exit codes are the verdict; a workload of ours says ``rank.finished`` as well."""
    outcome, reason, kind = views.ending(run.history)
    end = run.history.last(RunEnd)
    gangs = views.gangs(run.history)
    doubts = list(views.unended(run.history))
    if outcome == "failed":
        return views.conclude("finished", "", failures=[_blame(run, gangs) or views.found(_reason(reason, kind), end)])
    if not gangs and not doubts:
        return views.unknown("finished", "no gang was started", end)
    missing, failures = _leavings(run, gangs[-1]) if gangs and not doubts else ([], [])
    return views.conclude("finished", _text(gangs) + _unsaved(run), failures=failures, doubts=[*doubts, *missing])


def _reason(reason: str, kind: str) -> str:
    return f"the run failed: {reason or 'no reason given'}" + (" (infrastructure)" if kind == "infrastructure" else "")


def _blame(run: Run, gangs: tuple[views.Gang, ...]) -> views.Finding | None:
    """The first rank of the last gang that left by itself with another code than 0."""
    if not gangs:
        return None
    stops = views.operations(run.history, GangStop)
    first = min(
        (stop.invoke.seq for stop in stops if stop.epoch == gangs[-1].epoch), default=len(run.history.events) + 1
    )
    exits = (e for e in gangs[-1].of(RankExit) if e.data.code not in (0, None) and e.seq < first)
    return next((_left(event, gangs[-1]) for event in exits), None)


def _left(event: Event[RankExit], gang: views.Gang) -> views.Finding:
    rank, code = event.data.rank, event.data.code or 0
    culprit, said = views.blamed(gang, rank)
    if said and culprit != rank:
        return views.found(f"{said.data.kind} of {gang.ranks[culprit]}: {said.data.message}", event, said)
    how = f"was ended by {_signal(-code)}" if code < 0 else f"left with exit code {code}"
    why = f": {said.data.kind}: {said.data.message}" if said and said.data.kind != "exit" else ""
    return views.found(f"rank {rank} ({event.node}) {how}{why}", event, said)


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _leavings(run: Run, gang: views.Gang) -> tuple[list[views.Finding], list[views.Finding]]:
    """(what was not seen, what was seen and is wrong) about the ranks of the last epoch."""
    exits, ends = gang.by_rank(RankExit), gang.by_rank(RankFinished)
    missing = [views.found(f"the exit of rank {rank} was not seen") for rank in gang.ranks if rank not in exits]
    failures = [_left(event, gang) for event in exits.values() if event.data.code != 0]
    if run.trial.workload != "script":
        silent = [rank for rank in gang.ranks if rank not in ends and rank in exits]
        failures += [views.found(f"rank {rank} left without finishing", exits[rank]) for rank in silent]
        failures += _short(run, ends)
    if not gang.ranks:
        missing.append(views.found("the last gang has no ranks", gang.began))
    return missing, failures


def _short(run: Run, ends: dict[int, Event]) -> Iterator[views.Finding]:
    """Ranks that finished before the plan's last step."""
    last = views.whole(views.mapping(run.extras.get("plan.json")).get("last_step"))
    for rank, event in ends.items():
        steps = event.data.steps
        if last is not None and steps != last:
            yield views.found(f"rank {rank} finished after step {steps} of {last}", event)


def _text(gangs: tuple[views.Gang, ...]) -> str:
    if not gangs:
        return ""
    ends = gangs[-1].by_rank(RankFinished).values()
    steps = max((event.data.steps or 0 for event in ends), default=0)
    counted = f", {steps}/{steps} steps" if steps else ""
    return f"{len(gangs[-1].ranks)} of {len(gangs[-1].ranks)} ranks left with exit code 0{counted}"


def _unsaved(run: Run) -> str:
    lost = len(run.history.of(CheckpointFailed))
    return f", {lost} checkpoint{'s' * (lost > 1)} could not be written" if lost else ""
