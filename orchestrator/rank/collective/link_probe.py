"""The link probe: messages of growing size between all pairs of ranks, and the alpha and beta that fit their times.

The lower rank of a pair sends a message and waits for a token of 4 bytes. The receive of the message is posted before, as
an algorithm does it. Where a link is shaped by a token bucket, an untimed transfer empties it first: what waits in the
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

from . import link_fit

SIZES = (4, *(1 << power for power in (10, 12, 14, 16, 17, 18, 19, 20)))
TOKEN = 4
#: Shorter messages are a single packet.
SMALL = 1 << 12
#: In units of the drain. What lies between these two is shorter than what a bucket may hold again when a rank was late.
LARGE = 3
#: So many sizes must be beyond that, or there is no line through them; where SIZES has fewer, multiples of the least one are
#: taken, which is not more than this, or the drain itself where that is more still.
BEYOND, MOST_BYTES = 3, 16 * 1024**2
#: Repetitions per size: at least, at most.
LEAST, MOST = 5, 60
#: Seconds for a pair at least, however many there are.
PAIR_S = 0.25
#: A pair is unsure where a quarter of its sizes are farther off the line, or repetitions spread wider, than this share of their time.
OFF, SPREAD = 0.25, 0.75
#: Bytes of the message by which the rest of the time is planned.
TRIAL = 1 << 16
#: (bytes, seconds, repetitions)
Samples = list[tuple[int, float, int]]
Pair = tuple[int, int]
_DONE = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """What was found: ``pairs`` of which this rank was the lower one; ``agreed`` on every rank; ``worst`` the slowest pair.

    Both leave out pairs that are ``unsure``, unless all are.
    """

    agreed: link_fit.Fit
    worst: tuple[int, int, float]
    unsure: tuple[Pair, ...] = ()
    pairs: dict[int, Found] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One pair: its line and one-way samples. ``spread``: of half of the repetitions, in units of their median."""

    line: link_fit.Fit
    samples: Samples
    spread: float

    @property
    def off(self) -> float:
        """How far a quarter of the sizes are off the line at least, as a share of their time."""
        return link_fit.distance(((size, seconds) for size, seconds, _ in self.samples), self.line)

    @property
    def sure(self) -> bool:
        return self.off <= OFF and self.spread <= SPREAD


def probe(
    rank: int, world: int, device: torch.device, *, limit_s: float, drain: int, leaves: Sequence[int] = ()
) -> Link | None:
    """A collective of all ranks that takes about ``limit_s``, longer where there are many pairs. None for a world of one.

    ``leaves``: the switch of each rank. Where there are several, pairs share uplinks, and are probed one after the other.
    """
    if world < 2:
        return None
    turns = link_fit.turns(world, flat=len(set(leaves)) < 2)
    wire, each = _Wire(device, drain), turn_s(limit_s, len(turns))
    found = {}
    for turn in turns:
        dist.barrier()
        mine = next((pair for pair in turn if rank in pair), None)
        if mine and rank == mine[0]:
            found[mine[1]] = _lead(wire, mine[1], each)
        elif mine:
            _follow(wire, mine[0])
    return _agree(rank, world, device, found, leaves)


def turn_s(limit_s: float, turns: int) -> float:
    """Seconds for one of so many turns. Only who asks for less in all than a pair has at least gets less."""
    return max(limit_s / turns, min(limit_s, PAIR_S))


def _lead(wire: _Wire, peer: int, limit_s: float) -> Found:
    """Median round trips per size; large sizes are left out where the time does not allow them."""
    begin = time.monotonic()
    small = wire.ping(peer, SIZES[0], MOST)
    first, spreads = statistics.median(small), [spread(small)]
    per_byte = max(min(wire.ping(peer, TRIAL, 2)) - first, 0.0) / TRIAL
    found = [(SIZES[0], first, MOST)]
    for size, times in repetitions(first, per_byte, wire.drain, limit_s - (time.monotonic() - begin)):
        took = wire.ping(peer, size, times)
        found.append((size, statistics.median(took), times))
        spreads.append(spread(took))
    wire.say(peer, _DONE, 0)
    fitted, one_way = line(found)
    return Found(line=fitted, samples=one_way, spread=statistics.median(spreads))


def spread(took: Sequence[float]) -> float:
    """Between the quartiles, in units of the median."""
    low, middle, high = statistics.quantiles(took, n=4, method="inclusive")
    return (high - low) / middle if middle > 0 else 0.0


def repetitions(first: float, per_byte: float, drain: int, left: float) -> list[tuple[int, int]]:
    """(bytes, repetitions): every size has the same share of the time that is left; three sizes are measured whatever it costs."""
    kept = sizes(drain)
    cost = {size: 2 * first + per_byte * (size + _drained(size, drain)) + 1e-6 for size in kept}
    while len(kept) > 3 and (LEAST + 1) * cost[kept[-1]] > left / len(kept):
        kept.pop()
    return [(size, min(MOST, max(LEAST, int(left / len(kept) / cost[size]) - 1))) for size in kept]


