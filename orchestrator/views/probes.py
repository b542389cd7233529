"""Gathers what the probes of nodes measured: figures by node, with their medians and spreads, facts, and what is missing."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..model.event import Event, History
from ..model.events import ProbeDone
from ..model.frozen import dataclass
from . import json_values


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigure:
    """A figure of a node (``n2:3``: of its local rank 3). ``repeats``: the finite values, in order.

    ``ceiling``: the best possible value, None if it is not known.
    """

    node: str
    rank: int
    probe: str
    name: str
    unit: str
    better: str
    repeats: tuple[float, ...]
    ceiling: float | None = None

    @property
    def median(self) -> float:
        return json_values.median(self.repeats)

    @property
    def spread(self) -> float | None:
        """Half of the range of the repeats over their median; None for a single repeat, and where the median is 0."""
        if len(self.repeats) < 2 or not self.median:
            return None
        return (max(self.repeats) - min(self.repeats)) / 2 / abs(self.median)

    @property
    def exceeds_ceiling(self) -> bool:
        """Return whether the median is better than what is possible, by more than the resolution of a clock."""
        if self.ceiling is None:
            return False
        return self.median > 1.02 * self.ceiling if self.better == "higher" else self.median < 0.98 * self.ceiling


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureRow:
    """A figure of all nodes, in their order. ``spread``: the range of the nodes' medians over their median."""

    name: str
    unit: str
    better: str
    nodes: tuple[NodeFigure, ...]

    @property
    def median(self) -> float:
        return json_values.median(figure.median for figure in self.nodes)

    @property
    def spread(self) -> float | None:
        medians = [figure.median for figure in self.nodes]
        return (max(medians) - min(medians)) / abs(self.median) if len(medians) > 1 and self.median else None

    @property
    def worst(self) -> NodeFigure:
        pick = min if self.better == "higher" else max
        return pick(self.nodes, key=lambda figure: figure.median)


def ends(history: History) -> tuple[Event[ProbeDone], ...]:
    """The ends of the probes of the last attempt that has any, by rank."""
    events = history.of(ProbeDone)
    last = max((event.epoch or 0 for event in events), default=0)
    return tuple(sorted((event for event in events if (event.epoch or 0) == last), key=lambda event: event.data.rank))


def figures(history: History) -> tuple[NodeFigure, ...]:
    """Return the figures in the order of the probes, then of the ranks."""
    labels = node_labels(history)
    return tuple(figure for event in ends(history) for figure in _figures(event, labels[event.data.rank]))


def rows(history: History) -> tuple[FigureRow, ...]:
    """Group the figures by name, in the order in which they were first measured."""
    by_name: dict[str, list[NodeFigure]] = {}
    for figure in figures(history):
        by_name.setdefault(figure.name, []).append(figure)
    return tuple(
        FigureRow(name=name, unit=nodes[0].unit, better=nodes[0].better, nodes=tuple(nodes))
        for name, nodes in by_name.items()
    )


def missing(history: History) -> dict[tuple[str, str], tuple[str, ...]]:
    """(what could not be read, why) -> nodes."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for event in ends(history):
        for name, reason in (event.data.missing or {}).items():
            nodes.setdefault((name, reason), []).append(event.node or "")
    return {what: tuple(dict.fromkeys(names)) for what, names in nodes.items()}


def node_labels(history: History) -> dict[int, str]:
    """rank -> its node, or ``n2:3`` for local rank 3 of n2, if a node has several ranks."""
    ranks: dict[str, list[int]] = {}
    for event in ends(history):
        own = ranks.setdefault(event.node or "", [])
        if event.data.rank not in own:
            own.append(event.data.rank)
    has_several = any(len(own) > 1 for own in ranks.values())
    return {
        rank: f"{node}:{local}" if has_several else node
        for node, own in ranks.items()
        for local, rank in enumerate(sorted(own))
    }


def _figures(event: Event[ProbeDone], label: str) -> Iterator[NodeFigure]:
    for figure in event.data.figures or ():
        repeats = tuple(
            value for item in figure.values if (value := json_values.number(item)) is not None and math.isfinite(value)
        )
        if repeats:
            yield NodeFigure(
                node=label, rank=event.data.rank, probe=event.data.probe, name=figure.name, unit=figure.unit,
                better=figure.better, repeats=repeats, ceiling=json_values.number(figure.ceiling),
            )  # fmt: skip
