"""Probes the links: times trains of messages in both directions of all pairs of ranks and fits their alpha and beta.

A train is a message that empties the token buckets of the link, and messages of equal size right behind it. The receiver notes
the arrival of each, so the time per byte is read from one clock, without start-up times. Alpha is half of the shortest round
trip of a token; it is common to both directions, because no clock is precise enough to tell them apart.

Every pass over the pairs measures each direction once, so that a disturbance of the machine hits all directions alike. Where
trains were disturbed, so that the rate of a shaped link is known only roughly, more passes over these pairs follow.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...model.events import LinkFit, LinkPair
from ...model.frozen import dataclass, field, replace
from ...model.gang import GangSpec
from . import link_fit

TOKEN = 4
#: The largest packet that the kernel delivers.
PACKET = 1 << 16
#: Round trips of a token per direction and pass.
ROUND_TRIPS = 4
#: Bytes of a message of a train, and messages of a train: least, most; of the first train, which is not counted: TRIAL. Packets
#: of more than a message make the slope of a short train inexact.
LEAST_BYTES, TRIAL, MOST_BYTES = 1 << 14, 1 << 15, 1 << 22
LEAST, MOST, TRIAL_COUNT = 24, 64, 8
#: Seconds of a message and of a train, within these limits. The bytes of a train begin at another byte of a packet each time.
MESSAGE_S, TRAIN_S, SHIFT = 0.0005, 0.03, 10_007
#: An earlier probe is confirmed if one of so many trains per direction is within its interval, widened by this share.
CONFIRMING_TRAINS, NEAR = 2, 0.02
#: Passes over all pairs. With the least number of them, probes may take longer than they should.
LEAST_PASSES, MOST_PASSES = link_fit.LEAST_TRAINS, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """``count`` messages of ``size`` bytes, after a message of ``lead`` bytes."""

    size: int
    count: int
    lead: int


@dataclass(slots=True, kw_only=True)
class Direction:
    """The measurement of a direction: seconds of round trips, and per train the seconds of its arrivals since the first.

    ``is_shaped``: over a link of a known rate, where interruptions of a train do not count.
    """

    train: Train
    is_shaped: bool = False
    round_trips: list[float] = field(default_factory=list)
    arrivals: list[list[float]] = field(default_factory=list)

    @property
    def alpha(self) -> float:
        return min(self.round_trips) / 2

    @property
    def slopes(self) -> list[float]:
        """Seconds per byte of each train."""
        return [
            link_fit.slope(list(zip(self._sizes, arrivals, strict=True)), is_shaped=self.is_shaped)
            for arrivals in self.arrivals
        ]

    @property
    def samples(self) -> tuple[tuple[int, float, int], ...]:
        """(bytes, seconds, repetitions): alpha of a token, and the median seconds in which so many bytes of a train arrived."""
        columns = zip(*self.arrivals, strict=True)
        trains = [(size, statistics.median(column)) for size, column in zip(self._sizes, columns, strict=True)][1:]
        counted = [(size, seconds, len(self.arrivals)) for size, seconds in trains]
        return ((TOKEN, self.alpha, len(self.round_trips)), *counted)

    @property
    def _sizes(self) -> range:
        return range(0, self.train.size * self.train.count + 1, self.train.size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The result of a probe. ``directions``: by the rank that receives what this rank sends; ``agreed``: the line of all
    directions, the same on every rank; None if no direction has a beta. ``known``: the earlier probe that was reused;
    ``changed``: why it was not.
    """

    agreed: link_fit.Fit | None
    known: Mapping[str, Any] | None = None
    changed: str = ""
    directions: dict[int, tuple[Direction, link_fit.Beta]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """``nodes``, ``leaves``: the node and the leaf switch of each rank; ``rate``: bit/s of a link, 0 if not known.

    ``drain``: bytes that empty a link's buckets; ``refill_s``: the time in which they fill up.
    """

    nodes: Sequence[int]
    leaves: Sequence[int] = ()
    rate: float = 0.0
    drain: int = 0
    refill_s: float = 0.0

    def link_rate(self, rank: int, peer: int) -> float:
        """bit/s of the link between two ranks; 0 if that is not known, and on one node, where no link bounds the rate."""
        return self.rate if self.nodes[rank] != self.nodes[peer] else 0.0


def fabric(gang: GangSpec, drain: int) -> Fabric:
    """The fabric of a gang. ``drain``: bytes that empty a link's buckets."""
    link = gang.link
    return Fabric(
        nodes=[rank * gang.nodes // gang.world_size for rank in range(gang.world_size)], leaves=gang.leaves, drain=drain,
        rate=link.rate if link else 0, refill_s=8 * link.burst / link.rate if link and link.rate else 0.0,
    )  # fmt: skip


def probe(
    rank: int, device: torch.device, fabric: Fabric, *, limit_s: float, known: Mapping[str, Any] | None = None
) -> Link | None:
    """Probe all pairs in about ``limit_s``, or longer if there are many. None for a world of one. A collective of all ranks.

    ``known``: an earlier probe (``run/known_links.py``); it is reused if a few trains confirm all its directions.
    With several switches, pairs share uplinks and are probed one after the other.
    """
    if len(fabric.nodes) < 2:
        return None
    turns = link_fit.turns(fabric.nodes, flat=len(set(fabric.leaves)) < 2)
    wire, directions = _Wire(device, fabric), dict[int, Direction]()
    changed = _changed(rank, wire, turns, known) if known else ""
    if known and not changed:
        return Link(agreed=link_fit.Fit(known["fit"]["alpha_s"], known["fit"]["beta_s_per_byte"]), known=known)
    begin = time.monotonic()
    _pass(rank, wire, turns, directions)
    for direction in directions.values():  # the first pass warms up, and shows how long the messages should be
        direction.train = plan(statistics.median(direction.slopes), fabric.drain)
        direction.arrivals.clear()
    first = time.monotonic()
    _pass(rank, wire, turns, directions)
    end = time.monotonic()
    for _ in range(_agree_on(passes(limit_s - (first - begin), end - first), device) - 1):
        _pass(rank, wire, turns, directions)
    if fabric.rate:
        _measure_rough(rank, device, fabric, wire, turns, directions, time.monotonic() + limit_s)
    return replace(_agree(rank, device, fabric, directions), changed=changed)


def _measure_rough(
    rank: int, device: torch.device, fabric: Fabric, wire: _Wire, turns: Sequence[Sequence[link_fit.Pair]],
    directions: dict[int, Direction], end: float,
) -> None:  # fmt: skip
    """More passes over the pairs of which a direction is known only roughly, until ``end`` by the clock of rank 0."""
    for _ in range(MOST_PASSES):
        rough = wire.pairs(rank, rough_peers(rank, fabric, directions))
        if not rough or not _agree_on(int(time.monotonic() < end), device):
            return
        _pass(rank, wire, [[pair for pair in turn if pair in rough] for turn in turns if rough & set(turn)], directions)


def rough_peers(rank: int, fabric: Fabric, directions: Mapping[int, Direction]) -> list[int]:
    """The peers on other nodes to which the rate is known only roughly."""
    fits = betas(rank, fabric, directions)
    return [peer for peer in fits if fabric.nodes[peer] != fabric.nodes[rank] and link_fit.is_rough(fits[peer])]


def betas(rank: int, fabric: Fabric, directions: Mapping[int, Direction]) -> dict[int, link_fit.Beta]:
    """The time per byte to each peer."""
    return {
        peer: link_fit.beta(direction.slopes, fabric.link_rate(rank, peer)) for peer, direction in directions.items()
    }


def _changed(rank: int, wire: _Wire, turns: Sequence[Sequence[link_fit.Pair]], known: Mapping[str, Any]) -> str:
    """A direction that is not as the earlier probe says; empty if all are. The same on every rank."""
    directions, world = dict[int, Direction](), len(wire.fabric.nodes)
    _pass(rank, wire, turns, directions)
    previous = {value["peer"]: value for value in known["directions"] if value["rank"] == rank}
    for peer, direction in directions.items():
        direction.train = plan(statistics.median(previous[peer]["interval"]), wire.fabric.drain)
        direction.arrivals.clear()
    for _ in range(CONFIRMING_TRAINS):
        _pass(rank, wire, turns, directions)
    different = [
        peer for peer, direction in directions.items() if not is_confirmed(direction.slopes, previous[peer]["interval"])
    ]
    number = wire.maximum(max((rank * world + peer + 1 for peer in different), default=0)) - 1
    return (
        f"rank {number // world} -> {number % world} has another rate than in run {known['run']}" if number >= 0 else ""
    )


def is_confirmed(slopes: Sequence[float], interval: Sequence[float]) -> bool:
    """Return whether one of the trains is within the interval of an earlier probe."""
    return any(interval[0] * (1 - NEAR) <= slope <= interval[1] * (1 + NEAR) for slope in slopes)


def plan(beta: float, drain: int) -> Train:
    """The train for a link of ``beta`` seconds per byte."""
    size = LEAST_BYTES
    while size < MOST_BYTES and 2 * size * beta <= MESSAGE_S:
        size *= 2
    count = round(TRAIN_S / max(size * beta, 1e-9))
    return Train(size=size, count=min(MOST, max(LEAST, count)), lead=max(drain, size))


def passes(limit_s: float, pass_s: float) -> int:
    return min(MOST_PASSES, max(LEAST_PASSES, int(limit_s / max(pass_s, 1e-6))))


def _agree_on(count: int, device: torch.device) -> int:
    """The number that rank 0 has."""
    chosen = torch.tensor([count], device=device)
    dist.broadcast(chosen, 0)
    return int(chosen.item())


def _pass(rank: int, wire: _Wire, turns: Sequence[Sequence[link_fit.Pair]], directions: dict[int, Direction]) -> None:
    """Measure both directions of every pair once. ``directions``: those in which this rank sends."""
    for turn in turns:
        dist.barrier()
        for low, high in (pair for pair in turn if rank in pair):
            for sender, receiver in ((low, high), (high, low)):
                if rank == sender:
                    trial = Train(size=TRIAL, count=TRIAL_COUNT, lead=max(wire.fabric.drain, TRIAL))
                    is_shaped = wire.fabric.link_rate(rank, receiver) > 0
                    wire.send(receiver, directions.setdefault(receiver, Direction(train=trial, is_shaped=is_shaped)))
                else:
                    wire.receive(sender)


class _Wire:
    """Round trips and trains of messages between this rank and a peer."""

    def __init__(self, device: torch.device, fabric: Fabric) -> None:
        self.fabric = fabric
        self._device = device
        self._early = device.type != "cuda"  # NCCL runs the calls between two ranks one after the other
        self._buffer = torch.zeros(max(fabric.drain, MOST_BYTES) + PACKET, dtype=torch.uint8, device=device)
        self._token = torch.zeros(TOKEN, dtype=torch.uint8, device=device)

    def maximum(self, number: int) -> int:
        greatest = torch.tensor([number], device=self._device)
        dist.all_reduce(greatest, dist.ReduceOp.MAX)
        return int(greatest.item())

    def pairs(self, rank: int, peers: Sequence[int]) -> set[link_fit.Pair]:
        """The pairs of ranks that any rank names by its peers."""
        named = torch.zeros(len(self.fabric.nodes), len(self.fabric.nodes), dtype=torch.int64)
        for peer in peers:
            named[min(rank, peer), max(rank, peer)] = 1
        named = named.to(self._device)
        dist.all_reduce(named, dist.ReduceOp.MAX)
        return {(low, high) for low, high in named.nonzero().tolist()}

    def send(self, peer: int, direction: Direction) -> None:
        """Lead the measurement of the direction to ``peer``, and add it to ``direction``."""
        train = direction.train
        lead = train.lead + len(direction.arrivals) * SHIFT % PACKET
        dist.send(torch.tensor([lead, train.size, train.count], device=self._device), peer)
        direction.round_trips += [self._round_trip(peer) for _ in range(ROUND_TRIPS + 1)][1:]
        dist.recv(self._token, peer)  # the peer has posted its receives
        if self.fabric.drain:
            # a bucket that is partly full here would leave the peer's bucket partly full
            time.sleep(self.fabric.refill_s)
        messages = [self._buffer[:lead], *[self._buffer[: train.size]] * train.count]
        for work in [dist.isend(message, peer) for message in messages]:
            _wait(work)
        arrivals = torch.zeros(train.count + 1, dtype=torch.float64, device=self._device)
        dist.recv(arrivals, peer)
        direction.arrivals.append(arrivals.tolist())

    def receive(self, peer: int) -> None:
        order = torch.zeros(3, dtype=torch.int64, device=self._device)
        dist.recv(order, peer)
        lead, size, count = order.tolist()
        for _ in range(ROUND_TRIPS + 1):
            dist.recv(self._token, peer)
            dist.send(self._token, peer)
        times = self._arrivals(peer, [self._buffer[:lead], *[self._buffer[:size]] * count])
        since = [seconds - times[0] for seconds in times]
        dist.send(torch.tensor(since, dtype=torch.float64, device=self._device), peer)

    def _round_trip(self, peer: int) -> float:
        begin = time.monotonic()
        back = dist.irecv(self._token, peer) if self._early else None
        dist.send(self._token, peer)
        _wait(back or dist.irecv(self._token, peer))
        self._settle()
        return time.monotonic() - begin

    def _arrivals(self, peer: int, messages: Sequence[torch.Tensor]) -> list[float]:
        works = [dist.irecv(message, peer) for message in messages] if self._early else []
        dist.send(self._token, peer)
        times = []
        for number, message in enumerate(messages):
            _wait(works[number] if works else dist.irecv(message, peer))
            self._settle()
            times.append(time.monotonic())
        return times

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


def _agree(rank: int, device: torch.device, fabric: Fabric, directions: dict[int, Direction]) -> Link:
    world = len(fabric.nodes)
    fits = betas(rank, fabric, directions)
    table = torch.zeros(world, world, 2, dtype=torch.float64)
    for peer, beta in fits.items():
        table[rank, peer] = torch.tensor([directions[peer].alpha, beta.value or 0.0], dtype=torch.float64)
    table = table.to(device)
    dist.all_reduce(table)
    lines = {(a, b): link_fit.Fit(*table[a, b].tolist()) for a, b in over_links(fabric.nodes)}
    results = {peer: (direction, fits[peer]) for peer, direction in directions.items()}
    return Link(agreed=combine(lines, fabric.leaves), directions=results)


def over_links(nodes: Sequence[int]) -> list[link_fit.Pair]:
    """The directions between nodes, which the models are about; all directions where one node has all ranks."""
    every = list(itertools.permutations(range(len(nodes)), 2))
    return [(a, b) for a, b in every if nodes[a] != nodes[b]] or every


def combine(lines: dict[link_fit.Pair, link_fit.Fit], leaves: Sequence[int] = ()) -> link_fit.Fit | None:
    """The line of all directions that have a beta above 0. The beta is that of the ports: of pairs behind one uplink, if there
    are any.
    """
    fits = {pair: fit for pair, fit in lines.items() if fit.beta > 0}
    if not fits:
        return None
    agreed = link_fit.agreed(list(fits.values()))
    inner = [fit for (a, b), fit in fits.items() if leaves and leaves[a] == leaves[b]]
    return link_fit.Fit(agreed.alpha, link_fit.agreed(inner).beta if inner else agreed.beta)


def report(link: Link, rank: int, note: Callable[[LinkPair | LinkFit], None]) -> None:
    """Write the events of a probe. Those of an earlier probe are written as they were."""
    for value in link.known["directions"] if link.known else ():
        if value["rank"] == rank:
            note(LinkPair.read(value))
    for peer, (direction, beta) in link.directions.items():
        note(
            LinkPair(
                rank=rank, peer=peer, alpha_s=direction.alpha, beta_s_per_byte=beta.value, interval=beta.interval,
                reason=beta.reason or None, trains=tuple(direction.slopes), samples=direction.samples,
            )
        )  # fmt: skip
    if rank == 0 and link.agreed:
        note(
            LinkFit(
                rank=rank, alpha_s=link.agreed.alpha, beta_s_per_byte=link.agreed.beta, changed=link.changed or None,
                reused_from=link.known["run"] if link.known else None,
                measured_at=time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(link.known["at"])) if link.known else None,
            )
        )  # fmt: skip
