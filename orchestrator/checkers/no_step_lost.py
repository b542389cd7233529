"""On the kept lineage every rank did every step exactly once, from 1 to the last, without a gap."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.run import Run, StepRecord
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By the step records of the nodes; data order is a function of the step, so a step is its data."""
    records = tuple(run.files.steps())
    gangs = views.gangs(run.history)
    doubts = list(views.unended(run.history))
    last = views.whole(views.mapping(run.extras.get("plan.json")).get("last_step"))
    if not records:
        return views.conclude("no-step-lost", "", doubts=[views.found("no step was recorded"), *doubts])
    if last is None:
        last = max(record.step for record in records)
    ranks = sorted({rank for gang in gangs for rank in gang.ranks} | {record.rank for record in records})
    kept = views.kept_steps(records, run.history)
    failures = [*_doubled(records), *_jumps(run, records)]
    failures += [one for rank in ranks for one in _holes(rank, kept, last, ended=not doubts)]
    return views.conclude(
        "no-step-lost", f"steps 1 to {last} once on {len(ranks)} ranks", failures=failures, doubts=doubts
    )


def _doubled(records: tuple[StepRecord, ...]) -> Iterator[views.Finding]:
    for (epoch, rank, step), times in Counter((r.epoch, r.rank, r.step) for r in records).items():
        if times > 1:
            yield views.found(f"rank {rank} did step {step} {times} times in epoch {epoch}")


def _jumps(run: Run, records: tuple[StepRecord, ...]) -> Iterator[views.Finding]:
    """Within an epoch a rank goes on from where it resumed, one step after the other."""
    resumes = views.resume_steps(run.history)
    at: dict[tuple[int, int], int] = {}
    for record in records:
        who = (record.epoch, record.rank)
        due = at.get(who, resumes.get(record.epoch, 0)) + 1
        if record.step != due:
            yield views.found(f"rank {record.rank} did step {record.step} of epoch {record.epoch} where {due} was due")
        at[who] = record.step


def _holes(rank: int, kept: tuple[StepRecord, ...], last: int, *, ended: bool) -> Iterator[views.Finding]:
    done = Counter(record.step for record in kept if record.rank == rank)
    many = [step for step, times in done.items() if times > 1]
    beyond = [step for step in done if step > last]
    if many:
        yield views.found(f"rank {rank} did step {min(many)} {done[min(many)]} times on the kept lineage")
    if beyond:
        yield views.found(f"rank {rank} did step {max(beyond)} beyond the last, {last}")
    missing = [step for step in range(1, last + 1) if step not in done]
    if ended and missing:
        yield views.found(f"rank {rank} never did step {missing[0]} ({len(missing)} of {last} are missing)")
