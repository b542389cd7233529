"""The attempts of ccbed's own workloads, by the history and the step records of their ranks: facts of the same kind as the watcher's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ...model import events, watch
from ...model.event import Event
from ...model.events import ResumeChosen
from ...model.run import Run, StepRecord
from ..findings import Finding, finding
from ..gangs import Gang, gangs, start_name
from ..lineage import chosen_checkpoints, resume_steps
from ..step_ranges import Steps
from .attempts import Attempt, Process
from .resumption import Lineage, RankResume, Resumption, Step


def own_lineage(run: Run) -> Lineage:
    """An attempt for each gang, and for each number of an attempt in step records. The engine chose what each resumes from.

    A step that a rank recorded twice in an attempt is of an attempt by itself: no execution is left out.
    """
    known, bases = {gang.epoch: gang for gang in gangs(run.history)}, resume_steps(run.history)
    records, chosen = _executions(run.files.steps()), chosen_checkpoints(run.history)
    attempts = tuple(
        _attempt(index, number, time, known.get(number), records.get((number, time), {}), bases.get(number, 0))
        for index, (number, time) in enumerate(sorted({*((number, 0) for number in known), *records}))
    )
    starts = tuple(
        _start(attempt, known[attempt.number], chosen.get(attempt.number), bases[attempt.number])
        for attempt in attempts
        if attempt.number in known and not attempt.restart
    )
    return Lineage(
        attempts=attempts, bases={item.index: bases.get(item.number, 0) for item in attempts}, is_exact=True,
        first=next((start for start in starts if not start.attempt.index), None),
        resumptions=tuple(start for start in starts if start.attempt.index),
    )  # fmt: skip


def _executions(records: Iterable[StepRecord]) -> dict[tuple[int, int], dict[int, dict[Step, StepRecord]]]:
    """(attempt, 0, or the number of an execution before the last one in it) -> rank -> step -> record."""
    result: dict[tuple[int, int], dict[int, dict[Step, StepRecord]]] = {}
    times = Counter[tuple[int, int, int]]()
    for record in records:
        steps = result.setdefault((record.epoch, 0), {}).setdefault(record.rank, {})
        if record.step in steps:
            times[record.epoch, record.rank, record.step] += 1
            key = (record.epoch, times[record.epoch, record.rank, record.step])
            result.setdefault(key, {}).setdefault(record.rank, {})[record.step] = steps[record.step]
        steps[record.step] = record
    return result


def _attempt(
    index: int, number: int, time: int, gang: Gang | None, records: Mapping[int, Mapping[Step, StepRecord]], base: Step
) -> Attempt:
    own = gang if not time else None
    ranks = sorted({*(own.ranks if own else ()), *records})
    return Attempt(
        index=index,
        number=number,
        restart=time,
        ranks={rank: _process(number, rank, own, [*records.get(rank, {}).values()], base) for rank in ranks},
        size=gang.world if gang else None,
        are_replicas=True,
    )


def _process(number: int, rank: int, gang: Gang | None, records: Sequence[StepRecord], base: Step) -> Process:
    restored = gang.by_rank(events.RankRestored).get(rank) if gang else None
    end = gang.by_rank(events.RankFinished).get(rank) if gang else None
    begun = [watch.State(t=restored.at.mono, n=0, weights=restored.data.weights)] if restored else []
    states = [watch.State(t=record.end, n=record.step - base, weights=record.digest) for record in records]
    return Process(
        rank=rank,
        node="",
        file=watch.WatchFile(path="", node="", attempt=number, rank=rank, pid=0),
        owner=None,
        steps=Steps(_step(record, base) for record in records),
        states={state.n: state for state in (*states, *begun)},
        rngs={},
        rates={},
        loads=(),
        end=watch.End(t=end.at.mono) if end else None,
        final=(end.data.digest or {}) if end else None,
        seqs=tuple(event.seq for event in (restored, end) if event),
    )


def _step(record: StepRecord, base: Step) -> watch.Step:
    return watch.Step(
        t=record.end, n=record.step - base, start=record.start, end=record.end, loss=record.loss or None,
        batches=(record.batch or "",),
    )  # fmt: skip


def _start(attempt: Attempt, gang: Gang, chosen: Event[ResumeChosen] | None, step: Step) -> Resumption:
    """The checkpoint that each rank reported to have restored, beside the one that was chosen for its gang."""
    sha256 = chosen.data.sha256 if chosen else None
    ranks = []
    for rank, event in sorted(gang.by_rank(events.RankRestored).items()):
        restored, failure = event.data, ""
        if restored.step != step:
            failure = f"rank {rank} restored step {restored.step}, chosen was {step}"
        elif restored.sha256 != sha256:
            failure = f"rank {rank} restored another file than the chosen one"
        seqs = finding("", event, chosen).seqs
        known = frozenset() if restored.step is None else frozenset({restored.step})
        ranks.append(RankResume(rank=rank, name=f"rank {rank}", steps=known, how="report", failure=failure, seqs=seqs))
    silent = sorted(set(gang.ranks) - {rank.rank for rank in ranks})
    has_trained = any(gang.of(events.RankStep)) or any(gang.of(events.RankFinished))
    for rank in silent[:1] if has_trained else ():
        text = f"rank {rank} did not report what it restored"
        ranks.append(RankResume(rank=rank, name=f"rank {rank}", doubt=text, seqs=(gang.began.seq,)))
    return Resumption(
        attempt=attempt, ranks=tuple(ranks), step=step, newest=None, commands=tuple(_wrong_commands(gang, chosen))
    )


def _wrong_commands(gang: Gang, chosen: Event[ResumeChosen] | None) -> Iterator[Finding]:
    """Nodes that were started with another checkpoint than the chosen one."""
    for start in gang.starts if chosen else ():
        resume = start.invoke.data.resume
        due = (chosen.data.step or 0, chosen.data.sha256) if chosen else None
        if ((resume.step or 0, resume.sha256) if resume else (0, None)) != due:
            text = f"{start_name(gang.epoch)}: {start.node} was started with another checkpoint"
            yield finding(text, start.invoke, chosen)