def sizes(drain: int) -> list[int]:
    """The messages to measure beside the shortest, in bytes: without those that a bucket could hold."""
    least = min(LARGE * drain, max(drain, MOST_BYTES))
    small, large = [one for one in SIZES[1:] if one < SMALL], [one for one in SIZES if one >= max(least, SMALL)]
    return small + (large if len(large) >= BEYOND else [least * times for times in range(1, BEYOND + 1)])


def line(samples: Samples) -> tuple[link_fit.Fit, Samples]:
    """The line through round trips is that of a message and a token: half of what it takes at 0 bytes is alpha.

    The samples become one-way times: a token's time is taken off.
    """
    found = link_fit.line((size, seconds) for size, seconds, _ in samples)
    alpha = found.alpha / 2
    one_way = [(size, max(seconds - alpha, seconds / 2), times) for size, seconds, times in samples]
    return link_fit.Fit(alpha, found.beta, found.r2), one_way


def _drained(size: int, drain: int) -> int:
    """A message that is shorter than a packet waits for no bucket."""
    return drain if size >= SMALL else 0


def _follow(wire: _Wire, peer: int) -> None:
    while True:
        size, times = wire.hear(peer)
        if size == _DONE:
            return
        wire.pong(peer, size, times)


class _Wire:
    """Messages to one peer, by size in bytes."""

    def __init__(self, device: torch.device, drain: int) -> None:
        self.drain = drain
        self._device = device
        self._early = device.type != "cuda"  # NCCL carries out the calls between two ranks one after the other
        self._buffer = torch.zeros(max(sizes(drain)), dtype=torch.uint8, device=device)
        self._token = torch.zeros(TOKEN, dtype=torch.uint8, device=device)

    def say(self, peer: int, size: int, times: int) -> None:
        dist.send(torch.tensor([size, times], device=self._device), peer)

    def hear(self, peer: int) -> tuple[int, int]:
        order = torch.zeros(2, dtype=torch.int64, device=self._device)
        dist.recv(order, peer)
        return int(order[0].item()), int(order[1].item())

    def ping(self, peer: int, size: int, times: int) -> list[float]:
        """Seconds of each round trip: ``size`` bytes there, a token back. One more, the first, is not counted."""
        self.say(peer, size, times + 1)
        drain, took = _drained(size, self.drain), []
        for _ in range(times + 1):
            if drain:
                _wait(dist.isend(self._buffer[:drain], peer))
            dist.recv(self._token, peer)  # the peer is ready: its receive is posted
            back = dist.irecv(self._token, peer) if self._early else None
            begin = time.monotonic()
            _wait(dist.isend(self._buffer[:size], peer))
            _wait(back or dist.irecv(self._token, peer))
            self._settle()
            took.append(time.monotonic() - begin)
        return took[1:]

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


def _agree(rank: int, world: int, device: torch.device, found: dict[int, Found], leaves: Sequence[int]) -> Link:
    table = torch.zeros(world, world, 4, dtype=torch.float64)
    for peer, one in found.items():
        row = [one.line.alpha, one.line.beta, one.line.r2, float(one.sure)]
        table[rank, peer] = torch.tensor(row, dtype=torch.float64)
    table = table.to(device)
    dist.all_reduce(table)
    fits = {pair: link_fit.Fit(*table[pair].tolist()[:3]) for turn in link_fit.rounds(world) for pair in turn}
    return judged(fits, tuple(sorted(pair for pair in fits if not table[pair][3].item())), found, leaves)


def judged(
    fits: Mapping[Pair, link_fit.Fit], unsure: tuple[Pair, ...], found: dict[int, Found], leaves: Sequence[int] = ()
) -> Link:
    """What all pairs say together. The beta is that of the ranks' own ports: of pairs behind one uplink, where there are any."""
    good = {pair: one for pair, one in fits.items() if pair not in unsure} or fits
    low, high = max(good, key=lambda pair: good[pair].beta)
    agreed = link_fit.agreed(list(good.values()))
    inner = [one for (a, b), one in good.items() if leaves and leaves[a] == leaves[b]]
    agreed = link_fit.Fit(agreed.alpha, link_fit.agreed(inner).beta if inner else agreed.beta, agreed.r2)
    return Link(agreed=agreed, worst=(low, high, good[low, high].beta), unsure=unsure, pairs=found)


def report(link: Link, rank: int, emit: Callable[..., None]) -> None:
    """The events of a probe."""
    for peer, found in link.pairs.items():
        one = found.line
        emit(
            "link.pair", peer=peer, alpha_s=one.alpha, beta_s_per_byte=one.beta, r2=one.r2, samples=found.samples,
            spread=found.spread, off=found.off, sure=found.sure,
        )  # fmt: skip
    if rank == 0:
        agreed = link.agreed
        emit(
            "link.fit", alpha_s=agreed.alpha, beta_s_per_byte=agreed.beta, worst=list(link.worst),
            unsure=[list(pair) for pair in link.unsure],
        )  # fmt: skip
