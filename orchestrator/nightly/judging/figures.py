"""The figures of a night: its run records as one series for each metric and key, with the runs that they rest on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ...model.frozen import dataclass, field, replace
from ..night_judgement import Judged
from ..records import Finding, Key, Metric, Record
from ..run_record import MEASURED, RunRecord, exempt, nodes_of, versions_of

#: Metrics that are judged without being named in a suite or a baseline, by their last words.
JUDGED = ("busbw", "time p50", "ttr", "train_s", "images_per_s", "link beta")
#: The workload whose figures are all judged, but for those of the run as a whole.
NODE_PROBE, OF_RUN = "node-probe", ("duration", "goodput")


@dataclass(slots=True)
class Series:
    """A metric and key tonight. ``values``: node -> of all repeats; ``again``: of the second measurement; ``runs``: node ->
    bundles; ``participants``: nodes of its hardware in the
    runs that can have it; of a gang's figure all nodes. ``exempt``: those that cannot, see ``run_record.exempt``.
    """

    metric: Metric
    key: Key
    values: dict[str, list[float]] = field(default_factory=dict)
    again: dict[str, list[float]] = field(default_factory=dict)
    runs: dict[str, list[str]] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)
    link_hosts: dict[str, str] = field(default_factory=dict)
    cells: list[str] = field(default_factory=list)
    trials: list[str] = field(default_factory=list)
    participants: set[str] = field(default_factory=set)
    exempt: set[str] = field(default_factory=set)

    def records(self, night: int, date: str) -> tuple[Record, ...]:
        return tuple(
            Record(
                night=night, node=node, metric=self.metric, key=self.key, values=tuple(values), date=date,
                suspects=self.versions[node], again=tuple(self.again.get(node, ())),
            )
            for node, values in sorted(self.values.items())
        )  # fmt: skip

    def judged(self, finding: Finding, **more: Any) -> Judged:
        """A finding on one of its labels, or on all of it, in its place. ``more``: fields that differ."""
        label = finding.node
        values = (
            [value for value in self.values.get(label or "", ()) if math.isfinite(value)] if label is not None else []
        )
        runs = [self.runs.get(label, [])] if label is not None else self.runs.values()
        judged = Judged(
            finding=finding, state=finding.outcome, cell=self.cells[0] if self.cells else "", key=self.key, unit=self.metric.unit,
            value=statistics.median(values) if values else None, runs=tuple(dict.fromkeys(run for names in runs for run in names)),
        )  # fmt: skip
        return replace(judged, **more)

    def takes_part(self, node: str) -> bool:
        return set(nodes_of(node)) <= self.participants


def is_judged(name: str, key: Key) -> bool:
    """Return whether a figure is judged by default: those of node probes, of other runs the rates, the medians and the time to recover."""
    if key.workload == NODE_PROBE:
        return name not in OF_RUN
    return any(f" {name}".endswith(f" {ending}") for ending in JUDGED)


def collect(runs: Iterable[tuple[str, RunRecord]]) -> dict[tuple[str, Key], Series]:
    """The series of a night, in the order of names and keys. ``runs``: cell and record, in the order of cells and repeats.

    Figures of a run that broke or was interrupted are no evidence. A node that is measured again has its host alone, and so another
    key: the second measurement belongs to the figure of its cell, name and node.
    """
    series: dict[tuple[str, Key], Series] = {}
    evidence = [(cell, record) for cell, record in runs if record.outcome in MEASURED]
    for cell, record in evidence:
        if record.again:
            continue
        for measurement in record.measurements:
            identity = measurement.metric.name, measurement.key
            entry = series.setdefault(identity, Series(measurement.metric, measurement.key))
            entry.values.setdefault(measurement.node, []).extend(measurement.values)
            entry.runs.setdefault(measurement.node, []).append(record.run)
            entry.versions[measurement.node] = versions_of(record.suspects, measurement.node)
            equal_nodes = {node for node, hardware in record.hardware.items() if hardware == measurement.key.hardware}
            excluded = set(exempt(record, measurement.metric.name))
            entry.participants |= (equal_nodes or set(record.hardware)) - excluded
            entry.exempt |= excluded
            entry.leaves.update(record.leaves)
            entry.link_hosts.update(record.link_hosts)
            entry.cells += [cell] if cell not in entry.cells else []
            entry.trials += [record.trial] if record.trial not in entry.trials else []
    for cell, record in evidence:
        for measurement in record.measurements if record.again else ():
            for (name, _), entry in series.items():
                if name == measurement.metric.name and cell in entry.cells and measurement.node in entry.values:
                    entry.again.setdefault(measurement.node, []).extend(measurement.values)
                    entry.runs[measurement.node].append(record.run)
    return dict(sorted(series.items(), key=lambda item: (item[0][0], str(item[0][1]))))


def group(records: Iterable[Record]) -> Mapping[tuple[str, Key], list[Record]]:
    """The records by metric and key, in the order of nights and nodes."""
    groups: dict[tuple[str, Key], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.night, record.node)):
        groups.setdefault((record.metric.name, record.key), []).append(record)
    return groups
