"""Figures over recorded nights, from the runs that their rows name: records for gates, and trends."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ...model.frozen import dataclass, field
from ..records import Key, Metric, Record
from ..run_record import Measurement, RunRecord, hosts_of, nodes_of, versions_of
from .entries import NightContent, Trend, TrendPoint


@dataclass(slots=True, kw_only=True)
class Figure:
    """A metric of a node in a night. ``values``: the medians of its passes; ``again``: of the second measurement; ``hosts``: of the
    nodes of its runs; ``suspects``: the versions of the last one.
    """

    night: NightContent
    trial: str
    node: str
    metric: Metric
    key: Key
    hosts: Mapping[str, str]
    suspects: Mapping[str, Mapping[str, str]]
    values: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    cells: set[str] = field(default_factory=set)

    @property
    def order(self) -> tuple[str, int, str, str, str, str]:
        metric = self.metric
        return self.night.bed, self.night.number, self.node, metric.name, metric.unit, metric.better

    def record(self) -> Record:
        return Record(
            night=self.night.number, node=self.node, metric=self.metric, key=self.key, values=tuple(self.values),
            again=tuple(self.again), date=self.night.started, suspects=versions_of(self.suspects, self.node), hosts=self.hosts,
        )  # fmt: skip

    def point(self) -> TrendPoint:
        value = statistics.median(self.values) if self.values else None
        return TrendPoint(
            night=self.night.number, name=self.night.name, date=self.night.started, node=self.node, value=value,
            values=tuple(self.values),
        )  # fmt: skip


def collect(
    runs: Iterable[tuple[NightContent, RunRecord]], is_wanted: Callable[[Measurement], bool] = lambda _: True
) -> list[Figure]:
    """The figures, in the order of nights, nodes and metrics. ``runs``: in the order of cells and repeats, with ``cell`` and ``again`` of
    their rows.

    A node that a new Slurm job moved to another host during a night has a figure for each host. A node that is measured again alone has
    another hardware, and a link another world: the second measurement belongs to the figure of its night, node, metric and workload.
    """
    figures: dict[tuple[Any, ...], Figure] = {}
    by_suspect: dict[tuple[Any, ...], Figure] = {}
    for night, run in sorted(runs, key=lambda item: item[1].again):
        hosts = hosts_of(run.suspects)
        for measurement in filter(is_wanted, run.measurements):
            node, metric, key = measurement.node, measurement.metric, measurement.key
            own = tuple(hosts.get(name, "") for name in nodes_of(node))
            identity = night.directory, node, metric.name, metric.unit, metric.better, key, own
            suspect = night.directory, node, metric.name, key.workload
            figure = figures.get(identity) or (by_suspect.get(suspect) if run.again else None)
            if figure is None and not run.again:
                figure = figures[identity] = by_suspect[suspect] = Figure(
                    night=night, trial=run.trial, node=node, metric=metric, key=key, hosts=hosts, suspects={}
                )
            if figure is not None:
                median = [statistics.median(measurement.values)] if measurement.values else []
                (figure.again if run.again else figure.values).extend(median)
                figure.cells.add(run.cell)
                figure.suspects = run.suspects
    return sorted(figures.values(), key=lambda figure: figure.order)


def trends(figures: Iterable[Figure]) -> tuple[Trend, ...]:
    """Points in the order of nights and nodes; the definition of a metric is that of the newest night."""

    def of(figure: Figure) -> tuple[str, ...]:
        return figure.night.bed, figure.trial, *figure.order[3:], str(figure.key)

    grouped = (list(group) for _, group in itertools.groupby(sorted(figures, key=of), key=of))
    return tuple(
        Trend(
            bed=members[-1].night.bed, trial=members[-1].trial, cells=tuple(sorted(set().union(*(figure.cells for figure in members)))),
            metric=members[-1].metric, key=members[-1].key, points=tuple(figure.point() for figure in members),
        )
        for members in grouped
    )  # fmt: skip


def clock_notes(nights: Iterable[NightContent]) -> Iterator[str]:
    """Two nights of a bed with one number, and a clock that went backwards. ``nights``: recorded ones, by bed and number."""
    for earlier, later in itertools.pairwise(nights):
        if earlier.bed != later.bed:
            continue
        bed = f"bed {later.bed}: "
        if earlier.number == later.number:
            yield f"{bed}{earlier.name} and {later.name} are both night {later.number}; the second counts"
        elif later.started < earlier.started:
            yield (
                f"{bed}the clock went backwards: night {later.number} began {later.started}, "
                f"night {earlier.number} {earlier.started}; nights count by their numbers"
            )
