"""What a collective takes on a link of a rate and a latency, by the cost model of an algorithm's own file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...model import algorithm as algorithms
from ...model.schedule import Cost
from ..spec import values
from .traffic import Collective

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgtKMGT]?)(bit|bits|b|B)(?:/s|ps)?")
_FACTOR = {"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
#: One message, one way: what a send-recv of a pipeline costs, whatever carries it out.
_MESSAGE = Cost(1, 1)
#: What is taken where the algorithm that was asked for does not do an operation: the first that does, else the cheapest.
_USUAL = ("ring", "pairwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """``rate`` in bits/s per direction; ``alpha``: seconds until a message starts to arrive; ``text``: as it was given."""

    rate: float
    alpha: float
    text: str

    @property
    def beta(self) -> float:
        """Seconds per byte."""
        return 8 / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """``algorithm``: whose cost it is; ``seconds`` of one collective, None where no link is given."""

    algorithm: str
    rounds: float
    volume: float
    seconds: float | None


def link(text: str) -> Link:
    """``100mbit,50us``: rate, and start-up time of a message (0 where it is left out). Raises ValueError."""
    rate, _, delay = (part.strip() for part in text.partition(","))
    match = _RATE.fullmatch(rate)
    if not match or float(match[1]) == 0:
        raise ValueError(f"--link: must be RATE,LATENCY such as 100mbit,50us or 12.5GB/s,5us (got {text!r})")
    try:
        alpha = values.seconds(delay) if delay else 0.0
    except ValueError as error:
        raise ValueError(f"--link: latency {error} (got {delay!r})") from None
    bits = 8 if match[3] == "B" else 1
    return Link(rate=float(match[1]) * _FACTOR[match[2].lower()] * bits, alpha=alpha, text=text)


class Prices:
    """The algorithms of a catalogue, asked by name. ``wanted``: the name that the user chose, ``auto``, or nothing."""

    def __init__(self, modules: Mapping[str, Any], wanted: str | None) -> None:
        """Raises ValueError for an algorithm that does not exist, or parameters that it does not have."""
        self._modules = modules
        self._wanted = None if wanted in (None, algorithms.AUTO) else self._chosen(wanted or "")
        self._auto = wanted == algorithms.AUTO

    def of(self, one: Collective, link: Link | None) -> Price | None:
        """The algorithm for one collective and what it takes; None where none here does it."""
        found = self._candidates(one)
        prices = [_price(choice.label, choice.cost(one.operation, one.ranks), one, link) for choice in found]
        if one.operation == "send-recv":
            cheapest = min(prices, key=lambda price: price.volume, default=None)
            return _price(cheapest.algorithm if cheapest else algorithms.LIBRARY, _MESSAGE, one, link)
        return min(prices, key=lambda price: (price.seconds or 0, price.volume), default=None)

    def _candidates(self, one: Collective) -> list[algorithms.Chosen]:
        """Whose cost is asked: the wanted one, else the usual one, else all that can."""
        if self._wanted and not self._wanted.refuses(one.operation, one.ranks):
            return [self._wanted]
        able = [algorithms.choose(name, module) for name, module in self._modules.items()]
        able = [choice for choice in able if not choice.refuses(one.operation, one.ranks)]
        usual = [choice for name in _USUAL for choice in able if choice.name == name]
        return able if self._auto or not usual else usual[:1]

    def _chosen(self, text: str) -> algorithms.Chosen:
        name, _ = algorithms.parse(text)
        if name not in self._modules:
            raise ValueError(f"--algorithm: no algorithm {name}; {values.nearest(name, self._modules)}")
        return algorithms.choose(text, self._modules[name])

    def refused(self, found: tuple[Collective, ...]) -> str:
        """Why the wanted algorithm does none of ``found``; empty: it does one, or none was wanted."""
        if not self._wanted or not found:
            return ""
        reasons = [self._wanted.refuses(one.operation, one.ranks) for one in found]
        return "" if not all(reasons) else f"--algorithm: {reasons[0]}"


def _price(label: str, cost: Cost, one: Collective, link: Link | None) -> Price:
    seconds = cost.seconds(one.size, link.alpha, link.beta) if link else None
    return Price(algorithm=label, rounds=cost.rounds, volume=cost.volume, seconds=seconds)
