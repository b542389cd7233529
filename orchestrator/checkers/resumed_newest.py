"""Every failover resumed from the newest checkpoint that was committed, undamaged and of the kept lineage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import (
    CheckpointCommit,
    CheckpointFacts,
    CheckpointScanDone,
    CheckpointSkipped,
    RankRestored,
    ResumeChosen,
)
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By the commits that the ranks had told before the new gang was started."""
    gangs = views.gangs(run.history)
    later = [gang for gang in gangs if gang.epoch > 0]
    failures = [one for gang in later for one in _stale(run, gang)]
    doubts = [
        *(one for gang in gangs for one in _unchosen(run, gang)),
        *views.unended(run.history),
        *views.unstarted(run.history),
    ]
    if not run.history.of(CheckpointCommit, RankRestored):
        doubts.append(views.found("no rank reported a checkpoint, neither written nor restored"))
    return views.conclude("resumed-newest", _text(run, later), failures=failures, doubts=doubts)


def _text(run: Run, later: list[views.Gang]) -> str:
    if not later:
        return "no failover, nothing was resumed"
    steps = [str(views.resume_steps(run.history).get(gang.epoch, 0)) for gang in later]
    return (
        f"resumed from {', '.join(steps)}, the newest each time"
        if len(steps) > 1
        else f"resumed {steps[0]}, the newest"
    )


def _unchosen(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    if gang.epoch not in views.choices(run.history):
        yield views.found(f"epoch {gang.epoch} was started without a choice of a checkpoint", gang.began)


def _stale(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    chosen = views.choices(run.history).get(gang.epoch)
    if chosen is None:
        return
    skipped = {str(e.data.name) for e in run.history.of(CheckpointSkipped) if e.seq < gang.began.seq}
    committed = views.commits(run.history, gang, skipped)
    newest = committed[-1] if committed else None
    step = _step(chosen)
    if newest is not None and _step(newest) > step:
        yield views.found(
            f"epoch {gang.epoch} resumed from {step} although {_step(newest)} was committed", chosen, newest
        )
    if str(chosen.data.name) in skipped:
        yield views.found(f"epoch {gang.epoch} resumed from {chosen.data.name}, which is damaged", chosen)
    yield from _unfounded(run, gang, chosen, committed)


def _unfounded(
    run: Run, gang: views.Gang, chosen: Event[ResumeChosen], committed: tuple[Event[CheckpointCommit], ...]
) -> Iterator[views.Finding]:
    """What was chosen must have been committed as such, or found by the scan (its rank may have died before it told)."""
    if _step(chosen) == 0:
        return
    name, sha256 = chosen.data.name, chosen.data.sha256
    told = [event for event in committed if event.data.name == name]
    scans = [e for e in run.history.of(CheckpointScanDone) if e.seq < gang.began.seq]
    scanned = [e for e in scans if e.data.newest is not None and e.data.newest.name == name]
    if not told and not scanned:
        yield views.found(f"epoch {gang.epoch} resumed from {name}, which no rank committed and no scan found", chosen)
    for event in told:
        if event.data.sha256 != sha256:
            yield views.found(f"{name} is not what was committed under that name: its SHA-256 differs", event, chosen)
    if not told and any(_lost(run, gang, event) for event in scanned):
        yield views.found(f"{name} is of a lineage that was given up", chosen)


def _lost(run: Run, gang: views.Gang, scan: Event[CheckpointScanDone]) -> bool:
    """Whether the checkpoint that was found descends from steps that no longer count."""
    newest = scan.data.newest or CheckpointFacts.read({})
    resumes = {epoch: step for epoch, step in views.resume_steps(run.history).items() if epoch < gang.epoch}
    return not views.kept(newest.epoch or 0, newest.step or 0, resumes)


def _step(event: Event[ResumeChosen | CheckpointCommit]) -> int:
    return event.data.step or 0
