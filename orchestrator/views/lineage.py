"""The kept lineage: which execution of a step counts, and which checkpoints descend from kept steps only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..model.event import Event, History
from ..model.events import CheckpointCommit, ResumeChosen
from ..model.run import StepRecord
from .gangs import Gang, gangs


def choices(history: History) -> Mapping[int, Event[ResumeChosen]]:
    """epoch -> the resume.chosen that its gang was started with."""
    chosen: dict[int, Event[ResumeChosen]] = {}
    newest: Event[ResumeChosen] | None = None
    starts = {gang.began.seq: gang.epoch for gang in gangs(history)}
    for event in history.events:
        if event.kind is ResumeChosen:
            newest = event
        if event.seq in starts and newest is not None:
            chosen.setdefault(starts[event.seq], newest)
            newest = None
    return chosen


def resume_steps(history: History) -> Mapping[int, int]:
    """epoch -> the step that it resumed from, 0 for a fresh start; epochs whose gang was started, in order."""
    chosen = choices(history)
    return {gang.epoch: _resume_step(gang, chosen.get(gang.epoch)) for gang in gangs(history)}


def kept(epoch: int, step: int, resumes: Mapping[int, int]) -> bool:
    """Whether what ``epoch`` did in ``step`` still counts: no later epoch resumed from before it."""
    return all(step <= resume for later, resume in resumes.items() if later > epoch)


def kept_steps(records: Iterable[StepRecord], history: History) -> tuple[StepRecord, ...]:
    """The records of the kept lineage, in order of epoch, rank and step."""
    resumes = resume_steps(history)
    chosen = (record for record in records if kept(record.epoch, record.step, resumes))
    return tuple(sorted(chosen, key=lambda record: (record.epoch, record.rank, record.step)))


def commits(history: History, gang: Gang, skipped: Iterable[str] = ()) -> tuple[Event[CheckpointCommit], ...]:
    """Checkpoints that the kept lineage had committed before ``gang`` was started, oldest step first.

    ``skipped``: names to leave out (damaged ones).
    """
    resumes = {epoch: step for epoch, step in resume_steps(history).items() if epoch < gang.epoch}
    excused = set(skipped)
    found = (
        event
        for event in history.of(CheckpointCommit)
        if event.seq < gang.began.seq
        and (event.epoch or 0) < gang.epoch
        and event.data.name not in excused
        and kept(event.epoch or 0, event.data.step or 0, resumes)
    )
    return tuple(sorted(found, key=lambda event: (event.data.step or 0, event.epoch or 0)))


def _resume_step(gang: Gang, chosen: Event[ResumeChosen] | None) -> int:
    if chosen is not None:
        return chosen.data.step or 0
    resume = gang.began.data.resume
    return (resume.step or 0) if resume else 0
