"""All ranks of an epoch loaded the same checkpoint, by step and SHA-256, and it is the one that was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.events import RankFinished, RankRestored, RankStep, ResumeFacts
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By what every rank said it had restored."""
    gangs = views.gangs(run.history)
    failures = [one for gang in gangs for one in (*_differing(run, gang), *_told_otherwise(run, gang))]
    doubts = [finding for gang in gangs for finding in _silent(gang)]
    if not run.history.of(RankRestored):
        doubts = [views.found("no rank reported what it restored")]
    reported = {gang.epoch for gang in gangs if gang.of(RankRestored)}
    steps = [str(step) for epoch, step in views.resume_steps(run.history).items() if epoch in reported]
    text = f"every rank restored step {', '.join(steps)}"
    return views.conclude(
        "same-resume-step",
        text,
        failures=failures,
        doubts=[*doubts, *views.unended(run.history), *views.unstarted(run.history)],
    )


def _differing(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    chosen = views.choices(run.history).get(gang.epoch)
    step = views.resume_steps(run.history).get(gang.epoch, 0)
    sha256 = chosen.data.sha256 if chosen else None
    for rank, event in gang.by_rank(RankRestored).items():
        if event.data.step != step:
            got = event.data.step
            yield views.found(f"epoch {gang.epoch}: rank {rank} restored step {got}, chosen was {step}", event, chosen)
        elif event.data.sha256 != sha256:
            yield views.found(
                f"epoch {gang.epoch}: rank {rank} restored another file than the one chosen", event, chosen
            )


def _told_otherwise(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    """Every node must have been given the checkpoint that was chosen."""
    chosen = views.choices(run.history).get(gang.epoch)
    if chosen is None:
        return
    for start in gang.starts:
        given = start.invoke.data.resume or ResumeFacts()
        due = (chosen.data.step or 0, chosen.data.sha256)
        if (given.step or 0, given.sha256) != due:
            yield views.found(f"epoch {gang.epoch}: {start.node} was told another checkpoint", start.invoke, chosen)


def _silent(gang: views.Gang) -> Iterator[views.Finding]:
    """A gang that trains, or has finished, has restored."""
    missing = sorted(set(gang.ranks) - set(gang.by_rank(RankRestored)))
    if missing and any(gang.of(kind) for kind in (RankStep, RankFinished)):
        yield views.found(f"epoch {gang.epoch}: rank {missing[0]} did not say what it restored", gang.began)
