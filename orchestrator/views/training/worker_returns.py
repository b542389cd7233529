"""Finds when every worker of a job trained again after a planned fault, by the watcher's records: under ccbed or any launcher."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from ...model import events, watch
from ...model.frozen import dataclass, field, replace
from ...model.run import Run
from ..event_order import Clocks, clocks
from ..failovers import Failover, failovers, fault_start
from ..fault_stages import FaultTrace, traces
from ..gangs import gangs
from ..step_ranges import Steps

#: A worker of a job: the group rank of its node, and its number there. Launchers may give it another rank after a loss.
Worker = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Return:
    """The way back after one planned fault, in seconds since it was injected; None: not reached, or not known.

    ``any_step_s``, ``first_step_s``: when the first, and the last, worker had completed its first step after it.
    ``survivors``: workers whose process went on. ``reason``: why ``first_step_s`` is None; ``is_known``: not because it is
    not known, but because it was not reached.
    """

    id: str
    fault: str
    node: str
    detector: str = ""
    detected_s: float | None = None
    any_step_s: float | None = None
    first_step_s: float | None = None
    workers: Mapping[str, float] = field(default_factory=dict)
    survivors: int = 0
    reason: str = ""
    is_known: bool = True


def worker_returns(run: Run) -> tuple[Return, ...]:
    """One for each planned fault that was injected, in order."""
    times = clocks(run.history)
    detections = {failover.fault: failover for failover in failovers(run.trial, run.history)}
    known = [
        (trace, begin) for trace in traces(run.trial, run.history) if (begin := _begin(run, trace, times)) is not None
    ]
    records = _records(run, times)
    result = []
    for index, (trace, begin) in enumerate(known):
        end = known[index + 1][1] if index + 1 < len(known) else math.inf
        failover = detections.get(trace.plan.id)
        loss = Return(id=trace.plan.id, fault=trace.plan.fault, node=trace.node or "")
        if failover:
            loss = replace(loss, detector=failover.detector, detected_s=failover.detect_s)
        result.append(_with_first_steps(loss, run, records, begin, end))
    return tuple(result)


def recoveries(run: Run) -> tuple[Failover, ...]:
    """The failovers; where the job's own launcher recovers, the history does not show its steps, but the records do."""
    known = failovers(run.trial, run.history)
    if not run.history.first(events.RecoveryReplaced):
        return known
    returns = {item.id: item for item in worker_returns(run)}
    return tuple(with_return(failover, returns) for failover in known)


def with_return(failover: Failover, returns: Mapping[str, Return]) -> Failover:
    """The failover with the time to the first step of every worker, unless it has one."""
    own = returns.get(failover.fault or "")
    return replace(failover, ttr_s=own.first_step_s) if own and failover.ttr_s is None else failover


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """A worker process. ``began`` and ``steps`` (start, end) in seconds since the run began; None: its clock is not known."""

    worker: Worker
    began: float | None
    steps: Sequence[tuple[float, float]]


def _begin(run: Run, trace: FaultTrace, times: Clocks) -> float | None:
    injected = trace.first(events.FaultInjected)
    start = fault_start(trace, injected, times) if injected else None
    return times.at(start) if start else None


def _records(run: Run, times: Clocks) -> list[_Record]:
    slots = {
        (gang.epoch, start.node): start.invoke.data.group_rank or 0
        for gang in gangs(run.history)
        for start in gang.starts
    }
    return [
        _record(file, slots[file.attempt, file.node], times)
        for file in run.files.watch()
        if (file.attempt, file.node) in slots and file.begin is not None
    ]


def _record(file: watch.WatchFile, slot: int, times: Clocks) -> _Record:
    begin = file.begin
    offset = times.offset(begin.boot) if begin else None
    worker = (slot, (begin.local_rank or 0) if begin else 0)
    if begin is None or offset is None:
        return _Record(worker=worker, began=None, steps=())
    steps = [(step.start + offset, step.end + offset) for step in Steps(file.lines).in_order()]
    return _Record(worker=worker, began=begin.t + offset, steps=steps)


def _with_first_steps(loss: Return, run: Run, records: Sequence[_Record], begin: float, end: float) -> Return:
    """Every node must have a record with steps before the fault: else a worker may be missing."""
    before = {record.worker for record in records if any(stop <= begin for _, stop in record.steps)}
    slots = {slot for gang in gangs(run.history) for slot in gang.slots}
    blind = sorted(slots - {slot for slot, _ in before})
    if blind:
        unclear = any(record.began is None for record in records)
        why = "its clock was not compared" if unclear else "the watcher recorded no step there before the fault"
        return replace(loss, reason=f"not known for group rank {blind[0]}: {why}", is_known=False)
    own = {worker: [record for record in records if record.worker == worker] for worker in before}
    firsts = {worker: _first_step(processes, begin, end) for worker, processes in own.items()}
    reached = {f"{slot}.{local}": t - begin for (slot, local), t in sorted(firsts.items()) if t is not None}
    survivors = sum(not any(_is_new(record, begin) for record in processes) for processes in own.values())
    loss = replace(loss, workers=reached, any_step_s=min(reached.values(), default=None))
    missing = sorted(worker for worker, t in firsts.items() if t is None)
    if missing:
        return replace(loss, reason=f"no step of group rank {missing[0][0]} after the fault")
    return replace(loss, first_step_s=max(reached.values()), survivors=survivors)


def _is_new(record: _Record, begin: float) -> bool:
    return record.began is not None and record.began > begin


def _first_step(processes: Sequence[_Record], begin: float, end: float) -> float | None:
    """The end of the worker's first step after the fault: of a new process if there is one, else of the one that went on."""
    new = [record for record in processes if _is_new(record, begin)]
    return min((stop for record in new or processes for stop in _ends(record, begin, end)), default=None)


def _ends(record: _Record, begin: float, end: float) -> Iterator[float]:
    return (stop for start, stop in record.steps if begin < start and stop < end)
