"""One metric of a night through the gates: which findings count, what they were compared with, and the runs they rest on."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection, Iterable, Iterator, Sequence

from ..gates import deviations, drift, judgement, nights, relative
from ..gates.finding import Finding
from ..gates.nights import Metric, Panel, Record
from ..night_judgement import Judged
from ..run_record import nodes_of
from . import counters
from .figures import Series

#: Earlier nights that a gate needs at least.
NEEDED_NIGHTS = {
    "relative": deviations.GAP + deviations.LEAST_NIGHTS + relative.LEAST_SPREAD_NIGHTS + deviations.GAP - 2,
    "drift": drift.BEFORE + min(drift.STEPS) - 1,
    "fleet": deviations.LEAST_NIGHTS,
}
#: Nodes are judged by all gates. A gang and the directions of a link have no peers; pair sweeps compare links.
_OF_GANG, _OF_LINK = ("relative", "drift", "fleet"), ("relative", "intermittent", "drift", "fleet")
MEASUREMENT = "measurement"


def judge(
    series: Series,
    past: Sequence[Record],
    night: int,
    date: str,
    minimum_absolute: float = 0.0,
    quarantined: Collection[str] = (),
) -> Iterator[Judged]:
    """The findings of the gates, without floors. ``past``: the records of the metric and key in earlier nights; ``quarantined``:
    nodes that are no reference for others.
    """
    comparable = [record for record in past if _definition(record.metric) == _definition(series.metric)]
    if past and max(record.night for record in past) not in {record.night for record in comparable}:
        text = (
            f"{series.metric.name} changed its unit or direction since the last recorded night: they cannot be compared"
        )
        yield _judged(series, Finding(gate=MEASUREMENT, outcome="unknown", text=text, metric=series.metric.name))
    panel = nights.build_panel(
        [*comparable, *series.records(night, date)], series.metric.name, series.key, tonight=night
    )  # fmt: skip
    unmeasured = {node: judgement.missing_reason(panel, node) for node in panel.nodes if series.takes_part(node)}
    yield from _judge_unmeasured(series, panel, unmeasured)
    if measured := [node for node, reason in unmeasured.items() if not reason]:
        yield from _judge_counters(series, panel, measured, quarantined, minimum_absolute)
        findings = _judge_panel(panel, quarantined, minimum_absolute)
        yield from _judge_gates(series, panel, set(measured), findings)


def _definition(metric: Metric) -> tuple[str, str]:
    return metric.unit, metric.better


def not_judged(series: Series, text: str) -> Iterator[Judged]:
    """That the gates of links leave out some directions, which is no defect."""
    for gate in _OF_LINK:
        finding = Finding(gate=gate, outcome="unknown", metric=series.metric.name, text=text)
        yield dataclasses.replace(_judged(series, finding), is_counted=False)


def _judge_unmeasured(series: Series, panel: Panel, unmeasured: dict[str, str]) -> Iterator[Judged]:
    """A counter of errors is zero on a healthy node: only then no ratio is needed."""
    for node, reason in unmeasured.items():
        values = panel.latest(node)
        is_zero = bool(values) and panel.metric.better == "lower" and max(values) == 0 == min(values)
        if reason and not is_zero:
            text = f"{_prefix(node)}{panel.metric.name} {reason}"
            finding = Finding(gate=MEASUREMENT, outcome="unknown", metric=panel.metric.name, node=node, text=text)
            yield _judged(series, finding, panel)


def _judge_counters(
    series: Series, panel: Panel, measured: Iterable[str], quarantined: Collection[str], minimum_absolute: float
) -> Iterator[Judged]:
    """A node in quarantine is judged beside the others, and is no reference for them."""
    if panel.metric.better == "lower":
        fleet = counters.past_counts(_of_nodes(panel, _healthy(panel, quarantined)))
        for node in measured:
            if finding := counters.judge(panel, fleet, node, minimum_absolute):
                yield _judged(series, finding, panel)


def _healthy(panel: Panel, quarantined: Collection[str]) -> list[str]:
    return [label for label in panel.nodes if set(nodes_of(label)).isdisjoint(quarantined)]


def _judge_panel(panel: Panel, quarantined: Collection[str], minimum_absolute: float) -> Iterator[Finding]:
    """The findings of all gates. A node in quarantine is judged beside the others, and is no reference for them."""
    healthy = _healthy(panel, quarantined)
    apart = [label for label in panel.nodes if label not in healthy]
    if healthy:
        yield from judgement.judge_panel(_of_nodes(panel, healthy), minimum_absolute=minimum_absolute)
    directions = [label for label in apart if "->" in label]
    for labels in ([label] for label in apart if label not in directions):
        yield from _judge_apart(panel, healthy, labels, minimum_absolute)
    if directions:
        yield from _judge_apart(panel, healthy, directions, minimum_absolute)


def _judge_apart(
    panel: Panel, healthy: Sequence[str], labels: Sequence[str], minimum_absolute: float
) -> Iterator[Finding]:
    beside = _of_nodes(panel, [*healthy, *labels])
    findings = judgement.judge_panel(beside, minimum_absolute=minimum_absolute)
    yield from (finding for finding in findings if finding.node in labels)


def _of_nodes(panel: Panel, labels: Sequence[str]) -> Panel:
    indices = [panel.nodes.index(label) for label in labels]
    return dataclasses.replace(panel, nodes=tuple(labels), values=panel.values[:, indices])


def _judge_gates(series: Series, panel: Panel, measured: set[str], findings: Iterable[Finding]) -> Iterator[Judged]:
    waiting: dict[tuple[str, str], int] = {}
    for finding in findings:
        node = finding.node
        if not _applies(finding.gate, node, panel) or (node is not None and node not in measured):
            continue
        if finding.outcome == "unknown":
            reason = _waiting_reason(panel, finding)
            waiting[finding.gate, reason] = waiting.get((finding.gate, reason), 0) + 1
        else:
            yield _judged(series, finding, panel)
    for (gate, reason), count in waiting.items():
        subject = f" on {count} nodes" if count > 1 else ""
        text = f"{panel.metric.name}: {reason}{subject}"
        finding = Finding(gate=gate, outcome="unknown", metric=panel.metric.name, text=text)
        yield dataclasses.replace(_judged(series, finding), is_counted=False)


def _applies(gate: str, node: str | None, panel: Panel) -> bool:
    label = node if node is not None else panel.nodes[0]
    if not label:
        return gate in _OF_GANG
    return gate in _OF_LINK or "->" not in label


def _waiting_reason(panel: Panel, finding: Finding) -> str:
    nodes = panel.nodes if finding.node is None else (finding.node,)
    earlier = max(_earlier(panel, node) for node in nodes)
    needed = NEEDED_NIGHTS.get(finding.gate)
    if needed is not None and earlier < needed:
        return f"no history yet ({earlier} of {needed} nights)"
    if finding.gate == "intermittent":
        return "too few earlier nights with 3 repeats or more"
    return finding.text.removeprefix(f"{finding.node}: ").removeprefix(panel.metric.name).strip(": ")


def _earlier(panel: Panel, node: str) -> int:
    import numpy as np

    values = panel.values[:-1, panel.nodes.index(node)]
    return int(np.sum(~np.isnan(values).all(axis=1)))


def _prefix(node: str) -> str:
    return f"{node}: " if node else ""


def _judged(series: Series, finding: Finding, panel: Panel | None = None) -> Judged:
    """The finding with its runs, its value tonight and its reference. The gates print a gang as an empty node."""
    node = finding.node
    values = panel.latest(node) if panel and node is not None else ()
    runs = series.runs.get(node, []) if node is not None else [run for runs in series.runs.values() for run in runs]
    return Judged(
        finding=dataclasses.replace(finding, text=finding.text.removeprefix(": ")), state=finding.outcome,
        cell=series.cells[0] if series.cells else "", key=series.key, runs=tuple(dict.fromkeys(runs)),
        value=statistics.median(values) if values else None, unit=series.metric.unit,
        reference=_reference(finding.gate, panel, node) if panel else "",
    )  # fmt: skip


def _reference(gate: str, panel: Panel, node: str | None) -> str:
    earlier = _earlier(panel, node) if node is not None else len(panel.nights) - 1
    if gate == "relative":
        others = ", without the effect of the day" if len(panel.nodes) > deviations.LEAST_OTHERS else ""
        return f"the node's own median of {min(earlier, deviations.WINDOW)} earlier nights{others}"
    references = {
        "drift": f"the level of {min(earlier, drift.HISTORY)} earlier nights", "peers": "equal nodes in the same night",
        "intermittent": f"the repeats of the fleet on {len(panel.nights) - 1} earlier nights",
        "fleet": f"the same nodes on {min(earlier, deviations.WINDOW)} earlier nights",
        counters.GATE: f"the counts of {min(earlier, deviations.WINDOW)} earlier nights",
    }  # fmt: skip
    return references.get(gate, "")
