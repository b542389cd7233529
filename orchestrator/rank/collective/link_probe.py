"""Probes the links: times messages of growing size between all pairs of ranks and fits their alpha and beta.

The lower rank of a pair sends a message and waits for a token of 4 bytes. The receive of the message is posted before, as an
algorithm does it. If a link is shaped by a token bucket, an untimed transfer empties it first: otherwise the content of the
bucket would pass at the speed of the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from ...model.events import LinkFit, LinkPair
from . import link_fit

SIZES = (4, *(1 << power for power in (10, 12, 14, 16, 17, 18, 19, 20)))
TOKEN = 4
#: Shorter messages are a single packet.
SMALL = 1 << 12
#: Large messages have at least this many times the drain: a bucket may have filled up to less while a rank was late.
LARGE = 3
#: The number of large sizes that a line needs. If SIZES has fewer, multiples of the smallest large size are used, which is at
#: most MOST_BYTES, or the drain if that is larger.
BEYOND, MOST_BYTES = 3, 16 * 1024**2
#: Repetitions per size: at least, at most.
LEAST, MOST = 5, 60
#: The least number of seconds for a pair.
PAIR_S = 0.25
#: A pair is unsure if a quarter of its sizes are farther from the line, or repetitions spread wider, than this share of their time.
OFF, SPREAD = 0.25, 0.75
#: Bytes of the message that is used to plan the remaining time.
TRIAL = 1 << 16
#: (bytes, seconds, repetitions)
Samples = list[tuple[int, float, int]]
Pair = tuple[int, int]
_DONE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The result of a probe. ``pairs``: those in which this rank is the lower one; ``agreed``: the line of all pairs, the same
    on every rank; ``worst``: the slowest pair. The last two leave out ``unsure`` pairs, unless all are unsure.
    """

    agreed: link_fit.Fit
    worst: tuple[int, int, float]
    unsure: tuple[Pair, ...] = ()
    pairs: dict[int, PairFit] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PairFit:
    """The line and the one-way samples of a pair. ``spread``: interquartile range of the repetitions, in units of their median."""

    line: link_fit.Fit
    samples: Samples
    spread: float

    @property
    def off(self) -> float:
        """The third quartile of the sizes' distances from the line, as shares of their time."""
        return link_fit.distance(((size, seconds) for size, seconds, _ in self.samples), self.line)

    @property
    def sure(self) -> bool:
        return self.off <= OFF and self.spread <= SPREAD


def probe(
    rank: int, world: int, device: torch.device, *, limit_s: float, drain: int, leaves: Sequence[int] = ()
) -> Link | None:
    """Probe all pairs in about ``limit_s``, or longer if there are many. None for a world of one. A collective of all ranks.

    ``leaves``: the switch of each rank. With several switches, pairs share uplinks and are probed one after the other.
    """
    if world < 2:
        return None
    turns = link_fit.turns(world, flat=len(set(leaves)) < 2)
    wire, pair_s = _Wire(device, drain), turn_s(limit_s, len(turns))
    pairs = {}
    for turn in turns:
        dist.barrier()
        low, high = next((pair for pair in turn if rank in pair), (None, None))
        if rank == low and high is not None:
            pairs[high] = _lead(wire, high, pair_s)
        elif low is not None:
            _follow(wire, low)
    return _agree(rank, world, device, pairs, leaves)


def turn_s(limit_s: float, turns: int) -> float:
    """Seconds for one of ``turns``: at least PAIR_S, unless ``limit_s`` is less."""
    return max(limit_s / turns, min(limit_s, PAIR_S))


def _lead(wire: _Wire, peer: int, limit_s: float) -> PairFit:
    """Measure median round trips per size; large sizes are left out if the time does not suffice."""
    begin = time.monotonic()
    small = wire.ping(peer, SIZES[0], MOST)
    first, spreads = statistics.median(small), [spread(small)]
    per_byte = max(min(wire.ping(peer, TRIAL, 2)) - first, 0.0) / TRIAL
    samples = [(SIZES[0], first, MOST)]
    for size, times in repetitions(first, per_byte, wire.drain, limit_s - (time.monotonic() - begin)):
        seconds = wire.ping(peer, size, times)
        samples.append((size, statistics.median(seconds), times))
        spreads.append(spread(seconds))
    wire.announce(peer, _DONE, 0)
    fitted, one_way = line(samples)
    return PairFit(line=fitted, samples=one_way, spread=statistics.median(spreads))


def spread(seconds: Sequence[float]) -> float:
    """The interquartile range, in units of the median."""
    low, middle, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / middle if middle > 0 else 0.0


def repetitions(first: float, per_byte: float, drain: int, remaining_s: float) -> list[tuple[int, int]]:
    """(bytes, repetitions): every size gets the same share of ``remaining_s``; at least three sizes are measured."""
    chosen = sizes(drain)
    cost = {size: 2 * first + per_byte * (size + _drained(size, drain)) + 1e-6 for size in chosen}
    while len(chosen) > 3 and (LEAST + 1) * cost[chosen[-1]] > remaining_s / len(chosen):
        chosen.pop()
    return [(size, min(MOST, max(LEAST, int(remaining_s / len(chosen) / cost[size]) - 1))) for size in chosen]


