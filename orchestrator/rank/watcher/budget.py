"""The watcher's share of a step's time, which controls how often it records states and hashes batches.

What it does at every step is measured first; what that leaves of ``SHARE`` is for states and for the hashes of batches.
"""

from __future__ import annotations

import statistics
from collections import deque
from typing import Any

from . import record

#: The part of a step's time, on CPUs of its CPU time, that the watcher takes by its own account. Reached: 2 %; a quarter
#: of that remains for what it does not measure, such as the calls of its hooks.
SHARE = 0.015
#: The part of ``SHARE`` for states and batches where the rest already takes all of it: on steps of few milliseconds.
LEAST = 0.1
#: Steps, states and batches whose medians count.
RECENT = 64
#: Steps after a start, a save or a load whose batches are always hashed: those that a resumed job does again.
ALWAYS = 16
#: What has a cost of its own: a state, one with all its parts (always recorded), the hash of a batch.
KINDS = ("state", "full", "batch")
#: The longest interval.
LONGEST = 1 << 20


class Budget:
    """Chooses after 1, 4, 16, 64, ... steps; both intervals are powers of two, so that different ones share multiples."""

    def __init__(self) -> None:
        #: Steps between two states, and between two steps whose batches are hashed.
        self.every = self.batches_every = 1
        self._fixed = 0
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._costs: dict[str, deque[float]] = {kind: deque(maxlen=RECENT) for kind in KINDS}
        #: At the last choice: steps, and CPU time of the watcher without states and batches.
        self._n, self._rest_s = 0, 0.0
        self._chosen_s = 0.0
        self._next = 1
        self._always_until = ALWAYS
        #: Steps of the job before the first one of this process.
        self.offset = 0

    def fix(self, setting: str) -> None:
        """``setting``: the number of steps between two states, or ``auto``."""
        self._fixed = int(setting) if setting.isdigit() and int(setting) else 0
        self.every = self._fixed or 1

    def add_step(self, seconds: float) -> None:
        """A step has taken this time, the watcher's own included."""
        self._steps.append(seconds)

    def add_cost(self, kind: str, seconds: float) -> None:
        """A ``state`` was recorded, or a ``batch`` hashed."""
        self._costs[kind].append(seconds)
        self._chosen_s += seconds

    def hash_next(self, n: int) -> None:
        """Something was saved or loaded after n steps: hash the batches that follow."""
        self._always_until = n + ALWAYS

    def is_state_due(self, n: int) -> bool:
        """Is the state after n steps of this process recorded?"""
        return (n + self.offset) % self.every == 0

    def is_batch_due(self, n: int) -> bool:
        """Are the batches hashed of the step that follows n steps of this process?"""
        return n < self._always_until or (n + self.offset) % self.batches_every == 0

    def choose(self, n: int) -> dict[str, Any] | None:
        """Before the state after n steps: choose anew where that is due; the fields of an ``every`` line."""
        if n == 0:
            self._rest_s = record.cpu_s() - self._chosen_s
            return self._fields(None, None)
        if n < self._next or not self._steps:
            return None
        step_s, each_s = statistics.median(self._steps), self._each_step_s(n)
        self._next *= 4
        spare_s = max(SHARE * step_s - each_s, LEAST * SHARE * step_s)
        state_s, batch_s = self._cost_s("state"), self._cost_s("batch")
        self.batches_every = _interval(batch_s, spare_s / 2)
        self.every = self._fixed or _interval(state_s, spare_s - batch_s / self.batches_every)
        return self._fields(step_s, each_s)

    def _each_step_s(self, n: int) -> float:
        """What the watcher does at every step, on average since the last choice."""
        rest_s, steps = record.cpu_s() - self._chosen_s, n - self._n
        used_s, self._rest_s, self._n = rest_s - self._rest_s, rest_s, n
        return max(0.0, used_s / steps)

    def _cost_s(self, kind: str) -> float:
        return statistics.median(self._costs[kind] or (0.0,))

    def _fields(self, step_s: float | None, each_s: float | None) -> dict[str, Any]:
        times = {
            "cost_s": self._cost_s("state") or None,
            "batch_s": self._cost_s("batch") or None,
            "each_s": each_s,
            "step_s": step_s,
        }
        rounded = {name: None if value is None else round(value, 7) for name, value in times.items()}
        return {
            "every": self.every,
            "batches": self.batches_every,
            **rounded,
            "budget": SHARE,
            "fixed": bool(self._fixed),
        }


def _interval(cost_s: float, spare_s: float) -> int:
    """The smallest power of two for which ``cost_s`` fits into ``spare_s`` of a step."""
    interval = 1
    while cost_s > spare_s * interval and interval < LONGEST:
        interval *= 2
    return interval


#: The budget of this process.
budget = Budget()
