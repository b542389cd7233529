"""Known defects: failures that a ticket or a quarantine expects, and unexpected passes.

A ticket that names its nodes expects their failures only. A plain ticket expects those of every node on its first recorded night,
and later only of nodes that it has covered on one of the last nights: a node that turns bad under it is a failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..night_judgement import Judged, NightJudgement
from ..records import Finding, Key
from ..run_record import nodes_of
from ..suite import MetricRule, Night
from . import floor_limits, shipped_floors
from .figures import Series

#: Recorded nights whose judgement says which nodes a plain ticket covers.
NIGHTS = 10
#: In place of a ticket.
QUARANTINE = "set aside"


def apply(
    night: Night,
    findings: Sequence[Judged],
    series: Mapping[tuple[str, Key], Series],
    earlier: Iterable[NightJudgement],
    is_node_absent: bool,
) -> list[Judged]:
    """``earlier``: judgements of the last recorded nights; ``is_node_absent``: a known defect may be of a node that took no part."""
    result, past = list(findings), [judged for judgement in earlier for judged in judgement.findings]
    for cell in night.suite.cells:
        for rule in (rule for rule in cell.rules if rule.xfail):
            concerned = [index for index, judged in enumerate(result) if _concerns(rule, cell.name, judged, series)]
            covered = _covered(rule, past)
            for index in concerned:
                if result[index].state in ("fail", "warn"):
                    result[index] = _expected(rule, result[index], covered)
            passes = _unexpected_passes(rule, [result[index] for index in concerned], is_node_absent)
            result += [dataclasses.replace(judged, cell=cell.name) for judged in passes]
    return result


def _concerns(rule: MetricRule, cell: str, judged: Judged, series: Mapping[tuple[str, Key], Series]) -> bool:
    """Return whether a finding is of a metric of the rule, measured by its cell: cells with equal keys have one series. That a
    limit is met which ccbed ships proves no repair.
    """
    metric = judged.finding.metric
    if not metric or shipped_floors.is_met(judged) or not floor_limits.matches(rule, metric):
        return False
    entry = series.get((metric, judged.key)) if judged.key else None
    return judged.cell == cell or (entry is not None and cell in entry.cells)


def _covered(rule: MetricRule, past: Iterable[Judged]) -> frozenset[str] | None:
    """The nodes that a plain ticket covered on earlier nights; None if it covered none yet."""
    labels = {
        judged.finding.node for judged in past
        if judged.ticket == rule.xfail and judged.state == "xfail" and floor_limits.matches(rule, judged.finding.metric)
    }  # fmt: skip
    return frozenset(label for label in labels if label) if labels else None


def _expected(rule: MetricRule, judged: Judged, covered: frozenset[str] | None) -> Judged:
    """The finding as expected, if the ticket covers its node; a figure of no node has the ticket of its metric."""
    label = judged.finding.node or ""
    if rule.xfail_nodes:
        if set(nodes_of(label)).isdisjoint(rule.xfail_nodes):
            return judged
    elif label and covered is not None and label not in covered:
        text = f"{judged.finding.text}; {rule.xfail} does not cover it: {label} was not bad under it before"
        return dataclasses.replace(judged, finding=dataclasses.replace(judged.finding, text=text))
    return dataclasses.replace(judged, state="xfail", ticket=rule.xfail)


def _unexpected_passes(rule: MetricRule, concerned: Sequence[Judged], is_node_absent: bool) -> Iterator[Judged]:
    if not rule.xfail_nodes:
        if not is_node_absent and _is_well(concerned):
            yield _unexpected(rule, f"{rule.metric} passes", None)
        return
    for node in rule.xfail_nodes:
        own = [judged for judged in concerned if node in nodes_of(judged.finding.node or "")]
        if _is_well(own):
            yield _unexpected(rule, f"{node}: {rule.metric} passes", node)


def _is_well(concerned: Sequence[Judged]) -> bool:
    """Return whether something passes, nothing is bad, and nothing is unknown."""
    states = {judged.state for judged in concerned if judged.state != "unknown" or judged.is_counted}
    return states == {"pass"}


def _unexpected(rule: MetricRule, text: str, node: str | None) -> Judged:
    text = f"{text}, although {rule.xfail} says that it fails: remove its set_aside"
    finding = Finding(gate="xfail", outcome="fail", metric=rule.metric, node=node, text=text)
    return Judged(finding=finding, state="xpass", ticket=rule.xfail)


def expect_failures_of(nodes: frozenset[str], findings: Sequence[Judged]) -> list[Judged]:
    """A node in quarantine is probed, so that its repair shows; that it is still bad, or a link of it, fails no further night."""

    def is_expected(judged: Judged) -> bool:
        names = set(nodes_of(judged.finding.node or ""))
        is_known = bool(names & nodes) if len(names) > 1 else bool(names) and names <= nodes
        return judged.state in ("fail", "warn") and is_known

    return [
        dataclasses.replace(judged, state="xfail", ticket=QUARANTINE) if is_expected(judged) else judged
        for judged in findings
    ]
