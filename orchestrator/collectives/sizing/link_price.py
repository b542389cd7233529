"""Cost of a collective on a link with a rate and a latency, by the cost model in the algorithm's file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ...core.spec import written_values
from ...model import algorithm as algorithms
from ...model.frozen import dataclass
from ...model.schedule import Cost
from ..rank import link_fit
from .traffic import Collective

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(bit|bits|b|B)(?:/s|ps)?")
_FACTOR = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
#: The cost of a send-recv of a pipeline with any algorithm: one message in one direction.
_MESSAGE = Cost(1, 1)
#: Used if the requested algorithm does not support an operation: the first that supports it, else the cheapest.
_DEFAULTS = ("ring", "pairwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """``rate`` in bits/s per direction; ``alpha``: seconds until a message starts to arrive; ``text``: as the user wrote it.

    ``payload``: the share of the rate that carries data, the rest are headers.
    """

    rate: float
    alpha: float
    text: str
    payload: float = 1.0

    @property
    def beta(self) -> float:
        """Seconds per byte of data."""
        return 8 / (self.rate * self.payload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """``algorithm``: its label; ``seconds`` of one collective, None without a link."""

    algorithm: str
    rounds: float
    volume: float
    seconds: float | None


def parse_link(text: str) -> Link:
    """Parse ``100mbit,50us``: rate, and start-up time of a message (default 0). Raises ValueError.

    Bits are those on an Ethernet, with headers; bytes (12.5GB/s) are those of the data.
    """
    rate, _, delay = (part.strip() for part in text.partition(","))
    match = _RATE.fullmatch(rate)
    if not match or float(match[1]) == 0:
        raise ValueError(f"--link: must be RATE,LATENCY such as 100mbit,50us or 12.5GB/s,5us (got {text!r})")
    try:
        alpha = written_values.seconds(delay) if delay else 0.0
    except ValueError as error:
        raise ValueError(f"--link: latency {error} (got {delay!r})") from None
    bits, payload = (8, 1.0) if match[3] == "B" else (1, link_fit.PAYLOAD / link_fit.FRAME)
    return Link(rate=float(match[1]) * _FACTOR[match[2].lower()] * bits, alpha=alpha, text=text, payload=payload)


class Prices:
    """Prices by the algorithms of a catalogue. ``requested``: a name from the user, ``auto``, or None."""

    def __init__(self, modules: Mapping[str, Any], requested: str | None) -> None:
        """Raises ValueError for an algorithm that does not exist, or parameters that it does not have."""
        self._modules = modules
        self._requested = None if requested in (None, algorithms.AUTO) else self._choose(requested or "")
        self._is_auto = requested == algorithms.AUTO

    def of(self, collective: Collective, link: Link | None) -> Price | None:
        """The algorithm for a collective and its cost; None if no algorithm of the catalogue supports it."""
        candidates = self._candidates(collective)
        prices = [
            _price(choice.label, choice.cost(collective.operation, collective.ranks), collective, link)
            for choice in candidates
        ]
        if collective.operation == "send-recv":
            cheapest = min(prices, key=lambda price: price.volume, default=None)
            return _price(cheapest.algorithm if cheapest else algorithms.LIBRARY, _MESSAGE, collective, link)
        return min(prices, key=lambda price: (price.seconds or 0, price.volume), default=None)

    def _candidates(self, collective: Collective) -> list[algorithms.Chosen]:
        """The requested algorithm, else the default, else all that support the collective."""
        if self._requested and not self._requested.refuses(collective.operation, collective.ranks):
            return [self._requested]
        able = [algorithms.choose(name, module) for name, module in self._modules.items()]
        able = [choice for choice in able if not choice.refuses(collective.operation, collective.ranks)]
        defaults = [choice for name in _DEFAULTS for choice in able if choice.name == name]
        return able if self._is_auto or not defaults else defaults[:1]

    def _choose(self, text: str) -> algorithms.Chosen:
        name, _ = algorithms.parse(text)
        if name not in self._modules:
            raise ValueError(f"--algorithm: unknown algorithm {name}; {written_values.nearest(name, self._modules)}")
        return algorithms.choose(text, self._modules[name])

    def find_problem(self, collectives: tuple[Collective, ...]) -> str:
        """Return why the requested algorithm supports none of ``collectives``; empty if it supports one, or none was requested."""
        if not self._requested or not collectives:
            return ""
        reasons = [self._requested.refuses(collective.operation, collective.ranks) for collective in collectives]
        return "" if not all(reasons) else f"--algorithm: {reasons[0]}"


def _price(label: str, cost: Cost, collective: Collective, link: Link | None) -> Price:
    seconds = cost.seconds(collective.size, link.alpha, link.beta) if link else None
    return Price(algorithm=label, rounds=cost.rounds, volume=cost.volume, seconds=seconds)
