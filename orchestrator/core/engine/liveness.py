"""Liveness: detect silent nodes and stalled gangs by the controller's clock.

A node is suspect when its heartbeat count has not changed for ``suspect_s``, and lost after ``lost_s``; the caller
confirms a loss by observation. Time in which the controller itself was late does not count as silence or standstill.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.events import GangQuiet
from ...model.frozen import dataclass, field, replace
from ...model.trial import SCRIPT_STALLED_S, Liveness
from ...views import json_values

#: The interval at which the loop checks; if it is later than twice this time, the controller itself was late.
CHECK_INTERVAL_S = 0.25
#: A silent node whose process is observed running is lost after this many times ``lost_s``.
PATIENCE = 5.0
#: Ranks of a script that have not all joined after so many seconds are inspected.
JOINED_S = 30.0
#: After a fault is healed, the additional time in which broken connections are established again.
RECONNECT_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The last change of a node's heartbeat: its incarnation, its count, and when it was observed."""

    incarnation: str
    count: int
    at: float
    suspected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """All heartbeats, and the time of the last check (seconds, CLOCK_MONOTONIC).

    ``healed``: nodes without a heartbeat since their fault was healed -> the time until which the fault explains it.
    """

    checked_at: float
    beats: Mapping[str, Beat] = field(default_factory=dict)
    healed: Mapping[str, float] = field(default_factory=dict)


def check(watch: Watch, now: float, counts: Mapping[str, tuple[str, int]]) -> tuple[Watch, float]:
    """The watch after checking all counts, and the seconds by which the controller itself was late."""
    late = max(0.0, now - watch.checked_at - 2 * CHECK_INTERVAL_S)
    beats = {}
    for node, (incarnation, count) in counts.items():
        old = watch.beats.get(node)
        if old is None or (old.incarnation, old.count) != (incarnation, count):
            beats[node] = Beat(incarnation=incarnation, count=count, at=now)
        else:
            beats[node] = replace(old, at=old.at + late)
    same = {node for node, beat in beats.items() if node in watch.beats and beat.count == watch.beats[node].count}
    healed = {node: until for node, until in watch.healed.items() if node in same and now < until}
    return Watch(checked_at=now, beats=beats, healed=healed), late


def healed(watch: Watch, nodes: Iterable[str], now: float, limits: Liveness) -> Watch:
    """The watch after a fault on these nodes was healed: they have a grace period until their next heartbeat."""
    until = now + limits.lost_s + RECONNECT_S
    return replace(watch, healed={**watch.healed, **dict.fromkeys(nodes, until)})


def silent_for(watch: Watch, node: str) -> float:
    """Seconds without a heartbeat."""
    beat = watch.beats.get(node)
    return watch.checked_at - beat.at if beat else 0.0


def suspects(watch: Watch, limits: Liveness) -> tuple[str, ...]:
    """Nodes that have become suspect and have not been reported yet."""
    return tuple(
        n for n, beat in watch.beats.items() if not beat.suspected and silent_for(watch, n) >= limits.suspect_s
    )


def heard(before: Watch, after: Watch) -> tuple[str, ...]:
    """Nodes that were suspect, or lost, and whose heartbeat continues."""
    return tuple(
        n for n, beat in after.beats.items() if n in before.beats and before.beats[n].suspected and not beat.suspected
    )


def with_suspect(watch: Watch, node: str) -> Watch:
    """The watch with ``node`` reported as suspect."""
    return replace(watch, beats={**watch.beats, node: replace(watch.beats[node], suspected=True)})


def lost(watch: Watch, limits: Liveness) -> tuple[str, ...]:
    """Nodes silent for longer than the limit, without a grace period; the caller confirms them by observation."""
    return tuple(node for node in watch.beats if silent_for(watch, node) >= limits.lost_s and node not in watch.healed)


