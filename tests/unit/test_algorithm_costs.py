"""What algorithms say that they cost, against their schedules played on equal links."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.model import algorithm
from orchestrator.model.schedule import Cost
from orchestrator.rank.exchange import receive_schedule
from tests.contract import algorithms

#: (seconds per message, seconds per byte): start-ups count, bytes count, both.
LINKS = ((1e-3, 0.0), (0.0, 1e-6), (1e-3, 1e-8))
#: Simulated / cost where the two are not equal: (least, most).
BOUNDS = {
    # No power of two: a rank that took in nobody begins at once, and its message holds up the one that is folded in.
    ("halving-doubling", "all-reduce"): (1.0, 1.25),
    # Ranks with a small branch begin the ring before the scatter is over.
    ("scatter-ring-all-gather", "broadcast"): (0.99, 1.15),
    # In slots, of which a tree that is no full one leaves some unused. 16 ranks need one more to turn from the sum to the broadcast.
    ("double-binary-tree", "all-reduce"): (0.8, 1.08),
}
#: Without acknowledgement the cost says what queued messages that share a link do; here they follow one another.
UNACKNOWLEDGED = (0.0, 1.0)


def size(operation: str, n: float, world: int, chunks: int) -> float:
    """Bytes of a chunk."""
    return {"send-recv": n, "all-to-all": n / world}.get(operation, n / max(chunks, 1))


def played(chosen: algorithm.Chosen, operation: str, world: int, n: float, alpha: float, beta: float) -> float:
    chunk = size(operation, n, world, chosen.chunks(operation, world))
    schedules = algorithms.schedules(chosen, operation, world)
    return seconds(schedules, lambda _: chunk, alpha, beta, token=0.0)


@pytest.mark.parametrize(
    ("chosen", "operation"), algorithms.cases(algorithms.defaults() + algorithms.variants()), ids=algorithms.named
)
def test_the_cost_is_what_the_schedule_takes(chosen: algorithm.Chosen, operation: str) -> None:
    least, most = BOUNDS.get((chosen.name, operation), (1.0, 1.0))
    if not getattr(chosen.params, "acknowledged", True) and operation in ("broadcast", "scatter", "all-reduce"):
        least, most = UNACKNOWLEDGED
    for world in algorithms.worlds(chosen, operation, 16, least=2):
        for alpha, beta in LINKS:
            cost = chosen.cost(operation, world).seconds(1e6, alpha, beta)
            took = played(chosen, operation, world, 1e6, alpha, beta)
            assert (least - 1e-9) * cost <= took <= (most + 1e-9) * cost, f"{world} ranks, alpha {alpha}, beta {beta}"


#: p -> (rounds, volume) by the books, for powers of two; d = log2 p. Tokens between rounds come on top, as the files say.
BOOKS: Mapping[tuple[str, str], Callable[[int, int], tuple[float, float]]] = {
    ("ring", "all-reduce"): lambda p, d: (2 * (p - 1), 2 * (p - 1) / p),
    ("ring", "all-gather"): lambda p, d: (p - 1, (p - 1) / p),
    ("ring", "reduce-scatter"): lambda p, d: (p - 1, (p - 1) / p),
    ("bidirectional-ring", "all-reduce"): lambda p, d: (2 * (p - 1), 2 * (p - 1) / p),
    ("halving-doubling", "all-reduce"): lambda p, d: (2 * d, 2 * (p - 1) / p),
    ("halving-doubling", "reduce-scatter"): lambda p, d: (d, (p - 1) / p),
    ("recursive-doubling", "all-reduce"): lambda p, d: (d, d),
    ("recursive-doubling", "all-gather"): lambda p, d: (d, (p - 1) / p),
    ("recursive-doubling", "barrier"): lambda p, d: (d, 0),
    ("star", "all-reduce"): lambda p, d: (2 * (p - 1), 2 * (p - 1)),
    ("binomial-tree", "reduce"): lambda p, d: (d, d),
    ("binomial-tree", "gather"): lambda p, d: (d, (p - 1) / p),
    ("binomial-tree", "broadcast"): lambda p, d: (d + (d - 1), d),
    ("binomial-tree", "all-reduce"): lambda p, d: (2 * d + (d - 1), 2 * d),
    ("sequential", "broadcast"): lambda p, d: (p - 1 + (p - 2), p - 1),
    ("scatter-ring-all-gather", "broadcast"): lambda p, d: (d + p - 1 + (d - 1), 2 * (p - 1) / p),
    ("chain", "broadcast"): lambda p, d: (p - 2 + 16, (p - 2 + 16) / 16),
    ("pairwise", "all-to-all"): lambda p, d: (p - 1, (p - 1) / p),
    ("bruck", "all-to-all"): lambda p, d: (d, d / 2),
    ("bruck", "all-gather"): lambda p, d: (d, (p - 1) / p),
    ("dissemination", "barrier"): lambda p, d: (d, 0),
}


@pytest.mark.parametrize(("name", "operation"), list(BOOKS))
def test_the_cost_is_that_of_the_books(name: str, operation: str) -> None:
    chosen = next(entry for entry in algorithms.defaults() if entry.name == name)
    for bits in range(1, 6):
        assert chosen.cost(operation, 1 << bits) == Cost(*BOOKS[name, operation](1 << bits, bits))


@pytest.mark.parametrize("world", [4, 8, 16, 32])
def test_two_trees_come_near_to_twice_the_buffer(world: int) -> None:
    chosen = next(entry for entry in algorithms.defaults() if entry.name == "double-binary-tree")
    fine = algorithm.choose("double-binary-tree:segments=256", chosen.module)
    depth = (world - 1).bit_length()
    assert chosen.cost("all-reduce", world).rounds <= 4 * 16 + 4 * depth
    assert fine.cost("all-reduce", world).volume == pytest.approx(2, rel=0.05)


def test_queued_sends_of_a_tree_share_the_link() -> None:
    tree = next(entry for entry in algorithms.variants() if entry.name == "binomial-tree")
    assert tree.cost("broadcast", 8) == Cost(3, 6)
    assert tree.cost("scatter", 8) == Cost(3, (7 + 3 + 1 + 0) / 8)


@pytest.mark.parametrize(
    ("name", "operation", "seconds"),
    [("sequential", "broadcast", 35), ("binomial-tree", "broadcast", 15), ("binomial-tree", "reduce", 15)],
)
def test_eight_ranks_and_five_megabytes_at_one_per_second(name: str, operation: str, seconds: float) -> None:
    chosen = next(entry for entry in algorithms.defaults() if entry.name == name)
    assert played(chosen, operation, 8, 5e6, 1e-4, 1e-6) == pytest.approx(seconds, rel=0.001)
    assert chosen.cost(operation, 8).seconds(5e6, 1e-4, 1e-6) == pytest.approx(seconds, rel=0.001)


# How long schedules take on equal links, without torch. A message of m bytes occupies the sender's port and the receiver's for
# alpha + m * beta seconds (Hockney's model, full duplex). A rank's messages leave in the order of its schedule, when the receiver has
# posted them; a step ends when all that it receives is there and all that it sends is away.


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
