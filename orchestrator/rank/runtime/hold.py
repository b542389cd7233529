"""Holds a rank at a named point until the agent releases it or the limit expires, so that a fault can act there."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from ...model import gang as gang_model
from ...model.events import HoldExpired, RankHeld, RankInside, RankReleased
from . import recorder

#: Seconds. The limit is counted in slices, so that the time for which the rank itself is stopped (SIGSTOP) does not count.
SLICE = 0.05


class Holds:
    def __init__(self, holds: Sequence[gang_model.Hold], rank: int, release_fd: int, notes: recorder.Notes) -> None:
        self._open = list(holds)
        self._rank, self._fd, self._notes = rank, release_fd, notes
        self._released: set[str] = set()
        self._partial = b""

    def reach(self, step: int, phase: str) -> None:
        """Stop at this point if a hold of this rank matches; report ``rank.inside`` if a hold of another rank matches."""
        for hold in [hold for hold in self._open if (hold.step, hold.phase) == (step, phase)]:
            self._open.remove(hold)
            if hold.rank == self._rank:
                self._wait_for_release(hold)
            else:
                self._notes.note(RankInside(rank=self._rank, step=step, phase=phase, hold=hold.id))

    def _wait_for_release(self, hold: gang_model.Hold) -> None:
        self._notes.note(RankHeld(rank=self._rank, step=hold.step, phase=hold.phase, hold=hold.id))
        begin, counted = time.monotonic(), 0.0
        while hold.id not in self._released and counted < hold.limit_s:
            counted += 0.0 if self._listen() else SLICE
        ended = RankReleased if hold.id in self._released else HoldExpired
        self._notes.note(ended(rank=self._rank, hold=hold.id, held_s=round(time.monotonic() - begin, 3)))

    def _listen(self) -> bool:
        """Wait one slice for release lines; return whether any arrived."""
        ready, _, _ = select.select([self._fd] if self._fd >= 0 else [], [], [], SLICE)
        data = os.read(self._fd, 4096) if ready else b""
        if ready and not data:
            self._fd = -1  # the agent has closed its end: only the limit ends the hold
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._released.update(line.decode() for line in lines)
        return bool(data)