#: After an inspection that found ranks at work, the time until the next one is this many times longer.
BACKOFF = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The progress of a gang: when the last step was reported, and the recent seconds per step.

    ``pause_s``: after that report the rank may make steps for so many seconds without one.

    ``started_at``: when the ranks of the last node started. ``left``: ranks that have ended while others run, and ``left_at``:
    when the last of them did. ``factor``: of the limit.
    """

    step: int = 0
    at: float | None = None
    pause_s: float = 0.0
    started_at: float | None = None
    per_step: tuple[float, ...] = ()
    left: frozenset[int] = frozenset()
    left_at: float | None = None
    factor: float = 1.0


def advance(pace: Pace, step: int, now: float, pause_s: float = 0.0) -> Pace:
    """The pace after progress to ``step``."""
    if pace.at is None or step <= pace.step:
        return replace(pace, step=step, at=now, pause_s=pause_s)
    step_s = (now - pace.at) / (step - pace.step)
    return replace(pace, step=step, at=now, pause_s=pause_s, per_step=(*pace.per_step[-19:], step_s), factor=1.0)


def released(pace: Pace, now: float) -> Pace:
    """The pace after a hold: from now on the gang is expected to complete steps, whatever the fault did to the held rank."""
    return replace(pace, at=now, pause_s=0.0)


def started(pace: Pace, now: float) -> Pace:
    return replace(pace, started_at=now)


def with_exit(pace: Pace, rank: int, now: float) -> Pace:
    """The pace after a rank left with exit code 0."""
    return replace(pace, left=pace.left | {rank}, left_at=now)


def delayed(pace: Pace, late_s: float, now: float) -> Pace:
    """The pace after the controller itself was late by ``late_s``: during that time it could not observe a step."""
    if not late_s:
        return pace
    at, started_at, left_at = (
        None if time is None else min(time + late_s, now) for time in (pace.at, pace.started_at, pace.left_at)
    )
    return replace(pace, at=at, started_at=started_at, left_at=left_at)


def quiet(pace: Pace, now: float, limits: Liveness, timeout_s: float | None) -> GangQuiet | None:
    """The standstill of a script: no step since the last one, or ranks that left while others stay; else None.

    ``timeout_s``: the limit that the user has set, which is strict. Only this limit counts before the first sign of a step:
    a script may download its data for a long time, or have no steps.
    """
    limit = timeout_s or pace.factor * max(SCRIPT_STALLED_S, limits.stalled_s, _floor(pace, limits))
    started_at = pace.started_at if timeout_s else None
    last = None if pace.at is None else pace.at + pace.pause_s
    newest = max((at for at in (last, pace.left_at, started_at) if at is not None), default=now)
    since = now - newest
    if since <= limit:
        return None
    left = tuple(sorted(pace.left)) or None
    return GangQuiet(
        since_s=round(since, 3), limit_s=round(limit, 3), is_strict=True if timeout_s is not None else None, left=left
    )


def unjoined(pace: Pace, now: float) -> GangQuiet | None:
    """The standstill of ranks that have started, of which none has completed a step or left, and not all have joined; else None."""
    if pace.started_at is None or pace.at is not None or pace.left_at is not None:
        return None
    since, limit = now - pace.started_at, pace.factor * JOINED_S
    return GangQuiet(since_s=round(since, 3), limit_s=limit, is_joining=True) if since > limit else None


def inspected(pace: Pace) -> Pace:
    """The pace after an inspection: the next one follows after a longer time."""
    return replace(pace, factor=BACKOFF * pace.factor)


def stalled(pace: Pace, now: float, limits: Liveness) -> float | None:
    """Seconds without progress, if more than ``stalled_s`` and ``step_factor`` median steps; else None."""
    if pace.at is None:
        return None
    since = now - pace.at
    return since if since > max(limits.stalled_s, _floor(pace, limits)) else None


def _floor(pace: Pace, limits: Liveness) -> float:
    return limits.step_factor * json_values.median(pace.per_step) if pace.per_step else 0.0
