"""The kept lineage: which execution of a step counts, and which checkpoints descend from kept steps only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from ..model import events
from ..model.event import Event, History
from ..model.events import CheckpointCommit, ResumeChosen
from ..model.run import StepRecord
from .gangs import Gang, gangs


def chosen_checkpoints(history: History) -> Mapping[int, Event[ResumeChosen]]:
    """Attempt -> the resume.chosen that its gang was started with."""
    chosen: dict[int, Event[ResumeChosen]] = {}
    newest: Event[ResumeChosen] | None = None
    starts = {gang.began.seq: gang.epoch for gang in gangs(history)}
    for event in history.events:
        if event.kind is events.ResumeChosen:
            newest = event
        if event.seq in starts and newest is not None:
            chosen.setdefault(starts[event.seq], newest)
            newest = None
    return chosen


def resume_steps(history: History) -> Mapping[int, int]:
    """Attempt -> the step that it resumed from, 0 for a fresh start; attempts whose gang was started, in order."""
    chosen = chosen_checkpoints(history)
    return {gang.epoch: _resume_step(gang, chosen.get(gang.epoch)) for gang in gangs(history)}


def is_kept(epoch: int, step: int, resumes: Mapping[int, int]) -> bool:
    """Return whether step ``step`` of attempt ``epoch`` still counts: no later attempt resumed from an earlier step."""
    return all(step <= resume for later, resume in resumes.items() if later > epoch)


def kept_steps(
    records: Iterable[StepRecord], history: History, resumes: Mapping[int, int] | None = None
) -> tuple[StepRecord, ...]:
    """The records of the kept lineage, in order of attempt, rank and step. ``resumes``: those of a script, else of the history."""
    resumes = resume_steps(history) if resumes is None else resumes
    last: dict[int, float] = {}
    chosen = []
    for record in records:
        epoch = record.epoch
        if epoch not in last:
            last[epoch] = min((step for later, step in resumes.items() if later > epoch), default=math.inf)
        if record.step <= last[epoch]:
            chosen.append(record)
    return tuple(sorted(chosen, key=attrgetter("epoch", "rank", "step")))


def batch_losses(records: Iterable[StepRecord]) -> Mapping[int, float]:
    """Step -> the mean loss over its whole batch, from the shares of all ranks; steps whose shares are recorded."""
    shares: dict[int, list[StepRecord]] = {}
    for record in records:
        if record.count is not None:
            shares.setdefault(record.step, []).append(record)
    return {step: _mean_loss(step_records) for step, step_records in shares.items()}


def _mean_loss(records: Sequence[StepRecord]) -> float:
    total = sum(record.count or 0 for record in records)
    return sum(float.fromhex(record.loss) * (record.count or 0) for record in records) / max(total, 1)


def committed_checkpoints(
    history: History, gang: Gang, skipped: Iterable[str] = ()
) -> tuple[Event[CheckpointCommit], ...]:
    """Checkpoints that the kept lineage had committed before ``gang`` was started, oldest step first.

    ``skipped``: names of damaged checkpoints, which are left out.
    """
    resumes = {epoch: step for epoch, step in resume_steps(history).items() if epoch < gang.epoch}
    damaged = set(skipped)
    commits = (
        event
        for event in history.of(events.CheckpointCommit)
        if event.seq < gang.began.seq
        and (event.epoch or 0) < gang.epoch
        and event.data.name not in damaged
        and is_kept(event.epoch or 0, event.data.step or 0, resumes)
    )
    return tuple(sorted(commits, key=lambda event: (event.data.step or 0, event.epoch or 0)))


def _resume_step(gang: Gang, chosen: Event[ResumeChosen] | None) -> int:
    if chosen is not None:
        return chosen.data.step or 0
    resume = gang.began.data.resume
    return (resume.step or 0) if resume else 0
