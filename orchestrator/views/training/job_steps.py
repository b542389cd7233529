"""A run at a glance, with the steps of a user's job as the watcher recorded them, and its attempts by either source of facts."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ...model.events import RecoveryReplaced
from ...model.run import Run, StepRecord
from ...model.trial import SCRIPT
from ..lineage import kept_steps as lineage_of_steps
from ..overview import RunView
from ..overview import view as run_view
from .attempts import Attempt, attempts
from .job_checkpoints import damages
from .resumption import Lineage, lineage
from .worker_returns import with_return, worker_returns


def view(run: Run) -> RunView:
    shown = run_view(run.trial, run.history, *_counted(run, is_summed=True))
    if not run.history.first(RecoveryReplaced):
        return shown
    returns = {item.id: item for item in worker_returns(run)}
    return replace(shown, failovers=tuple(with_return(failover, returns) for failover in shown.failovers))


def steps(run: Run) -> Iterator[StepRecord]:
    """The steps of all ranks; of a watched script numbered from the beginning of the run."""
    return _counted(run)[0]


def kept_steps(run: Run) -> tuple[StepRecord, ...]:
    """The steps of the kept lineage, in order of attempt, rank and step."""
    records, known = _counted(run)
    return lineage_of_steps(records, run.history, known)


def _counted(run: Run, *, is_summed: bool = False) -> tuple[Iterator[StepRecord], Mapping[int, int] | None]:
    """The steps of all ranks, and where the watcher recorded them the step that each attempt of ccbed began from."""
    lines = watched(run)
    return (iter(run.files.steps()), None) if lines is None else (_records(lines, is_summed=is_summed), resumes(lines))


def watched(run: Run) -> Lineage | None:
    """The lineage of a script whose steps the watcher recorded; None for any other run.

    Also None where the script prints its steps, or reports them and not what it resumed from: then those are shown as reported.
    """
    if not is_observed(run):
        return None
    lines = lineage_of(run)
    trained = [attempt for attempt in lines.attempts if attempt.ranks]
    is_reported = any(True for _ in run.files.steps()) and not all(
        attempt.index in lines.bases and any(process.claims for process in attempt.ranks.values())
        for attempt in trained
    )
    return lines if trained and not is_reported else None


def resumes(lines: Lineage) -> Mapping[int, int]:
    """Attempt of ccbed -> the step that it began from."""
    return {
        attempt.number: lines.bases[attempt.index]
        for attempt in reversed(lines.attempts)
        if attempt.index in lines.bases
    }


def _records(lines: Lineage, *, is_summed: bool = False) -> Iterator[StepRecord]:
    """A step that a restart within the same attempt of ccbed executed again counts once.

    ``is_summed``: a range of steps that no attempt did again is one record, of its last step and of all of their time.
    """
    redone = _redone(lines) if is_summed else [(0, sys.maxsize)]
    for attempt in lines.attempts:
        if attempt.index in lines.bases:
            restarts = [later.index for later in lines.attempts[attempt.index + 1 :] if later.number == attempt.number]
            last = min((lines.bases[index] for index in restarts if index in lines.bases), default=sys.maxsize)
            yield from _steps(attempt, lines.bases[attempt.index], last, redone)


def _redone(lines: Lineage) -> list[tuple[int, int]]:
    """(first, last) of the steps that an attempt did again, and of the step after them: whoever reaches it has caught up."""
    reached, spans = 0, []
    for attempt in lines.attempts:
        base = lines.bases.get(attempt.index)
        if attempt.index and base is not None:
            spans.append((base, reached + 1))
        reached = max([reached, *((base or 0) + process.last for process in attempt.ranks.values())])
    return spans


def _steps(attempt: Attempt, base: int, last: int, redone: Sequence[tuple[int, int]]) -> Iterator[StepRecord]:
    for process in attempt.ranks.values():
        summed = [
            line
            for line in process.steps.ranges
            if base + line.last <= last
            and not any(begin <= base + line.last and base + line.first <= end for begin, end in redone)
        ]
        for line in summed:
            yield StepRecord(
                epoch=attempt.number, node=process.node, rank=process.rank, step=base + line.last, loss="",
                start=line.start, end=line.end,
            )  # fmt: skip
        for n, step in process.steps.items_outside(summed):
            if base + n > last:
                break
            state = process.states.get(n)
            yield StepRecord(
                epoch=attempt.number, node=process.node, rank=process.rank, step=base + n, loss=step.loss or "",
                start=step.start, end=step.end, digest=state.weights if state and not process.is_sharded else None,
            )  # fmt: skip


def is_observed(run: Run) -> bool:
    """Tell whether the run is judged by the watcher's records: that of a user's script."""
    return run.trial.workload == SCRIPT


def lineage_of(run: Run) -> Lineage:
    """The attempts of the run, and where each resumed from."""
    return _lineage_of(_Job(run))


class _Job:
    """A run, equal to another one with the same files and history: checkers, metrics, reports and the terminal ask two dozen times."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Job)
            and self.run.files is other.run.files
            and self.run.history is other.run.history
            and self.run.trial.workload == other.run.trial.workload
        )

    def __hash__(self) -> int:
        return id(self.run.files)


@functools.lru_cache(maxsize=1)
def _lineage_of(job: _Job) -> Lineage:
    if is_observed(job.run):
        return lineage(attempts(job.run), damages(job.run.history))
    from .own_records import own_lineage  # no run of a script loads it

    return own_lineage(job.run)
