"""Holds what the index and the gates read of a bundle: which run it is, its figures by node, and the versions it ran with."""

from __future__ import annotations

from collections.abc import Mapping

from ..model.frozen import dataclass, field
from .records import HOST, Key, Metric

#: The outcomes of runs whose figures count: the others ended before they had measured all.
MEASURED = ("pass", "fail", "unknown")
#: Figures of the probe of clocks. Rank 0 has the reference, so it has no offset; other ranks with its clock have the bound alone. A
#: drift that is smaller than what the round trips can show is no figure.
OFFSET, BOUND, DRIFT = "clock offset", "clock offset bound", "clock drift"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A metric of a node in a run. ``node``: empty for a figure of the whole gang, ``n2:3`` for local rank 3 of n2, ``n0->n1``
    for that direction of a link. ``values``: of its repeats, in their order.
    """

    node: str
    metric: Metric
    key: Key
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A bundle. ``started``: ISO 8601, UTC. ``outcome``: as `ccbed list runs` prints it. ``ttr_s``: time to recover of its first
    failover. ``night``: the name of the night it belongs to, else empty. ``suspects``: node -> driver, NCCL, torch, … -> version.
    ``hardware``: node that held ranks when it began -> its description, empty if not known; ``leaves``: node -> its switch
    group; ``link_hosts``: node -> its host, of nodes that use the link of their host, not a shaped one of their own.
    ``reference``: the node of rank 0 and those with its clock; ``rank_0``: as a measurement names it.
    ``names``: node -> its name in the night, of those that the night knows by another one. ``again``: a second measurement of a
    suspect. ``notes``: what was left out of it, and why.
    """

    run: str
    directory: str
    bed: str
    trial: str
    workload: str
    started: str
    outcome: str
    is_sealed: bool
    exit: int | None = None
    duration_s: float | None = None
    ttr_s: float | None = None
    night: str = ""
    cell: str = ""
    repeat: int = 0
    measurements: tuple[Measurement, ...] = ()
    hardware: Mapping[str, str] = field(default_factory=dict)
    leaves: Mapping[str, str] = field(default_factory=dict)
    link_hosts: Mapping[str, str] = field(default_factory=dict)
    reference: tuple[str, ...] = ()
    rank_0: str = ""
    suspects: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    again: bool = False
    notes: tuple[str, ...] = ()


def nodes_of(label: str) -> tuple[str, ...]:
    """The nodes of the ``node`` of a measurement."""
    return tuple(end.partition(":")[0] for end in label.split("->")) if label else ()


def hosts_of(suspects: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Node -> its host, of the nodes whose host is known."""
    return {node: versions[HOST] for node, versions in suspects.items() if versions.get(HOST)}


def versions_of(suspects: Mapping[str, Mapping[str, str]], label: str) -> dict[str, str]:
    """The versions behind a measurement: of its nodes, or of all nodes of a gang. Versions that differ are listed."""
    documents = [suspects.get(node, {}) for node in nodes_of(label)] or list(suspects.values())
    names = sorted({name for versions in documents for name in versions})
    return {name: ", ".join(sorted({versions[name] for versions in documents if name in versions})) for name in names}


def exempt(record: RunRecord, metric: str) -> tuple[str, ...]:
    """The nodes, or the rank as ``n0:0``, that may lack the metric by its definition."""
    may_lack = {OFFSET: record.reference, BOUND: (record.rank_0,), DRIFT: tuple(record.hardware)}
    return may_lack.get(metric, ())
