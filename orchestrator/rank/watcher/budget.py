"""The watcher's share of a step's time, which controls how often it records states and moments.

A *moment* is what is cheap to know of a step: hashes of its batches, learning rates, fingerprints of random generators.
After a start, a save or a load all of it is recorded for ``WINDOW`` steps: those that a job does again after a failure.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection

from . import record, thinned_steps

#: The part of a step's time, on CPUs of its CPU time, that the watcher takes by its own account. Reached: 2 %; a quarter
#: of that remains for what it does not measure, such as the calls of its hooks.
SHARE = 0.015
#: The part of ``SHARE`` for states where the rest already takes all of it: on steps of few milliseconds.
LEAST = 0.1
#: Steps and costs whose medians count.
RECENT = 64
#: Steps after a start, a save or a load of which all is recorded.
WINDOW = 16
#: Up to this part of a step, a state with all its parts is recorded at each step of a window.
DENSE = 0.1
#: Where it costs more: at these steps of a window, the most telling ones first, as far as they take ``WINDOW_SHARE`` of its time.
SPARSE = (1, 16, 4, 2, 8)
WINDOW_SHARE = 0.05
#: What has a cost of its own: a state, one with all its parts, the hash of a batch, the fingerprints of generators.
KINDS = ("state", "full", "batch", "generators")
#: Of as many states and moments that are recorded outside of windows, one stays once its steps are old.
KEPT = 16
#: The longest interval.
LONGEST = 1 << 20


class Budget:
    """Chooses after 1, 4, 16, 64, ... steps; both intervals are powers of two, so that different ones share multiples."""

    def __init__(self) -> None:
        #: Steps between two states, and between two moments.
        self.every = self.moments_every = 1
        self._fixed = 0
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._elapsed: deque[float] = deque(maxlen=RECENT)
        self._costs: dict[str, deque[float]] = {kind: deque(maxlen=RECENT) for kind in KINDS}
        #: At the last choice: steps, and CPU time of the watcher without states and batches.
        self._n, self._rest_s = 0, 0.0
        self._chosen_s = 0.0
        #: The time of all steps of this process, as it counts for the share.
        self._total_s = 0.0
        self._next = 1
        self._window = 0
        #: Steps of the job before the first one of this process.
        self.offset = 0

    def fix(self, setting: str) -> None:
        """``setting``: the number of steps between two states, or ``auto``."""
        self._fixed = int(setting) if setting.isdigit() and int(setting) else 0
        self.every = self._fixed or 1

    def add_step(self, elapsed_s: float, cpu_s: float) -> None:
        """A step has taken this time, the watcher's own included. ``cpu_s``: its CPU time, or ``elapsed_s`` where a device computes.

        Moments, and all states of a window, may take a share of the time that passes, so that a step that waits has them;
        other states one of the CPU time.
        """
        self._elapsed.append(elapsed_s)
        self._steps.append(min(elapsed_s, cpu_s))
        self._total_s += self._steps[-1]

    def add_cost(self, kind: str, seconds: float) -> None:
        """One of ``KINDS`` was recorded."""
        self._costs[kind].append(seconds)
        self._chosen_s += seconds

    def begin_window(self, n: int) -> None:
        """Something was saved or loaded after n steps. What is reported of one save at several steps is one window."""
        if n - self._window > 1:
            self._window = n

    def affords_full(self, seconds: float) -> bool:
        """May a state be recorded in full because another rank saves, so long after the last one?"""
        return self._cost_s("full") <= DENSE * seconds

    def is_in_window(self, n: int) -> bool:
        """Is all recorded of the step that follows n steps of this process?"""
        return n - self._window <= WINDOW

    def is_state_due(self, n: int) -> bool:
        """Is the state after n steps of this process recorded?"""
        offset = n - self._window
        return (0 < offset <= WINDOW and offset in self._window_states()) or (n + self.offset) % self.every == 0

    def is_moment_due(self, n: int) -> bool:
        """Is the moment recorded of the step that follows n steps of this process?"""
        return n - self._window <= WINDOW or (n + self.offset) % self.moments_every == 0

    def quiet_until(self, n: int) -> int:
        """The next number of steps at which anything may be due outside of a window."""
        job = n + int(self.offset)
        due = (interval - job % interval for interval in (self.every, self.moments_every))
        return min(self._next, n + min(due), 1 << n.bit_length()) if not self.is_in_window(n) else n + 1

    def _window_states(self) -> Collection[int]:
        """The steps of a window after which states are recorded; the first, after which ranks differ that train on their own, always."""
        step_s, cost_s = statistics.median(self._elapsed or (0.0,)), self._cost_s("full")
        if cost_s <= DENSE * step_s:
            return range(1, WINDOW + 1)
        return SPARSE[: max(1, int(WINDOW * WINDOW_SHARE * step_s / cost_s))]

    def choose(self, n: int) -> dict[str, float | None] | None:
        """Choose anew where that is due, before the state after n steps; return the fields of an ``every`` line."""
        if n == 0:
            self._rest_s = record.cpu_s() - self._chosen_s
            return self._fields(None, None)
        if n < self._next or not self._steps:
            return None
        step_s, each_s = statistics.median(self._steps), self._each_step_s(n)
        self._next *= 4
        state_s = self._cost_s("state") or self._cost_s("full")
        moment_s = self._cost_s("batch") + self._cost_s("generators")
        least = thinned_steps.interval(n + int(self.offset)) // KEPT or 1
        self.moments_every = _interval(moment_s, SHARE * statistics.median(self._elapsed), least)
        spare_s = SHARE * step_s - each_s - moment_s / self.moments_every - self._debt_s() / (self._next - n)
        self.every = self._fixed or _interval(state_s, max(spare_s, LEAST * SHARE * step_s), least)
        return self._fields(step_s, each_s)

    def _debt_s(self) -> float:
        """Return what the watcher has used beyond its share: the first state, and the window after the start, cost more."""
        return max(0.0, record.cpu_s() - SHARE * self._total_s)

    def _each_step_s(self, n: int) -> float:
        """Return what the watcher does at every step, on average since the last choice."""
        rest_s, steps = record.cpu_s() - self._chosen_s, n - self._n
        used_s, self._rest_s, self._n = rest_s - self._rest_s, rest_s, n
        return max(0.0, used_s / steps)

    def _cost_s(self, kind: str) -> float:
        return statistics.median(self._costs[kind] or (0.0,))

    def _fields(self, step_s: float | None, each_s: float | None) -> dict[str, float | None]:
        times = {
            "cost_s": self._cost_s("state") or None,
            "batch_s": self._cost_s("batch") or None,
            "each_s": each_s,
            "step_s": step_s,
        }
        rounded = {name: None if value is None else round(value, 7) for name, value in times.items()}
        return {
            "every": self.every,
            "batches": self.moments_every,
            **rounded,
            "budget": SHARE,
            "fixed": bool(self._fixed),
        }


def _interval(cost_s: float, spare_s: float, least: int) -> int:
    """The smallest power of two, at least ``least``, for which ``cost_s`` fits into ``spare_s`` of a step."""
    interval = least
    while cost_s > spare_s * interval and interval < LONGEST:
        interval *= 2
    return interval


#: The budget of this process.
budget = Budget()
