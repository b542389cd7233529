"""When an event happened, and which of two came first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..model.event import Event, History
from ..model.events import RunBegin

#: What is larger is no figure of a run.
LARGEST = 10**18
#: By how much two clocks may drift apart in the time since they were compared, as a part of that time.
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
        """Seconds since the run began. What was written by a clock that nobody compared is placed by its arrival."""
        mono = self._mono(event)
        return event.t if mono is None else self.start + mono - self.mono

    def doubt(self, event: Event) -> float:
        """By how many seconds ``at`` may be wrong; infinite where only the arrival is known."""
        if self.boot and event.at.boot == self.boot:
            return 0.0
        known = self.hosts.get(event.at.boot)
        return known[1] + DRIFT * abs(self.at(event) - self.start) if known else math.inf

    def before(self, one: Event, other: Event) -> bool | None:
        """Whether ``one`` happened before ``other``; None where nobody can know.

        By CLOCK_MONOTONIC on one boot; on two, where they lie further apart than the clocks are uncertain. Else only what
        had arrived when the controller wrote something is known to have happened before that.
        """
        if one.at.boot and one.at.boot == other.at.boot:
            return one.at.mono < other.at.mono
        apart = self.at(other) - self.at(one)
        if abs(apart) > self.doubt(one) + self.doubt(other):
            return apart > 0
        first, last = (one, other) if one.seq < other.seq else (other, one)
        return first is one if last.source.writer == "ctl" else None

    def _mono(self, event: Event) -> float | None:
        if self.boot and event.at.boot == self.boot:
            return event.at.mono
        known = self.hosts.get(event.at.boot)
        return event.at.mono + known[0] if known else None


def clocks(history: History) -> Clocks:
    """As the run began."""
    begin = history.first(RunBegin) or next(iter(history.events), None)
    if begin is None:
        return Clocks()
    hosts = {}
    for boot, measured in ((begin.data.clocks if begin.kind is RunBegin else None) or {}).items():
        if measured.offset_s is not None and measured.uncertainty_s is not None:
            hosts[boot] = (measured.offset_s, measured.uncertainty_s)
    return Clocks(boot=begin.at.boot, mono=begin.at.mono, start=begin.t, hosts=hosts)


def clock(history: History) -> Callable[[Event], float]:
    """Event -> seconds since the run began, by the controller's clock."""
    return clocks(history).at


def number(value: Any) -> float | None:
    """A figure written as a number or as ``float.hex``; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return float(value)
    try:
        return float.fromhex(value)
    except (TypeError, ValueError, OverflowError):
        return None


def whole(value: Any) -> int | None:
    """An integer, also one that was a JSON key; None for anything else."""
    try:
        number = None if isinstance(value, bool) or value is None else int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) <= LARGEST else None


def text(value: Any) -> str | None:
    """A string; None for anything else."""
    return value if isinstance(value, str) else None


def names(value: Any) -> tuple[str, ...]:
    """The strings of a list."""
    return tuple(item for item in listing(value) if isinstance(item, str))


def mapping(value: Any) -> Mapping[str, Any]:
    """A mapping, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def listing(value: Any) -> tuple[Any, ...]:
    """The items of a list, or none for anything else."""
    return tuple(value) if isinstance(value, list | tuple) else ()
