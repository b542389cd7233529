"""Ranks that hold the same parameters have the same weights after every restore and step, and the same optimizer state at the end."""

from __future__ import annotations

from .. import views
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict
from ..views import training

SKIPS = True
NAME = "replicas-identical"


def check(run: Run, params: Params) -> Verdict:
    """Judge by digests of the weights after steps, and of own workloads by SHA-256 of each tensor at the end."""
    return judged(run)


def judged(run: Run, *, is_start: bool = False) -> Verdict:
    """``is_start``: only by the weights that ranks begin with."""
    if training.uneven_ranks(run):
        return Verdict(check=NAME, outcome="skipped", text="not applicable: ranks do not step together")
    lines = training.lineage_of(run)
    is_corrupted = any(fault.fault == "flip-bit" for fault in run.trial.faults)
    result = training.replicas.compare(lines.attempts, is_corrupted=is_corrupted, is_start=is_start)
    doubts = [*training.job_doubts(run, lines), *map(views.finding, (*result.undecided, *result.undigested))]
    ranks = sum(map(len, result.groups))
    if ranks > 1 and not result.compared:
        doubts.append(views.finding("no state has digests of two ranks"))
    text = (
        f"{ranks} replicas identical at {result.compared} state{'s' * (result.compared != 1)}"
        if ranks
        else "no two ranks are replicas of each other"
    )
    if ranks > 1 and not (result.after_steps or is_start):
        text += ", at the beginning and at the end; steps have no digest"
    if result.independent and not (ranks or result.differences or doubts):
        return Verdict(check=NAME, outcome="skipped", text=f"not applicable: {result.independent[0]}")
    return views.conclude(NAME, text, failures=result.differences, doubts=doubts)
