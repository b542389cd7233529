"""The directions of links in a night: which are judged, and which part of the fabric explains those that are slow."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..classes import MetricClass
from ..night_judgement import Judged
from ..records import Record
from ..run_record import nodes_of
from ..statistics import pair_sweeps
from .figures import Series

if TYPE_CHECKING:
    from ..records import Flags

#: The directions of links with a rate: the time of a byte.
LINK = "link beta"


def between_hosts(series: Series, past: Sequence[Record]) -> tuple[Series, list[Record], str]:
    """The series and its past without directions between nodes of one host, which have no link; and why, empty if there are none."""

    def is_inside(label: str) -> bool:
        hosts = [series.link_hosts.get(node, "") for node in nodes_of(label)]
        return len(hosts) > 1 and hosts[0] != "" and hosts[0] == hosts[1]

    inside = [label for label in series.values if is_inside(label)]
    ends = {end: series.link_hosts[end.partition(":")[0]] for label in inside for end in label.split("->")}
    shared = pair_sweeps.describe_shared(pair_sweeps.shared_hosts(tuple(sorted(ends)), ends))
    reason = f"{series.metric.name}: not judged: {shared}" if inside else ""
    values = {label: values for label, values in series.values.items() if label not in inside}
    return dataclasses.replace(series, values=values), [record for record in past if not is_inside(record.node)], reason


def judge_pairs(series: Series, cells: Iterable[Judged], kind: MetricClass, apart: Collection[str]) -> Iterator[Judged]:
    """The parts that explain the slow directions between nodes that are no part of ``apart``.

    ``cells``: the figures of the night as the judge found them. Where it knows references of most directions, the others are left out;
    where not, each is compared with the others of this night.
    """
    import numpy as np

    healthy = [label for label in series.values if set(nodes_of(label)).isdisjoint(apart)]
    if not healthy:
        return
    identity = series.metric.name, series.key
    usual = {
        judged.finding.node: judged.compared.reference for judged in cells
        if judged.compared and judged.compared.nights and (judged.finding.metric, judged.key) == identity
    }  # fmt: skip
    known = [label for label in healthy if usual.get(label)]
    has_reference = 2 * len(known) > len(healthy)
    measured = {end for label in healthy for end in label.split("->")}
    silent = series.participants.difference(apart, *map(nodes_of, measured))
    nodes = tuple(sorted(measured | silent))
    place = {label: tuple(nodes.index(end) for end in label.split("->")) for label in healthy}
    sign = -series.metric.sign
    rates = np.full((len(nodes), len(nodes), max(1, *map(len, series.values.values()))), np.nan)
    reference, expected = np.full(rates.shape[:2], np.nan), _expected(series, nodes)
    for label in known if has_reference else healthy:
        values = series.values[label]
        rates[place[label]][: len(values)] = [value**sign if value > 0 else math.nan for value in values]
        reference[place[label]] = (usual.get(label) or math.nan) ** sign
    for label in set(healthy).difference(known) if has_reference else ():
        expected[place[label]] = False
    names = {node: node.partition(":")[0] for node in nodes}
    sweep = pair_sweeps.solve(
        rates, nodes, kind, {node: series.leaves.get(name, "") for node, name in names.items()}, reference if has_reference else None,
        {node: series.link_hosts.get(name, name) for node, name in names.items()}, expected,
    )  # fmt: skip
    finding = pair_sweeps.judge(sweep, series.metric.name)
    runs = tuple(dict.fromkeys(run for runs in series.runs.values() for run in runs))
    if finding.culprits and len(runs) < 2:
        finding = dataclasses.replace(finding, text=f"{finding.text}; one run, not confirmed by another")
    # Directions with a reference have limits of their own; without one, a sweep that cannot see a slow part leaves the night unknown.
    is_told = sweep.missing or sweep.unexplained or (sweep.is_wide and not has_reference)
    yield series.judged(
        finding, runs=runs, is_counted=finding.outcome != "unknown" or bool(is_told), unit="",
        reference="the same directions on earlier nights" if has_reference else "the other pairs of the same night",
    )  # fmt: skip


def _expected(series: Series, nodes: Sequence[str]) -> Flags:
    """Return (from x to) whether a run had both nodes, and so should have measured their link. A node without any run counts as in all."""
    import numpy as np

    runs: dict[str, set[str]] = {}
    for label, end in itertools.chain.from_iterable(
        ((label, end) for end in label.split("->")) for label in series.runs
    ):
        runs.setdefault(end, set()).update(series.runs[label])
    every = set().union(*runs.values())
    return np.array([[bool(runs.get(a, every) & runs.get(b, every)) for b in nodes] for a in nodes])
