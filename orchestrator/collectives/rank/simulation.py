"""Simulates a collective: plays the schedules of all ranks on ports that share their rate among messages. Pure, without torch.

A message begins when its sender has reached the step and its receiver has posted the receive (a receive that is posted after the
send costs one more start-up, for the handshake). A rank starts the messages of a step one after the other (OVERHEAD), or, where they
are sent in turn, each when the last byte of the one before it is on the wire. Messages on the wire share ports and uplinks max-min
fairly; ports send and receive at the same time. A message arrives one start-up after its last byte.
Max-min fairness by progressive filling: Bertsekas and Gallager, "Data Networks" (1992), section 6.5.2.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence

from ...model.frozen import dataclass, field
from ...model.schedule import TOKEN, Schedule
from ...rank.exchange import receive_schedule

#: What a message uses: ("out", rank), ("in", rank), ("up", switch), ("down", switch).
Resource = tuple[str, int]
#: Relative difference below which two moments are the same.
SAME = 1e-9
#: The share of a start-up that is the work of the sender: its next message of the same step begins that much later.
OVERHEAD = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The schedule of one rank. ``rank``: its global number; ``peers``: the global number of each rank of its group.

    ``sizes``: bytes of each chunk.
    """

    rank: int
    peers: Sequence[int]
    schedule: Schedule
    sizes: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """``alpha``: seconds per message; ``beta``: seconds per byte of a port; ``gamma``: seconds per byte that a rank combines.

    ``leaves``: the switch of each rank, ``uplink``: seconds per byte of the uplink of a switch; 0: no limit.
    """

    alpha: float
    beta: float
    gamma: float = 0.0
    leaves: Sequence[int] = ()
    uplink: float = 0.0

    def resources(self, source: int, target: int) -> tuple[Resource, ...]:
        """Return what a message from ``source`` to ``target`` shares with others."""
        ports: tuple[Resource, ...] = (("out", source), ("in", target))
        if self.uplink and self.leaves and self.leaves[source] != self.leaves[target]:
            return (*ports, ("up", self.leaves[source]), ("down", self.leaves[target]))
        return ports

    def rate(self, resource: Resource) -> float:
        """Bytes per second."""
        return 1 / (self.uplink if resource[0] in ("up", "down") else self.beta)


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in seconds, and the start-ups that it had to wait for one after the other."""

    seconds: float = 0.0
    startups: float = 0

    def after(self, seconds: float, startups: float = 0) -> Moment:
        return Moment(self.seconds + seconds, self.startups + startups)


@dataclass(slots=True, eq=False)
class _Message:
    source: int
    target: int
    bytes: float
    resources: tuple[Resource, ...]
    step: int = 0  # of the sender
    sent: Moment | None = None
    posted: Moment | None = None
    begun: Moment = field(default_factory=Moment)
    left: float = 0.0
    reduced: bool = False


@dataclass(slots=True, eq=False)
class _Rank:
    program: Program
    plan: tuple[tuple[receive_schedule.ReceiveId, ...], ...]
    incoming: dict[receive_schedule.ReceiveId, _Message] = field(default_factory=dict)
    outgoing: dict[int, list[_Message]] = field(default_factory=lambda: defaultdict(list))
    step: int = -1
    waiting: int = 0
    reached: Moment = field(default_factory=Moment)


def play(programs: Sequence[Program], fabric: Fabric) -> Moment:
    """Return when the last rank has completed its schedule. Raises ValueError if the schedules do not fit together."""
    return _Player(programs, fabric).run()


class _Player:
    def __init__(self, programs: Sequence[Program], fabric: Fabric) -> None:
        self._fabric = fabric
        self._ranks = {p.rank: _Rank(p, receive_schedule.plan(p.schedule, p.sizes)) for p in programs}
        self._flows: list[_Message] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._now = 0.0
        self._connect()

    def run(self) -> Moment:
        for rank in self._ranks.values():
            self._enter(rank, Moment())
        while self._events or self._flows:
            self._advance()
        if any(rank.step < len(rank.program.schedule) for rank in self._ranks.values()):
            raise ValueError("the schedules wait for each other")
        return max((rank.reached for rank in self._ranks.values()), key=lambda m: m.seconds, default=Moment())

    def _connect(self) -> None:
        """Match sends and receives between two ranks in their order, as transports do."""
        queues: dict[tuple[int, int], list[_Message]] = defaultdict(list)
        for number, rank in self._ranks.items():
            for index, step in enumerate(rank.program.schedule):
                for send in step.sends:
                    peer = rank.program.peers[send.peer]
                    size = sum(rank.program.sizes[chunk] for chunk in send.chunks) if send.chunks else TOKEN
                    message = _Message(number, peer, size, self._fabric.resources(number, peer), index, left=size)
                    rank.outgoing[index].append(message)
                    queues[number, peer].append(message)
        for number, rank in self._ranks.items():
            for index, step in enumerate(rank.program.schedule):
                for place, recv in enumerate(step.recvs):
                    queue = queues[rank.program.peers[recv.peer], number]
                    if not queue:
                        raise ValueError(f"rank {number} receives a message that rank {recv.peer} does not send")
                    message = rank.incoming[index, place] = queue.pop(0)
                    message.reduced = recv.reduce

    def _enter(self, rank: _Rank, at: Moment) -> None:
        rank.step += 1
        rank.reached = at
        if rank.step == len(rank.program.schedule):
            return
        step = rank.program.schedule[rank.step]
        for index, number in rank.plan[rank.step]:
            self._post(rank.incoming[index, number], at)
        rank.waiting = len(step.sends) + len(step.recvs)
        if not rank.waiting:
            self._enter(rank, at)
            return
        in_turn = receive_schedule.sends_in_turn(step, rank.program.sizes)
        for number, message in enumerate(rank.outgoing[rank.step][: 1 if in_turn else None]):
            self._send(message, at.after(number * OVERHEAD * self._fabric.alpha, number * OVERHEAD))
        for place in range(len(step.recvs)):
            if rank.incoming[rank.step, place].left < 0:  # it has arrived before
                self._arrive(rank, rank.incoming[rank.step, place].begun)

    def _send(self, message: _Message, at: Moment) -> None:
        message.sent = at
        self._begin(message)

    def _post(self, message: _Message, at: Moment) -> None:
        message.posted = at
        self._begin(message)

    def _send_next(self, sender: _Rank, sent: _Message, at: Moment) -> None:
        """Send the message that waited until this one was sent, if there is one."""
        after = sender.outgoing[sent.step]
        waiting = next((message for message in after if message.sent is None), None)
        if waiting is not None:
            self._send(waiting, at.after(OVERHEAD * self._fabric.alpha, OVERHEAD))

    def _begin(self, message: _Message) -> None:
        """Start the message if both ends are ready."""
        if message.sent is None or message.posted is None:
            return
        is_late = message.posted.seconds > message.sent.seconds
        ready = message.posted.after(self._fabric.alpha, 1) if is_late else message.sent
        message.begun = ready
        self._at(ready.seconds, lambda: self._flows.append(message) if message.bytes else self._finish(message))

    def _finish(self, message: _Message) -> None:
        """The last byte is on the wire."""
        message.left = 0.0
        end = Moment(self._now, message.begun.startups)
        sender = self._ranks[message.source]
        self._send_next(sender, message, end)
        self._arrive(sender, end)
        receiver, arrived = self._ranks[message.target], end.after(self._fabric.alpha, 1)
        if message.reduced:
            arrived = arrived.after(message.bytes * self._fabric.gamma)

        def arrive() -> None:
            message.left, message.begun = -1.0, arrived
            if receiver.step >= 0 and any(
                receiver.incoming.get((receiver.step, place)) is message
                for place in range(len(receiver.program.schedule[receiver.step].recvs))
            ):
                self._arrive(receiver, arrived)

        self._at(arrived.seconds, arrive)

    def _arrive(self, rank: _Rank, at: Moment) -> None:
        """One message of the rank's step has ended."""
        rank.waiting -= 1
        if at.seconds >= rank.reached.seconds:
            rank.reached = at
        if not rank.waiting:
            reached = rank.reached
            self._at(reached.seconds, lambda: self._enter(rank, reached))

    def _at(self, seconds: float, call: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (max(seconds, self._now), self._count, call))

    def _advance(self) -> None:
        """Advance to the next event, or to the end of the next message on the wire."""
        rates = _fair(self._flows, self._fabric)
        ends = {id(flow): self._now + flow.left / rates[id(flow)] for flow in self._flows}
        first = min(ends.values(), default=math.inf)
        until = min(first, self._events[0][0] if self._events else math.inf)
        elapsed = until - self._now
        for flow in self._flows:
            flow.left -= elapsed * rates[id(flow)]
        self._now = until
        done = [flow for flow in self._flows if ends[id(flow)] <= until * (1 + SAME)]
        self._flows = [flow for flow in self._flows if ends[id(flow)] > until * (1 + SAME)]
        for flow in done:
            self._finish(flow)
        while self._events and self._events[0][0] <= until * (1 + SAME):
            heapq.heappop(self._events)[2]()


def _fair(flows: Sequence[_Message], fabric: Fabric) -> Mapping[int, float]:
    """The max-min fair rate of each flow in bytes per second: the tightest resource first."""
    rates: dict[int, float] = {}
    capacity = {resource: fabric.rate(resource) for flow in flows for resource in flow.resources}
    waiting = list(flows)
    while waiting:
        users = Counter(resource for flow in waiting for resource in flow.resources)
        share = min(capacity[resource] / count for resource, count in users.items())
        tight = {resource for resource, count in users.items() if capacity[resource] / count <= share * (1 + SAME)}
        fixed = [flow for flow in waiting if not tight.isdisjoint(flow.resources)]
        for flow in fixed:
            rates[id(flow)] = share
            for resource in flow.resources:
                capacity[resource] = max(capacity[resource] - share, 0.0)
        waiting = [flow for flow in waiting if id(flow) not in rates]
    return rates
