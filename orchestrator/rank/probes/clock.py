"""Offset and drift of each node's clock against rank 0, by round trips of which the shortest counts, with its bound."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from ...model.events import ProbeFigure
from ...model.frozen import dataclass
from ..node_probe.probe_results import Fact, Missing, Node, Result

COLLECTIVE = True
ROUND_TRIPS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """Seconds that a clock is ahead of rank 0's, wrong by ``bound_s`` at most; ``at_s``: when, on this rank's monotonic clock."""

    offset_s: float
    bound_s: float
    at_s: float


def measure(node: Node) -> Iterator[Result]:
    """Offsets at the begin and at the end of a pause give the drift.

    With the times a (sent), b (received, replied at once) and c (back), the offset is b - (a + c) / 2, wrong by (c - a) / 2 at
    most (Cristian, Distributed Computing 3, 1989): the bound is half of the shortest round trip.
    """
    pause_s = node.params.repeats * node.params.repeat_s
    first = _offsets(node)
    dist.barrier()
    time.sleep(pause_s)
    second = _offsets(node)
    if node.rank == 0 or not first or not second:
        yield Fact(name="clock", text="the reference of the other nodes")
        return
    yield from figures(first, second, is_shared=0 in node.sharers)


def figures(first: list[Offset], second: list[Offset], *, is_shared: bool) -> Iterator[Result]:
    """Compare the offsets before and after the pause; the best of each counts. A drift below its own bound is not known."""
    begin, end = (min(offsets, key=lambda offset: offset.bound_s) for offsets in (first, second))
    yield Fact(name="clock", text=f"{end.offset_s * 1e6:+.1f} us against rank 0, within {end.bound_s * 1e6:.1f} us")
    yield ProbeFigure(name="clock offset bound", unit="s", better="lower", values=(begin.bound_s, end.bound_s))
    if is_shared:
        yield Missing(name="clock offset", reason="the node has the clock of rank 0's host")
        return
    yield ProbeFigure(name="clock offset", unit="s", better="lower", values=(abs(begin.offset_s), abs(end.offset_s)))
    drift, bound = drift_of(begin, end)
    if abs(drift) > bound:
        yield ProbeFigure(name="clock drift", unit="s/s", better="lower", values=(abs(drift),))
    else:
        yield Missing(name="clock drift", reason=f"below {bound:.1e} s/s, which is what the round trips can show")


def drift_of(begin: Offset, end: Offset) -> tuple[float, float]:
    """Seconds per second, and by how much that may be wrong."""
    passed_s = max(end.at_s - begin.at_s, 1e-9)
    return (end.offset_s - begin.offset_s) / passed_s, (begin.bound_s + end.bound_s) / passed_s


def _offsets(node: Node) -> list[Offset]:
    """Measure the offsets of this rank; rank 0 replies to one rank after the other."""
    offsets: list[Offset] = []
    for rank in range(1, node.world):
        if node.rank == 0:
            _reply(node, rank)
        elif node.rank == rank:
            offsets = [_round_trip(node, time.time) for _ in range(ROUND_TRIPS)]
        dist.barrier()
    return offsets


def _round_trip(node: Node, clock: Callable[[], float]) -> Offset:
    """Rank 0's time lies between the two times of this rank."""
    message = torch.zeros(1, dtype=torch.float64, device=node.device)
    sent = clock()
    dist.send(message, 0)
    dist.recv(message, 0)
    reference = float(message.item())
    received = clock()
    return Offset(
        offset_s=(sent + received) / 2 - reference, bound_s=(received - sent) / 2, at_s=time.monotonic()
    )  # fmt: skip


def _reply(node: Node, rank: int) -> None:
    message = torch.zeros(1, dtype=torch.float64, device=node.device)
    for _ in range(ROUND_TRIPS):
        dist.recv(message, rank)
        message[0] = time.time()
        dist.send(message, rank)
