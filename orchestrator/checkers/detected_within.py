"""Every planned fault was detected within so many seconds of its beginning; the detector is named."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import FaultHealed, FaultInjected, GangStalled, RankExit, RecoveryDecided
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``seconds``: the limit. ``detector``: the only detector that counts, e.g. ``node.exit``; empty: any."""

    seconds: float = 2.0
    detector: str = ""


def check(run: Run, params: Params) -> Verdict:
    """From the return of the injecting call, or from its beginning where it was detected before that.

    Figures of different detectors are shown apart.
    """
    failovers = [one for one in views.failovers(run.trial, run.history) if one.detect_s is not None]
    injected = [trace for trace in views.traces(run.trial, run.history) if trace.first(FaultInjected)]
    doubts = [*views.unended(run.history)]
    doubts += [views.found(f"fault not proved: {t.plan.id}") for t in injected if not t.changed]
    if not injected:
        return views.conclude("detected-within", "", doubts=[views.found("no fault was injected"), *doubts])
    alone = [*_unrecovered(run, injected, failovers)]
    failures, close = [*_slow(failovers, params), *_slow_alone(alone, params)], [*_close(run, failovers, params)]
    if close:
        failures, doubts = [one for one in failures if one.seqs not in {near.seqs for near in close}], [*doubts, *close]
    if not any(views.unended(run.history)):
        failures += [*_missed(run, [trace for trace in injected if trace.changed], failovers)]
    return views.conclude(
        "detected-within", f"{_figures(failovers, alone)}, limit {params.seconds:g} s",
        failures=failures, doubts=doubts, evidence={"seconds": {f"epoch {one.epoch}": one.detect_s for one in failovers}},
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Alone:
    """A fault that was detected and from which nobody recovered."""

    fault: str
    detector: Event
    seconds: float


def _unrecovered(run: Run, injected: list[views.FaultTrace], failovers: list[views.Failover]) -> Iterator[_Alone]:
    """By the first detector that spoke of the fault's node, or of the whole gang, after it had begun."""
    times, claimed = views.clocks(run.history), {one.fault for one in failovers}
    for trace in injected:
        since = trace.acts[0].invoke.seq if trace.acts else 0
        told = (e for e in run.history.events if e.seq > since and views.abnormal(e))
        mine = (e for e in told if e.node == trace.node or e.kind in (GangStalled, RankExit))
        first = min(mine, key=times.at, default=None)
        struck = views.struck(trace, first, times) if first else None
        if struck and first and trace.plan.id not in claimed and not run.history.of(RecoveryDecided):
            yield _Alone(fault=trace.plan.id, detector=first, seconds=max(0.0, times.at(first) - times.at(struck)))


def _slow_alone(alone: list[_Alone], params: Params) -> Iterator[views.Finding]:
    for one in alone:
        if one.seconds > params.seconds:
            text = f"{one.fault} was detected by {one.detector.f} after {one.seconds:.3g} s, limit {params.seconds:g} s"
            yield views.found(text, one.detector)
        elif params.detector and one.detector.f != params.detector:
            yield views.found(f"{one.fault} was detected by {one.detector.f}, not by {params.detector}", one.detector)


def _slow(failovers: list[views.Failover], params: Params) -> Iterator[views.Finding]:
    for one in failovers:
        seqs = tuple(point.seq for point in one.milestones[:2])
        if one.detect_s is not None and one.detect_s > params.seconds:
            text = f"{one.fault} was detected by {one.detector} after {one.detect_s:.3g} s, limit {params.seconds:g} s"
            yield views.Finding(text=text, seqs=seqs)
        elif params.detector and one.detector != params.detector:
            yield views.Finding(text=f"{one.fault} was detected by {one.detector}, not by {params.detector}", seqs=seqs)


def _close(run: Run, failovers: list[views.Failover], params: Params) -> Iterator[views.Finding]:
    """Nearer to the limit than the clocks of the hosts were compared."""
    times, events = views.clocks(run.history), {event.seq: event for event in run.history.events}
    for one in failovers:
        points = [events[point.seq] for point in one.milestones[:2]]
        doubt = sum(known for known in map(times.doubt, points) if known < math.inf)
        if doubt and one.detect_s is not None and abs(one.detect_s - params.seconds) <= doubt:
            text = f"{one.detect_s:.3g} s, give or take {doubt:.2g}, is too near to the limit of {params.seconds:g} s"
            yield views.found(f"{one.fault} was detected by {one.detector} after {text}", *points)


def _missed(run: Run, injected: list[views.FaultTrace], failovers: list[views.Failover]) -> Iterator[views.Finding]:
    """A fault that no failover is due to and on whose node nobody remarked anything before it was healed."""
    claimed = {one.fault for one in failovers}
    for trace in injected:
        since = trace.acts[0].invoke.seq if trace.acts else 0
        healed = trace.first(FaultHealed)
        until = healed.seq if healed else len(run.history.events) + 1
        told = (e for e in run.history.events if since < e.seq < until and views.abnormal(e))
        if trace.plan.id not in claimed and not any(e.node == trace.node or e.kind is GangStalled for e in told):
            what = f"{trace.plan.id} ({trace.plan.fault} {trace.node})"
            yield views.found(f"{what} was never detected", trace.first(FaultInjected))


def _figures(failovers: list[views.Failover], alone: list[_Alone]) -> str:
    """The slowest detection of each detector."""
    slowest: dict[str, float] = {}
    told = [(one.detector, one.detect_s or 0.0) for one in failovers]
    for name, seconds in [*told, *((one.detector.f, one.seconds) for one in alone)]:
        slowest[name] = max(seconds, slowest.get(name, 0.0))
    return ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in sorted(slowest.items())) or "detected"
