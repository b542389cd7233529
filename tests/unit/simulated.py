"""A simulator of gangs that exchange messages: one rank stopped, one slow link, one slow rank, or nothing wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.model import schedule as model

#: (peer, bytes); a step: what is sent, what is received.
Message = tuple[int, int]
Step = tuple[tuple[Message, ...], tuple[Message, ...]]
Schedules = Sequence[Sequence[Step]]


def ring(world: int, size: int, *, gather_only: bool = False) -> Schedules:
    """All-reduce in 2(p-1) steps, or all-gather in p-1, over a ring to the right."""
    rounds = (1 if gather_only else 2) * (world - 1)
    entries = size // world
    return [[((((rank + 1) % world, entries),), (((rank - 1) % world, entries),))] * rounds for rank in range(world)]


def doubling(world: int, size: int) -> Schedules:
    """Recursive doubling: log2(p) exchanges of everything."""
    rounds = world.bit_length() - 1
    return [[((((rank ^ (1 << r)), size),), (((rank ^ (1 << r)), size),)) for r in range(rounds)] for rank in range(world)]  # fmt: skip


def tree(world: int, size: int, *, numbered_alone: bool = True) -> Schedules:
    """Binomial broadcast from rank 0: each rank has only the steps that it takes part in."""
    steps: list[list[Step]] = [[] for _ in range(world)]
    distance = 1
    while distance < world:
        for rank in range(world):
            if rank < distance and rank + distance < world:
                steps[rank].append((((rank + distance, size),), ()))
            elif distance <= rank < 2 * distance:
                steps[rank].append(((), ((rank - distance, size),)))
            elif not numbered_alone:
                steps[rank].append(((), ()))
        distance *= 2
    return steps


def catalogue(made: Sequence[model.Schedule], sizes: Sequence[int]) -> Schedules:
    """Schedules as algorithms write them; ``sizes``: bytes of each chunk. A token has none, and nothing is recorded of it."""

    def messages(result: Sequence[model.Send | model.Recv]) -> tuple[Message, ...]:
        return tuple((entry.peer, sum(sizes[chunk] for chunk in entry.chunks)) for entry in result)

    return [[(messages(step.sends), messages(step.recvs)) for step in schedule] for schedule in made]


@dataclass(kw_only=True)
class Gang:
    """``stops``: trial -> (rank, from when in it, for how long); ``rate``: bytes/s; ``slow``: link -> part of the rate.

    ``outage``: trial -> (link, from when, for how long). ``drowsy``: rank -> seconds that it takes before each step.
    ``naps``: rank -> (seconds for which it runs, then is stopped), all the time. ``watched``: ranks record when they did not run.
    ``one_port``: what a rank sends to different peers goes one after the other, and it waits until it has gone.
    """

    schedules: Schedules
    rate: float = 18.1e6
    alpha: float = 50e-6
    noise: float = 0.02
    stops: Mapping[int, tuple[int, float, float]] = field(default_factory=dict)
    outage: Mapping[int, tuple[tuple[int, int], float, float]] = field(default_factory=dict)
    slow: Mapping[tuple[int, int], float] = field(default_factory=dict)
    drowsy: Mapping[int, float] = field(default_factory=dict)
    naps: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    watched: bool = False
    buffered: int = 1 << 20
    one_port: bool = False
    seed: int = 1
    pause: float = 0.01
    now: float = 1000.0

    def trial(self, number: int) -> Trial:
        """Carry out trial ``number`` (from 1)."""
        entry = _Trial(self, number)
        result = entry.run()
        self.now = max(end for _, end in result.spans.values()) + self.pause
        return result


@dataclass(kw_only=True)
class Trial:
    """``spans``: rank -> (start, end); ``records``: (rank, index, peer, chunk, bytes, start, end).

    ``gaps``: rank -> (start, end, seconds of waiting for a CPU); None: not watched.
    """

    spans: dict[int, tuple[float, float]]
    gaps: dict[int, tuple[tuple[float, float, float], ...]] | None = None
    records: list[tuple[int, int, int, int, int, float, float]]


class _Trial:
    def __init__(self, gang: Gang, number: int) -> None:
        self.gang, self.number = gang, number
        self.draw = random.Random(f"{gang.seed}-{number}")
        self.world = len(gang.schedules)
        self.mail: dict[tuple[int, int], list[float]] = {}
        self.free: dict[tuple[int, int], float] = {}
        self.busy: dict[int, float] = {}
        self.records: list[tuple[int, int, int, int, int, float, float]] = []

    def run(self) -> Trial:
        begin = {rank: self.awake(rank, self.gang.now + self.jitter(20e-6)) for rank in range(self.world)}
        clock, place = dict(begin), dict.fromkeys(range(self.world), 0)
        entered: dict[tuple[int, int], float] = {}
        while any(place[r] < len(self.gang.schedules[r]) for r in place):
            moved = False
            for rank, at in place.items():
                if at < len(self.gang.schedules[rank]) and self.step(rank, at, clock, entered):
                    place[rank], moved = at + 1, True
            assert moved, "the schedule does not end"
        end = max(clock.values())
        gaps = {rank: tuple(self.gaps(rank, self.gang.now, end)) for rank in begin} if self.gang.watched else None
        return Trial(spans={r: (begin[r], clock[r]) for r in begin}, records=self.records, gaps=gaps)

    def gaps(self, rank: int, start: float, end: float) -> Iterator[tuple[float, float, float]]:
        """When the rank did not run."""
        stop = self.window(rank)
        if stop[1] > stop[0]:
            yield (*stop, 0.0)
        runs, stopped = self.gang.naps.get(rank, (end, 0.0))
        for number in range(int(start // (runs + stopped)), int(end // (runs + stopped)) + 1):
            begin = number * (runs + stopped) + runs
            if stopped and begin < end and begin + stopped > start:
                yield (begin, begin + stopped, 0.0)

    def step(self, rank: int, at: int, clock: dict[int, float], entered: dict[tuple[int, int], float]) -> bool:
        sends, receives = self.gang.schedules[rank][at]
        if (rank, at) not in entered:
            own = self.jitter(20e-6) + self.gang.drowsy.get(rank, 0.0)
            entered[rank, at] = self.awake(rank, clock[rank] + own)
            for peer, size in sends:
                gone = self.deliver(rank, peer, size, entered[rank, at])
                self.mail.setdefault((rank, peer), []).append(gone)
                if self.gang.one_port or size > self.gang.buffered:
                    self.busy[rank] = max(self.busy.get(rank, 0.0), gone)
        if any(not self.mail.get((peer, rank)) for peer, _ in receives):
            return False
        start, end = entered[rank, at], entered[rank, at]
        for chunk, (peer, size) in enumerate(receives):
            arrived = self.awake(rank, max(start, self.mail[peer, rank].pop(0)) + self.jitter(5e-6))
            if size:
                self.records.append((rank, at, peer, chunk, size, start, arrived))
            end = max(end, arrived)
        clock[rank] = max(end, self.awake(rank, max(start, self.busy.get(rank, 0.0)) + self.jitter(5e-6)))
        return True

    def deliver(self, sender: int, receiver: int, size: int, ready: float) -> float:
        """When the last byte is in the receiver's kernel. What the kernels cannot hold waits for both processes."""
        link = (sender, receiver)
        port = (sender, -1) if self.gang.one_port else link
        begin = max(ready, self.free.get(port, 0.0))
        took = self.gang.alpha + size / (self.gang.rate * self.gang.slow.get(link, 1.0)) * (
            1 + self.jitter(self.gang.noise)
        )
        end = begin + took
        windows = [self.window(rank) for rank in link] if size > self.gang.buffered else []
        cut = self.gang.outage.get(self.number)
        if cut and cut[0] == link:
            windows.append((self.gang.now + cut[1], self.gang.now + cut[1] + cut[2]))
        for start, stop in windows:
            if start < end and begin < stop:
                end += stop - max(start, begin)
        self.free[port] = end
        return end

    def window(self, rank: int) -> tuple[float, float]:
        stop = self.gang.stops.get(self.number)
        if stop is None or stop[0] != rank:
            return (0.0, 0.0)
        return (self.gang.now + stop[1], self.gang.now + stop[1] + stop[2])

    def awake(self, rank: int, t: float) -> float:
        start, end = self.window(rank)
        t = end if start <= t < end else t
        runs, stopped = self.gang.naps.get(rank, (1.0, 0.0))
        phase = t % (runs + stopped)
        return t + runs + stopped - phase if stopped and phase >= runs else t

    def jitter(self, most: float) -> float:
        return self.draw.random() * most
