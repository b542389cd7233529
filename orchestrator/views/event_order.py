"""Tells when an event happened, and which of two events came first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..model import events
from ..model.event import Event, History
from ..model.frozen import dataclass, field

#: By how much two clocks may drift apart since they were compared, as a part of that time.
DRIFT = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Clocks:
    """The clocks of a run: the controller's own, and those of other boots as preflight compared them with it.

    ``hosts``: boot id -> (offset, uncertainty) in seconds: its CLOCK_MONOTONIC plus the offset is the controller's.
    """

    boot: str = ""
    mono: float = 0.0
    start: float = 0.0
    hosts: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def at(self, event: Event) -> float:
        """Seconds since the run began; by arrival where the writer's clock was not compared."""
        mono = self._mono(event)
        return event.t if mono is None else self.start + mono - self.mono

    def uncertainty_s(self, event: Event) -> float:
        """Return by how many seconds ``at`` may be wrong; infinite where only the arrival is known."""
        if self.boot and event.at.boot == self.boot:
            return 0.0
        known = self.hosts.get(event.at.boot)
        return known[1] + DRIFT * abs(self.at(event) - self.start) if known else math.inf

    def before(self, event: Event, other: Event) -> bool | None:
        """Return whether ``event`` happened before ``other``; None where no clock tells.

        On one boot CLOCK_MONOTONIC decides. On two boots it decides if the events lie further apart than the clocks are
        uncertain. Otherwise an event precedes the controller's own events that follow its arrival.
        """
        if event.at.boot and event.at.boot == other.at.boot:
            return event.at.mono < other.at.mono
        difference = self.at(other) - self.at(event)
        if abs(difference) > self.uncertainty_s(event) + self.uncertainty_s(other):
            return difference > 0
        first, last = (event, other) if event.seq < other.seq else (other, event)
        return first is event if last.source.writer == "ctl" else None

    def offset(self, boot: str) -> float | None:
        """Return what turns a CLOCK_MONOTONIC of this boot into seconds since the run began; None where it was not compared."""
        own = 0.0 if self.boot and boot == self.boot else self.hosts.get(boot, (None, None))[0]
        return None if own is None else own + self.start - self.mono

    def _mono(self, event: Event) -> float | None:
        if self.boot and event.at.boot == self.boot:
            return event.at.mono
        known = self.hosts.get(event.at.boot)
        return event.at.mono + known[0] if known else None


def clocks(history: History) -> Clocks:
    begin = history.first(events.RunBegin)
    first = begin or next(iter(history.events), None)
    if first is None:
        return Clocks()
    measured = (begin.data.clocks or {}) if begin else {}
    hosts = {
        boot: (clock.offset_s, clock.uncertainty_s)
        for boot, clock in measured.items()
        if clock.offset_s is not None and clock.uncertainty_s is not None
    }
    return Clocks(boot=first.at.boot, mono=first.at.mono, start=first.t, hosts=hosts)


def clock(history: History) -> Callable[[Event], float]:
    """Event -> seconds since the run began, by the controller's clock."""
    return clocks(history).at
