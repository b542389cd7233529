"""On the kept lineage every rank did every step exactly once, from 1 to the last."""

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
    """No parameters."""


def check(run: Run, params: Params) -> Verdict:
    """By the step records of the nodes; the step determines its data, so no data is lost either."""
    records = tuple(run.files.steps())
    gangs = views.gangs(run.history)
    doubts = list(views.not_ended(run.history))
    last = views.whole(views.mapping(run.extras.get("plan.json")).get("last_step"))
    if not records:
        return views.conclude("no-step-lost", "", doubts=[views.finding("no step was recorded"), *doubts])
    if last is None:
        last = max(record.step for record in records)
    ranks = sorted({rank for gang in gangs for rank in gang.ranks} | {record.rank for record in records})
    kept_records = views.kept_steps(records, run.history)
    failures = [*_doubled(records), *_jumps(run, records)]
    failures += [finding for rank in ranks for finding in _holes(rank, kept_records, last, ended=not doubts)]
    return views.conclude(
        "no-step-lost", f"steps 1 to {last} once on {len(ranks)} ranks", failures=failures, doubts=doubts
    )


def _doubled(records: tuple[StepRecord, ...]) -> Iterator[views.Finding]:
    for (epoch, rank, step), times in Counter((r.epoch, r.rank, r.step) for r in records).items():
        if times > 1:
            yield views.finding(f"rank {rank} did step {step} {times} times in attempt {epoch}")


def _jumps(run: Run, records: tuple[StepRecord, ...]) -> Iterator[views.Finding]:
    """Steps of an attempt that do not follow from the step before, or from the step that it resumed from."""
    resumes = views.resume_steps(run.history)
    last: dict[tuple[int, int], int] = {}
    for record in records:
        rank = (record.epoch, record.rank)
        due = last.get(rank, resumes.get(record.epoch, 0)) + 1
        if record.step != due:
            text = f"rank {record.rank} did step {record.step} of attempt {record.epoch} instead of {due}"
            yield views.finding(text)
        last[rank] = record.step


def _holes(rank: int, kept_records: tuple[StepRecord, ...], last: int, *, ended: bool) -> Iterator[views.Finding]:
    done = Counter(record.step for record in kept_records if record.rank == rank)
    repeated = [step for step, times in done.items() if times > 1]
    beyond = [step for step in done if step > last]
    if repeated:
        yield views.finding(f"rank {rank} did step {min(repeated)} {done[min(repeated)]} times on the kept lineage")
    if beyond:
        yield views.finding(f"rank {rank} did step {max(beyond)} beyond the last, {last}")
    missing = [step for step in range(1, last + 1) if step not in done]
    if ended and missing:
        yield views.finding(f"rank {rank} never did step {missing[0]} ({len(missing)} of {last} are missing)")
