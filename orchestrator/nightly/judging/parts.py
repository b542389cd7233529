"""The directions of links in a night: which are judged, and pair sweeps, solved for culprits."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence

from ..gates import deviations, nights, pairs
from ..gates.nights import Record
from ..night_judgement import Judged
from .figures import Series
from .known_defects import QUARANTINE

#: The directions of links with a rate: the time of a byte.
LINK = "link beta"


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


def judge_pairs(
    series: Series, past: Sequence[Record], night: int, date: str, quarantined: Collection[str] = ()
) -> Iterator[Judged]:
    """The culprits of all directions between healthy nodes; and, as an expected defect, those with the nodes in quarantine."""
    healthy = {
        label: values for label, values in series.values.items()
        if {end.partition(":")[0] for end in label.split("->")}.isdisjoint(quarantined)
    }  # fmt: skip
    if healthy:
        yield _solve(dataclasses.replace(series, values=healthy), past, night, date)
    if len(healthy) < len(series.values):
        judged = _solve(series, past, night, date)
        finding = dataclasses.replace(
            judged.finding, text=f"with {', '.join(sorted(quarantined))}, in quarantine: {judged.finding.text}"
        )
        is_bad = judged.state in ("warn", "fail")
        yield dataclasses.replace(
            judged, finding=finding, state="xfail" if is_bad else judged.state, ticket=QUARANTINE if is_bad else "",
            is_counted=False,
        )  # fmt: skip


def _solve(series: Series, past: Sequence[Record], night: int, date: str) -> Judged:
    """The culprits of all directions that were measured, against their usual rates where earlier nights show them."""
    import numpy as np

    definition = series.metric.unit, series.metric.better
    past = [record for record in past if (record.metric.unit, record.metric.better) == definition]
    panel = nights.build_panel([*past, *series.records(night, date)], series.metric.name, series.key, tonight=night)
    ends = {label: label.split("->") for label in series.values}
    nodes = tuple(sorted({node for pair in ends.values() for node in pair}))
    rates = np.full((len(nodes), len(nodes), panel.values.shape[2]), np.nan)
    usual = np.full((len(nodes), len(nodes)), np.nan)
    for label, (sender, receiver) in ends.items():
        history = panel.values[:, panel.nodes.index(label)]
        cell = nodes.index(sender), nodes.index(receiver)
        rates[cell] = history[-1] ** (-panel.metric.sign)
        known = history[: -deviations.GAP][-deviations.WINDOW :]
        if np.sum(~np.isnan(known).all(axis=1)) >= deviations.LEAST_NIGHTS:
            usual[cell] = np.nanmedian(known) ** (-panel.metric.sign)
    has_reference = bool((~np.isnan(usual) == ~np.isnan(rates).all(axis=2)).all())
    groups = {node: series.leaves.get(node.partition(":")[0], "") for node in nodes}
    hosts = {node: series.link_hosts[name] for node in nodes if (name := node.partition(":")[0]) in series.link_hosts}
    sweep = pairs.solve(rates, nodes, groups, usual if has_reference else None, hosts)
    finding = pairs.judge(sweep, series.metric.name)
    return Judged(
        finding=finding, state=finding.outcome, cell=series.cells[0], key=series.key,
        runs=tuple(dict.fromkeys(run for runs in series.runs.values() for run in runs)),
        reference="the same directions on earlier nights" if has_reference else "the other pairs of the same night",
        is_counted=finding.outcome != "unknown",
    )  # fmt: skip
