"""The expected cost of a case: by the algorithm's formula, or by its schedule for uneven blocks and shared uplinks.

Formulas are for equal blocks on a fabric in which only the ports of the ranks are limits. With uneven shares, or behind
uplinks that several ranks share, the schedule is followed slot by slot: a message passes when both its ends have reached it,
and a slot lasts as long as its busiest port or uplink. Pure, without torch.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ...model import algorithm as model
from ...model.bed import LinkSpec
from ...model.schedule import Cost, Schedule
from ..exchange import case_layout
from . import cases

#: (from, to, elements), by global rank
Message = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Uplinks:
    """``groups``: the uplink of each rank; ``slower``: time per byte of an uplink in units of the beta of the links."""

    groups: tuple[int, ...]
    slower: float

    def load(self, slot: Sequence[Message]) -> float:
        """The load of the busiest uplink, in elements that a port passes in the same time."""
        crossing = [message for message in slot if self.groups[message[0]] != self.groups[message[1]]]
        return self.slower * _busiest((self.groups[a], self.groups[b], size) for a, b, size in crossing)


def uplinks(link: LinkSpec | None, leaves: Sequence[int], beta: float = 0.0) -> Uplinks | None:
    """The uplinks between ranks on the switches ``leaves``; None if all are on one switch, or the uplinks are not known.

    ``beta``: of the ports, from the probe, for ports that are not shaped; 0: not probed.
    """
    if link is None or not link.uplink or len(set(leaves)) < 2:
        return None
    slower = link.rate / link.uplink if link.rate else 8 / link.uplink / beta if beta > 0 else 0.0
    return Uplinks(groups=tuple(leaves), slower=slower)


def cost(case: cases.Case, algorithm: model.Chosen, tiers: Uplinks | None = None) -> Cost:
    """The cost by the algorithm's formula, corrected for uneven blocks and for ``tiers``."""
    formula = algorithm.cost(case.item.operation, case.ranks)
    uneven = len(set(case.item.shares)) > 1
    if not uneven and tiers is None:
        return formula
    slots = tuple(_slots(case, algorithm))
    ports = [_busiest(slot) for slot in slots]
    lasting = [max(port, tiers.load(slot)) for port, slot in zip(ports, slots, strict=True)] if tiers else ports
    base = sum(ports) / case.count if uneven and case.count else formula.volume
    return Cost(formula.rounds, base + (sum(lasting) - sum(ports)) / max(case.count, 1))


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


def _busiest(slot: Sequence[Message] | Iterator[Message]) -> int:
    """Elements through the busiest port, which sends and receives at the same time."""
    out, into = Counter[int](), Counter[int]()
    for source, target, size in slot:
        out[source] += size
        into[target] += size
    return max([*out.values(), *into.values()], default=0)


def _slots(case: cases.Case, algorithm: model.Chosen) -> Iterator[list[Message]]:
    """The messages of all groups that pass at the same time, slot by slot."""
    walks = [_Walk(case, algorithm, group) for group in case.groups]
    while slot := [message for walk in walks for message in walk.slot()]:
        yield slot


class _Walk:
    """Follows the ranks of one group through their schedules."""

    def __init__(self, case: cases.Case, algorithm: model.Chosen, ranks: Sequence[int]) -> None:
        operation, root = case.item.operation, case.item.root
        count = algorithm.chunks(operation, case.ranks)
        self._ranks = ranks
        self._steps: list[Schedule] = []
        self._sizes: list[list[int]] = []
        for me in range(len(ranks)):
            self._steps.append(algorithm.schedule(operation, me, case.ranks, root))
            parts = case_layout.layout(case, ranks, me, count).parts
            self._sizes.append([stop - start for start, stop in parts])
        self._position = [0] * len(ranks)
        self._sent: dict[tuple[int, int], list[int]] = defaultdict(list)
        self._due = [Counter[int]() for _ in ranks]
        self._enter(range(len(ranks)))

    def slot(self) -> list[Message]:
        """The messages that pass next: their sender and receiver have reached them. Empty: the schedules are complete."""
        passed: list[Message] = []
        for (source, target), sizes in self._sent.items():
            while sizes and self._due[target][source]:
                self._due[target][source] -= 1
                passed.append((self._ranks[source], self._ranks[target], sizes.pop(0)))
        self._enter([me for me in range(len(self._ranks)) if self._has_completed(me)])
        return passed

    def _has_completed(self, me: int) -> bool:
        if self._position[me] > len(self._steps[me]):
            return False
        waiting = any(sizes for (source, _), sizes in self._sent.items() if source == me)
        return not waiting and not self._due[me].total()

    def _enter(self, ranks: Sequence[int]) -> None:
        """Advance to the next step that has messages."""
        for me in ranks:
            while self._position[me] < len(self._steps[me]):
                step = self._steps[me][self._position[me]]
                self._position[me] += 1
                for send in step.sends:
                    self._sent[me, send.peer].append(sum(self._sizes[me][chunk] for chunk in send.chunks))
                self._due[me].update(recv.peer for recv in step.recvs)
                if step.sends or step.recvs:
                    break
