"""The figures of a night: its run records as one series for each metric and key, with the runs that they rest on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ...model.frozen import dataclass, field
from ..gates.nights import Key, Metric, Record
from ..run_record import MEASURED, Measurement, RunRecord, exempt, nodes_of, versions_of

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

    def takes_part(self, node: str) -> bool:
        return set(nodes_of(node)) <= self.participants


def is_judged(name: str, key: Key) -> bool:
    """By default: the figures of node probes, and of other runs the rates, the medians and the time to recover."""
    if key.workload == NODE_PROBE:
        return name not in OF_RUN
    return any(f" {name}".endswith(f" {ending}") for ending in JUDGED)


def collect(runs: Iterable[tuple[str, RunRecord]]) -> dict[tuple[str, Key], Series]:
    """The series of a night, in the order of names and keys. ``runs``: cell and record, in the order of cells and repeats.

    Figures of a run that broke or was interrupted are no evidence.
    """
    series: dict[tuple[str, Key], Series] = {}
    for cell, record in sorted(runs, key=lambda run: run[1].again):
        if record.outcome not in MEASURED:
            continue
        for measurement in record.measurements:
            identity = measurement.metric.name, measurement.key
            if record.again:
                entry = _suspect(series.values(), measurement)
                if entry is None:
                    continue
                entry.again.setdefault(measurement.node, []).extend(measurement.values)
                entry.runs.setdefault(measurement.node, []).append(record.run)
                continue
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
    return dict(sorted(series.items(), key=lambda item: (item[0][0], str(item[0][1]))))


def _suspect(series: Iterable[Series], measurement: Measurement) -> Series | None:
    """What a second measurement is one of. Alone on its host a node has another hardware, and a link another world."""
    matches = [
        entry for entry in series
        if entry.metric.name == measurement.metric.name and entry.key.workload == measurement.key.workload
        and measurement.node in entry.values
    ]  # fmt: skip
    return next((entry for entry in matches if entry.key == measurement.key), matches[0] if matches else None)


def group(records: Iterable[Record]) -> Mapping[tuple[str, Key], list[Record]]:
    """The records by metric and key, in the order of nights and nodes."""
    groups: dict[tuple[str, Key], list[Record]] = {}
    for record in sorted(records, key=lambda record: (record.night, record.node)):
        groups.setdefault((record.metric.name, record.key), []).append(record)
    return groups
