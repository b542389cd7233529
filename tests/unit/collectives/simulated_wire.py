"""A simulator of trains of messages over a shaped link, between processes that do not run now and then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.collectives.rank import link_probe

#: Payload of a packet; bytes of a message that its sender may hand over before they leave; what the bucket holds.
PACKET, UNSENT, BURST = 1448, 32768, 32768
#: What ``link_probe.plan`` makes of a link of 100 Mbit/s.
TRAIN = link_probe.Train(size=16384, count=24, lead=49152)
Stop = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Wire:
    """A link of ``beta`` seconds per byte. Sender and receiver stop after ``runs_s`` for ``stops_s``, both on average.

    While its sender is stopped the link falls idle, and its bucket fills up. A receiver that was stopped notes what arrived
    in the meantime late.
    """

    beta: float
    runs_s: float
    stops_s: float
    train: link_probe.Train = TRAIN

    def arrivals(self, draw: random.Random) -> list[float]:
        """Seconds of each message since that of the first one."""
        sender, receiver = self._stops(draw), self._stops(draw)
        left = self._departures(sender)
        times, now = [], 0.0
        for number in range(self.train.count + 1):
            packets = -(-(self.train.lead + self.train.size * number) // PACKET)
            now = _running(max(left[packets - 1], now), receiver) + draw.uniform(0, 2e-5)
            times.append(now)
        return [seconds - times[0] for seconds in times]

    def _stops(self, draw: random.Random) -> list[Stop]:
        stops, now = [], 0.0
        while now < 0.3:
            begin = now + draw.expovariate(1 / self.runs_s)
            now = begin + draw.expovariate(1 / self.stops_s)
            stops.append((begin, now))
        return stops

    def _departures(self, stops: Sequence[Stop]) -> list[float]:
        """When each packet has left the bucket."""
        total, behind = self.train.lead + self.train.size * self.train.count, UNSENT // PACKET
        left: list[float] = []
        tokens, last = float(BURST), 0.0
        for packet in range(-(-total // PACKET)):
            sent = _running(left[packet - behind] if packet >= behind else 0.0, stops)
            now = max(sent, last)
            tokens = min(BURST, tokens + (now - last) / self.beta)
            wait = max(0.0, (PACKET - tokens) * self.beta)
            tokens, last = max(tokens, PACKET) - PACKET, now + wait
            left.append(last)
        return left


def _running(now: float, stops: Sequence[Stop]) -> float:
    """The first moment from ``now`` on at which the process runs."""
    return next((end for begin, end in stops if begin <= now < end), now)
