"""The directions of links in a night: which are judged, and pair sweeps, solved for culprits."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..gates import pairs
from ..gates.nights import Record
from ..judge import REFERENCE_NIGHTS
from ..night_judgement import Judged
from .figures import Series
from .known_defects import QUARANTINE

if TYPE_CHECKING:
    from ..gates.nights import Flags, Floats

#: The directions of links with a rate: the time of a byte.
LINK = "link beta"
#: Earlier nights that show what is usual for a direction.
LEAST_NIGHTS = 3


def between_hosts(series: Series, past: Sequence[Record]) -> tuple[Series, list[Record], str]:
    """The series and its past without directions between nodes of one host, which have no link; and why, empty if there are none."""
    hosts = series.link_hosts

    def host_of(end: str) -> str:
        return hosts.get(end.partition(":")[0], "")

    def is_inside(label: str) -> bool:
        sender, _, receiver = label.partition("->")
        return bool(host_of(sender)) and host_of(sender) == host_of(receiver)

    inside = [label for label in series.values if is_inside(label)]
    ends = {end: host_of(end) for label in inside for end in label.split("->")}
    shared = pairs.describe_shared(pairs.shared_hosts(tuple(sorted(ends)), ends))
    reason = f"{series.metric.name}: not judged: {shared}" if inside else ""
    values = {label: values for label, values in series.values.items() if label not in inside}
    return dataclasses.replace(series, values=values), [record for record in past if not is_inside(record.node)], reason


def judge_pairs(series: Series, past: Sequence[Record], quarantined: Collection[str] = ()) -> Iterator[Judged]:
    """The culprits of all directions between healthy nodes; and, as an expected defect, those with the nodes in quarantine."""
    healthy = {
        label: values for label, values in series.values.items()
        if {end.partition(":")[0] for end in label.split("->")}.isdisjoint(quarantined)
    }  # fmt: skip
    if healthy:
        participants = series.participants.difference(quarantined)
        yield _solve(dataclasses.replace(series, values=healthy, participants=participants), past)
    if len(healthy) < len(series.values):
        judged = _solve(series, past)
        finding = dataclasses.replace(
            judged.finding, text=f"with {', '.join(sorted(quarantined))}, in quarantine: {judged.finding.text}"
        )
        is_bad = judged.state in ("warn", "fail")
        yield dataclasses.replace(
            judged, finding=finding, state="xfail" if is_bad else judged.state, ticket=QUARANTINE if is_bad else "",
            is_counted=False,
        )  # fmt: skip


def _solve(series: Series, past: Sequence[Record]) -> Judged:
    """The culprits of all directions that were measured, against their usual rates where earlier nights show those of most."""
    import numpy as np

    definition, sign = (series.metric.unit, series.metric.better), -series.metric.sign
    earlier: dict[str, list[float]] = {}
    for record in past:
        values = [value for value in record.values if value > 0]
        if values and (record.metric.unit, record.metric.better) == definition:
            earlier.setdefault(record.node, []).append(statistics.median(values))
    ends = {label: label.split("->") for label in series.values}
    nodes = _nodes(series, ends.values())
    rates = np.full((len(nodes), len(nodes), max(1, *map(len, series.values.values()))), np.nan)
    usual = np.full((len(nodes), len(nodes)), np.nan)
    for label, (sender, receiver) in ends.items():
        cell = nodes.index(sender), nodes.index(receiver)
        values = series.values[label]
        rates[cell][: len(values)] = [value**sign if value > 0 else math.nan for value in values]
        if len(earlier.get(label, ())) >= LEAST_NIGHTS:
            usual[cell] = statistics.median(earlier[label][:REFERENCE_NIGHTS]) ** sign
    groups = {node: series.leaves.get(node.partition(":")[0], "") for node in nodes}
    hosts = {node: series.link_hosts.get(name := node.partition(":")[0], name) for node in nodes}
    is_measured = ~np.isnan(rates).all(axis=2)
    reference = _reference(usual, is_measured, [groups[node] for node in nodes])
    sweep = pairs.solve(rates, nodes, groups, reference, hosts, _met(series, nodes))
    finding = pairs.judge(sweep, series.metric.name)
    runs = tuple(dict.fromkeys(run for runs in series.runs.values() for run in runs))
    if finding.culprits and len(runs) < 2:
        finding = dataclasses.replace(finding, text=f"{finding.text}; one run, not confirmed by another")
    return Judged(
        finding=finding, state=finding.outcome, cell=series.cells[0], key=series.key, runs=runs,
        reference=_describe(usual, is_measured, has_reference=reference is not None),
        is_counted=finding.outcome != "unknown" or bool(sweep.missing),
    )  # fmt: skip


def _nodes(series: Series, ends: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The ends of all directions, and the nodes of the runs that no direction was measured of."""
    measured = {node for pair in ends for node in pair}
    names = {node.partition(":")[0] for node in measured}
    return tuple(sorted(measured | (series.participants - names)))


def _met(series: Series, nodes: Sequence[str]) -> Flags:
    """from x to: whether a run had both nodes, so that their link should have been measured. A node without any: in all runs."""
    import numpy as np

    runs: dict[str, set[str]] = {}
    for label, names in series.runs.items():
        for node in label.split("->"):
            runs.setdefault(node, set()).update(names)
    every = {run for names in runs.values() for run in names}
    return np.array([[bool(runs.get(a, every) & runs.get(b, every)) for b in nodes] for a in nodes])


def _reference(usual: Floats, is_measured: Flags, groups: Sequence[str]) -> Floats | None:
    """The usual rates of all directions, if those of most are known. A new direction has the median of the known ones of its class:
    within a switch group, or between groups.
    """
    import numpy as np

    known = ~np.isnan(usual)
    if 2 * np.sum(known & is_measured) <= np.sum(is_measured):
        return None
    group = np.array(groups)
    is_inside = group[:, None] == group
    reference = usual.copy()
    for pairs_of_class in (is_inside, ~is_inside):
        new = pairs_of_class & is_measured & ~known
        if new.any() and not (pairs_of_class & known).any():
            return None
        if new.any():
            reference[new] = np.median(usual[pairs_of_class & known])
    return reference


def _describe(usual: Floats, is_measured: Flags, *, has_reference: bool) -> str:
    import numpy as np

    if not has_reference:
        return "the other pairs of the same night"
    new = int(np.sum(is_measured & np.isnan(usual)))
    others = f"; of {new} new directions the median of the others" if new else ""
    return f"the same directions on earlier nights{others}"
