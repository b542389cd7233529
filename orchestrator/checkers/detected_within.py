"""Every planned fault was detected within a time limit; the verdict names the detector."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .. import views
from ..model import events
from ..model.event import Event
from ..model.frozen import dataclass
from ..model.run import Run
from ..model.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``seconds``: the limit. ``detector``: the only detector that counts, e.g. ``node.exit``; empty: any."""

    seconds: float = 2.0
    detector: str = ""


def check(run: Run, params: Params) -> Verdict:
    """Measure the time from the return of the injecting call, or from its beginning where the fault was detected before it returned.

    Each detector has its own figure.
    """
    failovers = [failover for failover in views.failovers(run.trial, run.history) if failover.detect_s is not None]
    injected = [trace for trace in views.traces(run.trial, run.history) if trace.first(events.FaultInjected)]
    doubts = [*views.not_ended(run.history)]
    doubts += [views.finding(f"fault not proved: {t.plan.id}") for t in injected if not t.is_proved]
    if not injected:
        return views.conclude("detected-within", "", doubts=[views.finding("no fault was injected"), *doubts])
    unrecovered = [*_unrecovered(run, injected, failovers)]
    failures, close = (
        [*_slow(failovers, params), *_slow_unrecovered(unrecovered, params)],
        [*_close(run, failovers, params)],
    )
    if close:
        seqs = {finding.seqs for finding in close}
        failures, doubts = [finding for finding in failures if finding.seqs not in seqs], [*doubts, *close]
    if not any(views.not_ended(run.history)):
        failures += [*_missed(run, [trace for trace in injected if trace.is_proved], failovers)]
    return views.conclude(
        "detected-within", f"{_figures(failovers, unrecovered)}, limit {params.seconds:g} s",
        failures=failures, doubts=doubts, evidence={"seconds": {f"attempt {failover.epoch}": failover.detect_s for failover in failovers}},
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _Detection:
    """A fault that was detected and that no recovery followed."""

    fault: str
    detector: Event
    seconds: float


def _unrecovered(run: Run, injected: list[views.FaultTrace], failovers: list[views.Failover]) -> Iterator[_Detection]:
    """Yield the first detector event about the fault's node, or about the whole gang, after the fault was ordered."""
    times, claimed = views.clocks(run.history), {failover.fault for failover in failovers}
    for trace in injected:
        since = trace.acts[0].invoke.seq if trace.acts else 0
        detections = (event for event in run.history.events if event.seq > since and views.is_abnormal(event))
        own = (e for e in detections if e.node == trace.node or e.kind in (events.GangStalled, events.RankExit))
        first = min(own, key=times.at, default=None)
        start = views.fault_start(trace, first, times) if first else None
        if start and first and trace.plan.id not in claimed and not run.history.of(events.RecoveryDecided):
            seconds = max(0.0, times.at(first) - times.at(start))
            yield _Detection(fault=trace.plan.id, detector=first, seconds=seconds)


def _slow_unrecovered(unrecovered: list[_Detection], params: Params) -> Iterator[views.Finding]:
    for detection in unrecovered:
        fault, detector = detection.fault, detection.detector
        if detection.seconds > params.seconds:
            text = f"{fault} was detected by {detector.f} after {detection.seconds:.3g} s, limit {params.seconds:g} s"
            yield views.finding(text, detector)
        elif params.detector and detector.f != params.detector:
            yield views.finding(f"{fault} was detected by {detector.f}, not by {params.detector}", detector)


def _slow(failovers: list[views.Failover], params: Params) -> Iterator[views.Finding]:
    for failover in failovers:
        seqs = tuple(point.seq for point in failover.milestones[:2])
        if failover.detect_s is not None and failover.detect_s > params.seconds:
            text = f"{failover.fault} was detected by {failover.detector} after {failover.detect_s:.3g} s, limit {params.seconds:g} s"
            yield views.Finding(text=text, seqs=seqs)
        elif params.detector and failover.detector != params.detector:
            yield views.Finding(
                text=f"{failover.fault} was detected by {failover.detector}, not by {params.detector}", seqs=seqs
            )


def _close(run: Run, failovers: list[views.Failover], params: Params) -> Iterator[views.Finding]:
    """Detections that are nearer to the limit than the clocks of the hosts are certain."""
    times, by_seq = views.clocks(run.history), {event.seq: event for event in run.history.events}
    for failover in failovers:
        points = [by_seq[point.seq] for point in failover.milestones[:2]]
        uncertainty_s = sum(known for known in map(times.uncertainty_s, points) if known < math.inf)
        if uncertainty_s and failover.detect_s is not None and abs(failover.detect_s - params.seconds) <= uncertainty_s:
            text = f"{failover.detect_s:.3g} s, give or take {uncertainty_s:.2g}, is too near to the limit of {params.seconds:g} s"
            yield views.finding(f"{failover.fault} was detected by {failover.detector} after {text}", *points)


def _missed(run: Run, injected: list[views.FaultTrace], failovers: list[views.Failover]) -> Iterator[views.Finding]:
    """A fault that caused no failover and that no detector event about its node followed before it was healed."""
    claimed = {failover.fault for failover in failovers}
    for trace in injected:
        since = trace.acts[0].invoke.seq if trace.acts else 0
        healed = trace.first(events.FaultHealed)
        until = healed.seq if healed else len(run.history.events) + 1
        detections = (e for e in run.history.events if since < e.seq < until and views.is_abnormal(e))
        if trace.plan.id not in claimed and not any(
            e.node == trace.node or e.kind is events.GangStalled for e in detections
        ):
            what = f"{trace.plan.id} ({trace.plan.fault} {trace.node})"
            yield views.finding(f"{what} was never detected", trace.first(events.FaultInjected))


def _figures(failovers: list[views.Failover], unrecovered: list[_Detection]) -> str:
    slowest: dict[str, float] = {}
    detections = [(failover.detector, failover.detect_s or 0.0) for failover in failovers]
    for name, seconds in [*detections, *((item.detector.f, item.seconds) for item in unrecovered)]:
        slowest[name] = max(seconds, slowest.get(name, 0.0))
    return ", ".join(f"{name} {seconds * 1000:.1f} ms" for name, seconds in sorted(slowest.items())) or "detected"
