"""Silence and standstill, judged by the controller's clock; pure.

A node is suspect when its heart-beat count has not changed for ``suspect_s`` and lost after ``lost_s``; the caller
confirms a loss by observation. When the controller itself was late, nobody else is blamed for that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...model.trial import Liveness

#: The loop looks this often; being later than twice that is the controller's own fault.
LOOK_S = 0.25
#: A node that beats no more but whose process is seen running is given this many times ``lost_s``.
PATIENCE = 5.0
#: After a fault was healed a connection that it broke may take so long to be made again, beside the usual limit.
RECONNECT_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """The last change of a node's heart-beat: its incarnation, its count, and when it was seen."""

    incarnation: str
    count: int
    at: float
    suspected: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is known of all heart-beats, and when it was looked at last (seconds, CLOCK_MONOTONIC).

    ``healed``: nodes whose fault was healed and that were not heard since -> until when their silence belongs to the fault.
    """

    looked: float
    beats: Mapping[str, Beat] = field(default_factory=dict)
    healed: Mapping[str, float] = field(default_factory=dict)


def look(watch: Watch, now: float, counts: Mapping[str, tuple[str, int]]) -> tuple[Watch, float]:
    """The watch after a look at all counts, and how many seconds the controller itself was late."""
    late = max(0.0, now - watch.looked - 2 * LOOK_S)
    beats = {}
    for node, (incarnation, count) in counts.items():
        old = watch.beats.get(node)
        if old is None or (old.incarnation, old.count) != (incarnation, count):
            beats[node] = Beat(incarnation=incarnation, count=count, at=now)
        else:
            beats[node] = replace(old, at=old.at + late)
    same = {node for node, beat in beats.items() if node in watch.beats and beat.count == watch.beats[node].count}
    healed = {node: until for node, until in watch.healed.items() if node in same and now < until}
    return Watch(looked=now, beats=beats, healed=healed), late


def healed(watch: Watch, nodes: Iterable[str], now: float, limits: Liveness) -> Watch:
    """The watch after a fault on these nodes was healed: until they are heard again they have a time of grace."""
    until = now + limits.lost_s + RECONNECT_S
    return replace(watch, healed={**watch.healed, **dict.fromkeys(nodes, until)})


def silent_for(watch: Watch, node: str) -> float:
    """Seconds without a heart-beat."""
    beat = watch.beats.get(node)
    return watch.looked - beat.at if beat else 0.0


def suspects(watch: Watch, limits: Liveness) -> tuple[str, ...]:
    """Nodes that have become suspect and were not reported yet."""
    return tuple(
        n for n, beat in watch.beats.items() if not beat.suspected and silent_for(watch, n) >= limits.suspect_s
    )


def heard(before: Watch, after: Watch) -> tuple[str, ...]:
    """Nodes that were suspect, and perhaps given up, and whose heart-beat goes on."""
    return tuple(
        n for n, beat in after.beats.items() if n in before.beats and before.beats[n].suspected and not beat.suspected
    )


def mark(watch: Watch, node: str) -> Watch:
    return replace(watch, beats={**watch.beats, node: replace(watch.beats[node], suspected=True)})


def lost(watch: Watch, limits: Liveness) -> tuple[str, ...]:
    """Nodes silent for longer than the limit, outside of a time of grace: to be confirmed by observation."""
    return tuple(node for node in watch.beats if silent_for(watch, node) >= limits.lost_s and node not in watch.healed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The progress of a gang: when the last step was reported, and the recent seconds per step."""

    step: int = 0
    at: float | None = None
    per_step: tuple[float, ...] = ()


def advance(pace: Pace, step: int, now: float) -> Pace:
    """Progress to ``step`` was seen."""
    if pace.at is None or step <= pace.step:
        return replace(pace, step=step, at=now)
    each = (now - pace.at) / (step - pace.step)
    return Pace(step=step, at=now, per_step=(*pace.per_step[-19:], each))


def stalled(pace: Pace, now: float, limits: Liveness) -> float | None:
    """Seconds without progress when that is too long: more than ``stalled_s`` and ``step_factor`` median steps."""
    import statistics

    if pace.at is None:
        return None
    floor = limits.step_factor * statistics.median(pace.per_step) if pace.per_step else 0.0
    since = now - pace.at
    return since if since > max(limits.stalled_s, floor) else None