def sizes(drain: int) -> list[int]:
    """Sizes of the messages to measure in bytes, except the shortest: without those that a bucket could hold."""
    least = min(LARGE * drain, max(drain, MOST_BYTES))
    small = [size for size in SIZES[1:] if size < SMALL]
    large = [size for size in SIZES if size >= max(least, SMALL)]
    return small + (large if len(large) >= BEYOND else [least * times for times in range(1, BEYOND + 1)])


def line(samples: Samples) -> tuple[link_fit.Fit, Samples]:
    """The line of one-way times. A round trip is a message and a token, so alpha is half of the time at 0 bytes.

    The samples are converted to one-way times: the time of the token is subtracted.
    """
    round_trip = link_fit.line((size, seconds) for size, seconds, _ in samples)
    alpha = round_trip.alpha / 2
    one_way = [(size, max(seconds - alpha, seconds / 2), times) for size, seconds, times in samples]
    return link_fit.Fit(alpha, round_trip.beta, round_trip.r2), one_way


def _drained(size: int, drain: int) -> int:
    """The bytes that empty the bucket before a message of ``size``; none for a single packet."""
    return drain if size >= SMALL else 0


def _follow(wire: _Wire, peer: int) -> None:
    while True:
        size, times = wire.receive_order(peer)
        if size == _DONE:
            return
        wire.pong(peer, size, times)


class _Wire:
    """Messages to one peer, by size in bytes."""

    def __init__(self, device: torch.device, drain: int) -> None:
        self.drain = drain
        self._device = device
        self._early = device.type != "cuda"  # NCCL runs the calls between two ranks one after the other
        self._buffer = torch.zeros(max(sizes(drain)), dtype=torch.uint8, device=device)
        self._token = torch.zeros(TOKEN, dtype=torch.uint8, device=device)

    def announce(self, peer: int, size: int, times: int) -> None:
        dist.send(torch.tensor([size, times], device=self._device), peer)

    def receive_order(self, peer: int) -> tuple[int, int]:
        order = torch.zeros(2, dtype=torch.int64, device=self._device)
        dist.recv(order, peer)
        return int(order[0].item()), int(order[1].item())

    def ping(self, peer: int, size: int, times: int) -> list[float]:
        """Seconds of each round trip: ``size`` bytes to the peer, a token back. The first, additional one is not counted."""
        self.announce(peer, size, times + 1)
        drain, seconds = _drained(size, self.drain), []
        for _ in range(times + 1):
            if drain:
                _wait(dist.isend(self._buffer[:drain], peer))
            dist.recv(self._token, peer)  # the peer is ready: its receive is posted
            back = dist.irecv(self._token, peer) if self._early else None
            begin = time.monotonic()
            _wait(dist.isend(self._buffer[:size], peer))
            _wait(back or dist.irecv(self._token, peer))
            self._settle()
            seconds.append(time.monotonic() - begin)
        return seconds[1:]

    def pong(self, peer: int, size: int, times: int) -> None:
        drain = _drained(size, self.drain)
        for _ in range(times):
            if drain:
                dist.recv(self._buffer[:drain], peer)
            into = dist.irecv(self._buffer[:size], peer) if self._early else None
            dist.send(self._token, peer)
            _wait(into or dist.irecv(self._buffer[:size], peer))
            dist.send(self._token, peer)

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()


def _agree(rank: int, world: int, device: torch.device, pairs: dict[int, PairFit], leaves: Sequence[int]) -> Link:
    table = torch.zeros(world, world, 4, dtype=torch.float64)
    for peer, pair_fit in pairs.items():
        fit = pair_fit.line
        row = [fit.alpha, fit.beta, fit.r2, float(pair_fit.sure)]
        table[rank, peer] = torch.tensor(row, dtype=torch.float64)
    table = table.to(device)
    dist.all_reduce(table)
    fits = {pair: link_fit.Fit(*table[pair].tolist()[:3]) for turn in link_fit.rounds(world) for pair in turn}
    return combine(fits, tuple(sorted(pair for pair in fits if not table[pair][3].item())), pairs, leaves)


def combine(
    fits: Mapping[Pair, link_fit.Fit], unsure: tuple[Pair, ...], pairs: dict[int, PairFit], leaves: Sequence[int] = ()
) -> Link:
    """Combine the lines of all pairs. The beta is that of the ports: of pairs behind one uplink, if there are any."""
    good = {pair: fit for pair, fit in fits.items() if pair not in unsure} or fits
    low, high = max(good, key=lambda pair: good[pair].beta)
    agreed = link_fit.agreed(list(good.values()))
    inner = [fit for (a, b), fit in good.items() if leaves and leaves[a] == leaves[b]]
    agreed = link_fit.Fit(agreed.alpha, link_fit.agreed(inner).beta if inner else agreed.beta, agreed.r2)
    return Link(agreed=agreed, worst=(low, high, good[low, high].beta), unsure=unsure, pairs=pairs)


def report(link: Link, rank: int, note: Callable[[LinkPair | LinkFit], None]) -> None:
    """Write the events of a probe."""
    for peer, pair in link.pairs.items():
        fit = pair.line
        note(
            LinkPair(
                rank=rank, peer=peer, alpha_s=fit.alpha, beta_s_per_byte=fit.beta, r2=fit.r2,
                samples=tuple(pair.samples), spread=pair.spread, off=pair.off, sure=pair.sure,
            )
        )  # fmt: skip
    if rank == 0:
        agreed = link.agreed
        note(
            LinkFit(rank=rank, alpha_s=agreed.alpha, beta_s_per_byte=agreed.beta, worst=link.worst, unsure=link.unsure)
        )
