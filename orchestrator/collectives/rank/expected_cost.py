"""The expected cost of a case: its schedule is played on the ports and uplinks of the ranks. Pure, without torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ...model import algorithm as model
from ...model.bed import LinkSpec
from ...model.frozen import dataclass
from ...model.schedule import Cost
from ...rank.exchange import case_layout, cases
from . import link_fit, simulation

#: (from, to, elements), by global rank
Message = tuple[int, int, int]
#: Where the links were not probed: a byte takes one unit of time.
UNPROBED = link_fit.Fit(0.0, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplinks:
    """``groups``: the uplink of each rank; ``slower``: time per byte of an uplink in units of the beta of the links."""

    groups: tuple[int, ...]
    slower: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Duration:
    """``seconds`` of all iterations of a measurement; None if the links were not probed. ``uncosted``: cases that are left out.
    ``by_case``: the seconds of each."""

    seconds: float | None
    uncosted: int
    by_case: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Overhead:
    """The cost of an iteration beside the collective: barriers, the transfer that empties buckets, filling and checking."""

    warmup: int
    barrier_s: float
    drain_s: float
    check_s_per_byte: float


def duration(
    planned: Sequence[cases.Case], costs: Sequence[Cost | None], link: link_fit.Fit | None, overhead: Overhead
) -> Duration:
    """A case without a cost (the backend's own algorithm) takes as long as the fastest with the same operation and size.

    Alpha is at least what a round of a barrier takes: on a busy machine ranks wait for a CPU at each message. A sequence also
    has its gaps.
    """
    if link is None:
        return Duration(seconds=None, uncosted=0)
    known: dict[tuple[str, int], float] = {}
    seconds = [
        _seconds(case, cost_, link, overhead) if cost_ else None for case, cost_ in zip(planned, costs, strict=True)
    ]
    for case, own in zip(planned, seconds, strict=True):
        if own is not None:
            known[_key(case)] = min(own, known.get(_key(case), own))
    by_case, uncosted = [], 0
    for case, own in zip(planned, seconds, strict=True):
        time = known.get(_key(case)) if own is None else own
        uncosted += time is None
        extra = 2 * overhead.barrier_s + overhead.drain_s + overhead.check_s_per_byte * case.item.bytes
        by_case.append(
            (case.item.trials + max(1, overhead.warmup)) * ((time or 0.0) + extra) + sum(case.item.gaps) / 1e3
        )
    return Duration(seconds=sum(by_case), uncosted=uncosted, by_case=tuple(by_case))


def _seconds(case: cases.Case, cost_: Cost, link: link_fit.Fit, overhead: Overhead) -> float:
    alpha = max(link.alpha, startup_s(case, overhead.barrier_s))
    return cost_.seconds(case.item.bytes, alpha, link.beta)


def startup_s(case: cases.Case, barrier_s: float) -> float:
    """Seconds of a start-up on a busy machine: of a round of a barrier that takes ``barrier_s``."""
    return barrier_s / max(1, (case.ranks - 1).bit_length())


def _key(case: cases.Case) -> tuple[str, int]:
    return case.item.operation, case.item.bytes


def uplinks(link: LinkSpec | None, leaves: Sequence[int], beta: float = 0.0) -> Uplinks | None:
    """The uplinks between ranks on the switches ``leaves``; None if all are on one switch, or the uplinks are not known.

    ``beta``: of the ports, from the probe, for ports that are not shaped; 0: not probed.
    """
    if link is None or not link.uplink or len(set(leaves)) < 2:
        return None
    slower = link.rate / link.uplink if link.rate else 8 / link.uplink / beta if beta > 0 else 0.0
    return Uplinks(groups=tuple(leaves), slower=slower)


def cost(
    case: cases.Case,
    algorithm: model.Chosen,
    tiers: Uplinks | None = None,
    link: link_fit.Fit | None = None,
    combining: float = 0.0,
) -> Cost:
    """The start-ups of the slowest rank and its volume, so that Cost.seconds is the time at which it has completed its schedule.

    ``link``: alpha and beta; ``combining``: seconds per byte that a rank combines. Where the links were not probed, the start-ups
    are those of the algorithm's formula.
    """
    formula = algorithm.cost(case.item.operation, case.ranks)
    fit = link if link and link.beta > 0 else UNPROBED
    end = simulation.play(
        [program for ranks in case.groups for program in _programs(case, algorithm, ranks)],
        simulation.Fabric(
            alpha=fit.alpha, beta=fit.beta, gamma=combining, leaves=tiers.groups if tiers else (),
            uplink=tiers.slower * fit.beta if tiers else 0.0,
        ),
    )  # fmt: skip
    rounds = end.startups if fit is link else formula.rounds
    payload = max(end.seconds - end.startups * fit.alpha, 0.0) / fit.beta
    return Cost(rounds, payload / case.item.bytes if case.item.bytes else 0.0)


def port_bytes(case: cases.Case, algorithm: model.Chosen, ports: Sequence[int]) -> int:
    """Payload bytes that the schedule sends through the busiest port in one direction. ``ports``: the port of each rank."""
    sent, received = Counter[int](), Counter[int]()
    for ranks in case.groups:
        for source, target, size in _messages(case, algorithm, ranks):
            if ports[source] != ports[target]:
                sent[ports[source]] += size
                received[ports[target]] += size
    return max([*sent.values(), *received.values()], default=0) * cases.DTYPES[case.item.dtype]


def _messages(case: cases.Case, algorithm: model.Chosen, ranks: Sequence[int]) -> Iterator[Message]:
    operation, root = case.item.operation, case.item.root
    count = algorithm.chunks(operation, case.ranks)
    for me, rank in enumerate(ranks):
        sizes = [stop - start for start, stop in case_layout.layout(case, ranks, me, count).parts]
        for step in algorithm.schedule(operation, me, case.ranks, root):
            for send in step.sends:
                yield rank, ranks[send.peer], sum(sizes[chunk] for chunk in send.chunks)


def _programs(case: cases.Case, algorithm: model.Chosen, ranks: Sequence[int]) -> Iterator[simulation.Program]:
    """Chunks of equal shares have one size, so that ranks that do the same do it at the same moment."""
    operation, root, width = case.item.operation, case.item.root, cases.DTYPES[case.item.dtype]
    count = algorithm.chunks(operation, case.ranks)
    is_even = len(set(case.item.shares)) < 2
    for me, rank in enumerate(ranks):
        parts = case_layout.layout(case, ranks, me, count).parts
        sizes = [(stop - start) * width for start, stop in parts]
        yield simulation.Program(
            rank=rank,
            peers=ranks,
            schedule=algorithm.schedule(operation, me, case.ranks, root),
            sizes=[sum(sizes) / len(sizes)] * len(sizes) if is_even and sizes else sizes,
        )
