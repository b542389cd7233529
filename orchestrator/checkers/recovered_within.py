"""After every loss all ranks did their first new step within so many seconds (TTR)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.events import RecoveryRefused
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``seconds``: the limit."""

    seconds: float = 10.0


def check(run: Run, params: Params) -> Verdict:
    """From the injection, or the detection of an unplanned loss, to the first step of the last rank."""
    failovers = views.failovers(run.trial, run.history)
    refused = run.history.of(RecoveryRefused)
    doubts = [*views.unended(run.history)]
    if not failovers and not refused:
        return views.conclude("recovered-within", "", doubts=[views.found("nothing was lost"), *doubts])
    counted = views.counts_steps(run.trial, run.history, tuple(run.files.steps()))
    failures = [*_slow(failovers, params, ended=counted and not doubts)]
    if not counted and failovers:
        doubts.append(views.found("the script reported no step, so the time to recover is not known"))
    failures += [views.found(f"no recovery: {event.data.reason}", event) for event in refused]
    worst = max((one.ttr_s for one in failovers if one.ttr_s is not None), default=0.0)
    many = f" at worst of {len(failovers)}" if len(failovers) > 1 else ""
    return views.conclude(
        "recovered-within", f"TTR {worst * 1000:.0f} ms{many}, limit {params.seconds:g} s",
        failures=failures, doubts=doubts, evidence={"ttr_s": {f"{one.epoch}": one.ttr_s for one in failovers}},
    )  # fmt: skip


def _slow(failovers: tuple[views.Failover, ...], params: Params, *, ended: bool) -> Iterator[views.Finding]:
    for index, one in enumerate(failovers):
        seqs = tuple(point.seq for point in one.milestones)
        overtaken = index + 1 < len(failovers)
        if one.ttr_s is None and ended and not overtaken:
            yield views.Finding(text=f"epoch {one.epoch} never got to its first step on every rank", seqs=seqs)
        elif one.ttr_s is not None and one.ttr_s > params.seconds:
            yield views.Finding(text=f"epoch {one.epoch}: TTR {one.ttr_s:.3g} s, limit {params.seconds:g} s", seqs=seqs)
