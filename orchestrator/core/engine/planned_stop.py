"""The planned stop of a script: when it is reached, and whether every fault that the run still waits for is recovered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

from ...model.event import Event
from ...model.events import FaultActDone, FaultHealDone, Progress, RankStep, RunStopped, SaveCommitted, TimerDone
from ...model.trial import FaultPlan, StopPoint, Trial, parse_stop
from . import faults, shutdown
from .state import Ending, Result, State, StopProgress, note, then, timer

KEY = "stop-at"
_parse = cache(parse_stop)


def planned(trial: Trial) -> StopPoint | None:
    """The planned stop of a trial; only scripts have one."""
    text = trial.params.get("stop_at") if trial.workload == "script" else None
    return _parse(str(text)) if text else None


def problems(trial: Trial) -> Iterator[str]:
    """Faults that would not be injected before the stop, as far as the plan shows it."""
    stop = planned(trial)
    for fault in trial.faults if stop else ():
        when = _not_before(stop, fault)
        if when:
            yield f"stop_at: the run would stop at {trial.params['stop_at']}, before {fault.id} ({fault.fault}, {when}) is injected"


def _not_before(stop: StopPoint | None, fault: FaultPlan) -> str:
    at = fault.at
    if stop is None:
        return ""
    if stop.after_s is not None and at.on is None and at.after_s is not None and at.after_s >= stop.after_s:
        return f"after {at.after_s:g} s"
    if stop.step is not None and at.step is not None and at.step > stop.step:
        return f"at step {at.step}"
    saves = at.nth if at.on == SaveCommitted.NAME else at.after_save
    return f"after save {saves}" if stop.saves is not None and saves is not None and saves > stop.saves else ""


def on_event(trial: Trial, state: State, event: Event) -> Result:
    """Count the event, and end the run at the planned stop, once planned faults are recovered."""
    stop = planned(trial)
    if stop is None or state.ending or state.over:
        return state, ()
    state = replace(state, stop=_counted(state, event))
    if stop.after_s is not None and state.armed and not state.stop.is_armed:
        return replace(state, stop=replace(state.stop, is_armed=True)), (timer(KEY, stop.after_s),)
    if not _is_reached(stop, state) or not _is_recovered(trial, state):
        return state, ()
    stopped = RunStopped(at=str(trial.params["stop_at"]), steps=state.stop.total, saves=state.save_count)
    ending = Ending(outcome="finished", reason=f"stopped as planned at {stopped.at}")
    return then((state, (note(stopped, KEY, epoch=state.epoch),)), lambda s: shutdown.close(trial, s, ending))


def _counted(state: State, event: Event) -> StopProgress:
    progress = state.stop
    epoch = state.epoch if event.epoch is None else event.epoch
    if event.kind is Progress and event.data.pid is not None:
        return _counted_worker(progress, epoch, event.data)
    if event.kind is FaultActDone and state.plan.has_launcher:
        return replace(progress, stepped=frozenset(), ended=progress.ended | _ended_workers(state, event))
    if event.kind is RankStep:
        steps = {**progress.steps, epoch: max(progress.steps.get(epoch, 0), event.data.step)}
        return replace(progress, steps=steps, stepped=progress.stepped | {(epoch, event.data.rank)})
    if event.kind in (FaultActDone, FaultHealDone):
        return replace(progress, stepped=frozenset())
    if event.kind is TimerDone and event.key == KEY:
        return replace(progress, is_over=True)
    return progress


def _counted_worker(progress: StopProgress, epoch: int, data: Progress) -> StopProgress:
    """Count the steps of a worker of a launcher: one that was started again counts from 0."""
    rank, pid, step = data.rank or 0, data.pid or 0, data.step or 0
    own = progress.workers.get(rank, {})
    workers = {**progress.workers, rank: {**own, pid: max(own.get(pid, 0), step)}}
    stepped = progress.stepped if (rank, pid) in progress.ended else progress.stepped | {(epoch, rank)}
    return replace(progress, workers=workers, stepped=stepped)


def _ended_workers(state: State, event: Event[FaultActDone]) -> frozenset[tuple[int, int]]:
    """The workers that a fault has ended: a step of theirs that is reported late shows no recovery."""
    fault = state.faults.get(str(event.key).split("/")[1])
    if fault is None or not faults.ends_rank(state.plan.acts[str(event.key).split("/")[1]][fault.node]):
        return frozenset()
    slots = [slot for slot, node in enumerate(state.slots) if node == fault.node]
    return frozenset((slot, pid) for slot in slots for pid in state.stop.workers.get(slot, {}))


def _is_reached(stop: StopPoint, state: State) -> bool:
    if stop.step is not None:
        return state.stop.total >= stop.step
    if stop.saves is not None:
        return state.save_count >= stop.saves
    return state.stop.is_over


def _is_recovered(trial: Trial, state: State) -> bool:
    """Return whether no injection is under way or certain to follow, and every rank has stepped since, if steps are reported at all."""
    if not state.active or not all(_is_over(trial, state, fault) for fault in trial.faults):
        return False
    if not any(fault.stage in ("acted", "healed") for fault in state.faults.values()):
        return True
    stepped = {rank for epoch, rank in state.stop.stepped if epoch == state.epoch}
    if not state.stop.steps and not state.stop.workers:
        return len(state.started) == state.world_size(trial)
    return len(stepped) >= state.world_size(trial)


def _is_over(trial: Trial, state: State, fault: FaultPlan) -> bool:
    current = state.faults[fault.id]
    if current.stage == "planned":
        return not _follows(state, fault)
    if current.stage == "acted":
        return faults.needs_no_heal(state, fault, current)
    return current.stage not in ("held", "acting", "healing")


def _follows(state: State, fault: FaultPlan) -> bool:
    """Return whether the injection of a planned fault is only a matter of time, or of some steps."""
    at = fault.at
    if at.after_save is not None:
        return state.save_count >= at.after_save
    return at.after_s is not None and (at.on is None or state.event_counts.get(at.on, 0) >= at.nth)
