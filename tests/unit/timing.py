"""How long schedules take on equal links, without torch: every port carries one message at a time in each direction.

A message of m bytes occupies the sender's port and the receiver's for alpha + m * beta seconds (Hockney's model, full duplex).
A rank's messages leave in the order of its schedule, when the receiver has posted them; a step ends when all that it receives is
there and all that it sends is away.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.rank.exchange import receive_schedule


@dataclass
class Rank:
    """``step``: the one that it is in; ``open``: what is left of it to receive and to send away."""

    schedule: Any
    #: Per peer the steps in which its messages are posted.
    posted: dict[int, deque[int]] = field(default_factory=dict)
    step: int = -1
    open: int = 0
    early: dict[int, int] = field(default_factory=dict)
    queue: deque[tuple[float, int, float]] = field(default_factory=deque)


class Fabric:
    """Plays the schedules of all ranks."""

    def __init__(
        self, schedules: Sequence[Any], size: Callable[[int], float], alpha: float, beta: float, token: float
    ) -> None:
        self._ranks = [Rank(schedule, _posted(schedule)) for schedule in schedules]
        self._size, self._alpha, self._beta, self._token = size, alpha, beta, token
        self._out, self._in = [0.0] * len(schedules), [0.0] * len(schedules)
        self._ends: list[tuple[float, int, int]] = []
        self._now = 0.0

    def play(self) -> float:
        """Seconds until the last rank has ended."""
        for number in range(len(self._ranks)):
            self._enter(number)
        while True:
            sender, at = self._next()
            if self._ends and (sender is None or self._ends[0][0] <= at):
                self._now, source, target = heapq.heappop(self._ends)
                self._arrived(source, target)
            elif sender is not None:
                self._leave(sender, at)
            else:
                break
        assert all(rank.step == len(rank.schedule) for rank in self._ranks), "somebody waits for ever"
        return self._now

    def _next(self) -> tuple[int | None, float]:
        """Whose next message can leave first, and when."""
        result: tuple[int | None, float] = (None, 0.0)
        for number, rank in enumerate(self._ranks):
            if rank.queue:
                ready, target, _ = rank.queue[0]
                if self._ranks[target].posted[number][0] > self._ranks[target].step:
                    continue
                at = max(ready, self._now, self._out[number], self._in[target])
                if result[0] is None or at < result[1]:
                    result = (number, at)
        return result

    def _leave(self, number: int, at: float) -> None:
        _, target, size = self._ranks[number].queue.popleft()
        self._ranks[target].posted[number].popleft()
        end = at + self._alpha + size * self._beta
        self._out[number] = self._in[target] = end
        heapq.heappush(self._ends, (end, number, target))

    def _arrived(self, source: int, target: int) -> None:
        self._closed(source)
        receiver = self._ranks[target]
        step = receiver.schedule[receiver.step] if receiver.step < len(receiver.schedule) else None
        if step and receiver.early.get(source, 0) < 0:
            receiver.early[source] += 1
            self._closed(target)
        else:
            receiver.early[source] = receiver.early.get(source, 0) + 1

    def _closed(self, number: int) -> None:
        self._ranks[number].open -= 1
        if self._ranks[number].open == 0:
            self._enter(number)

    def _enter(self, number: int) -> None:
        """Go on with the next step; receives that are in already are taken off at once. ``early`` < 0: so many are awaited."""
        rank = self._ranks[number]
        while rank.open == 0:
            rank.step += 1
            if rank.step == len(rank.schedule):
                return
            step = rank.schedule[rank.step]
            for send in step.sends:
                size = sum(self._size(chunk) for chunk in send.chunks) if send.chunks else self._token
                rank.queue.append((self._now, send.peer, size))
            rank.open = len(step.sends)
            for recv in step.recvs:
                remote = rank.early.get(recv.peer, 0)
                rank.early[recv.peer] = remote - 1
                rank.open += remote <= 0


def _posted(schedule: Any) -> dict[int, deque[int]]:
    result: dict[int, deque[int]] = {}
    for at, places in enumerate(receive_schedule.plan(schedule)):
        for index, number in places:
            result.setdefault(schedule[index].recvs[number].peer, deque()).append(at)
    return result


def seconds(
    schedules: Sequence[Any], size: Callable[[int], float], alpha: float, beta: float, token: float = 4
) -> float:
    """The time of all schedules together; ``size(chunk)`` in bytes."""
    return Fabric(schedules, size, alpha, beta, token).play()
