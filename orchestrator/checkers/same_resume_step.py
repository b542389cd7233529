"""All ranks of an attempt loaded the chosen checkpoint, by step and SHA-256."""

from __future__ import annotations

from collections.abc import Iterator

from .. import views
from ..model import events
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training


def check(run: Run, params: Params) -> Verdict:
    """By the report of every rank after it restored its state; of a script by the weights that each rank began with."""
    if training.is_observed(run):
        return _script(run)
    gangs = views.gangs(run.history)
    failures = [finding for gang in gangs for finding in (*_differing(run, gang), *_wrong_commands(run, gang))]
    doubts = [finding for gang in gangs for finding in _silent(gang)]
    if not run.history.of(events.RankRestored):
        doubts = [views.finding("no rank reported the checkpoint that it restored")]
    reported = {gang.epoch for gang in gangs if gang.of(events.RankRestored)}
    steps = [str(step) for epoch, step in views.resume_steps(run.history).items() if epoch in reported]
    text = f"every rank restored step {', '.join(steps)}"
    return views.conclude(
        "same-resume-step",
        text,
        failures=failures,
        doubts=[*doubts, *views.not_ended(run.history), *views.not_started(run.history)],
    )


@training.by_rank
def _script(run: Run) -> Verdict:
    lines = training.lineage_of(run)
    failures, doubts = list[views.Finding](), [*training.job_doubts(run, lines)]
    for item in lines.resumptions:
        known = [rank for rank in item.ranks if rank.steps and not rank.failure]
        failures += [views.finding(f"{item.attempt.name}: {rank.failure}") for rank in item.ranks if rank.failure]
        unclear = [rank for rank in item.ranks if not rank.steps and not rank.failure]
        doubts += [views.finding(f"{item.attempt.name}: {rank.doubt}") for rank in unclear]
        if known and not frozenset.intersection(*(rank.steps for rank in known)):
            steps = ", ".join(f"{rank.name} {max(rank.steps)}" for rank in known)
            failures.append(views.finding(f"{item.attempt.name}: ranks resumed from different steps: {steps}"))
    if not lines.resumptions:
        doubts.append(views.finding("no failover, no rank restored a state"))
    steps = ", ".join(str(item.step) for item in lines.resumptions)
    text = f"every rank resumed from step {steps}"
    if any(rank.how == "claim" for item in lines.resumptions for rank in item.ranks):
        text += training.claims.OWN_WORD
    return views.conclude("same-resume-step", text, failures=failures, doubts=doubts)


def _differing(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    chosen = views.chosen_checkpoints(run.history).get(gang.epoch)
    step = views.resume_steps(run.history).get(gang.epoch, 0)
    sha256 = chosen.data.sha256 if chosen else None
    for rank, event in gang.by_rank(events.RankRestored).items():
        restored = event.data
        if restored.step != step:
            text = f"attempt {gang.epoch}: rank {rank} restored step {restored.step}, chosen was {step}"
            yield views.finding(text, event, chosen)
        elif restored.sha256 != sha256:
            text = f"attempt {gang.epoch}: rank {rank} restored another file than the chosen one"
            yield views.finding(text, event, chosen)


def _wrong_commands(run: Run, gang: views.Gang) -> Iterator[views.Finding]:
    """Nodes that were started with another checkpoint than the chosen one."""
    chosen = views.chosen_checkpoints(run.history).get(gang.epoch)
    if chosen is None:
        return
    for start in gang.starts:
        resume = start.invoke.data.resume
        due = (chosen.data.step or 0, chosen.data.sha256)
        if ((resume.step or 0, resume.sha256) if resume else (0, None)) != due:
            yield views.finding(
                f"attempt {gang.epoch}: {start.node} was started with another checkpoint", start.invoke, chosen
            )


def _silent(gang: views.Gang) -> Iterator[views.Finding]:
    """Ranks without a report, in a gang that trained or finished."""
    missing = sorted(set(gang.ranks) - set(gang.by_rank(events.RankRestored)))
    if missing and (any(gang.of(events.RankStep)) or any(gang.of(events.RankFinished))):
        yield views.finding(f"attempt {gang.epoch}: rank {missing[0]} did not report what it restored", gang.began)
