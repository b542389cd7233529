"""The figures of a night by the class of their metric: compared by ratio, by new errors, or never; and those that are missing."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Sequence

from ..classes import MetricClass
from ..gates.finding import Finding
from ..gates.nights import Metric, Record
from ..levels import Level
from ..night_judgement import Judged
from ..run_record import nodes_of
from . import counters
from .cells import Subject
from .figures import Series

MEASUREMENT = "measurement"


def sort(
    series: Series,
    past: Sequence[Record],
    kind: MetricClass,
    levels: Sequence[Level],
    minimum: float,
    apart: Collection[str],
) -> tuple[Subject | None, list[Judged]]:
    """What is compared by ratio, None for nothing; and the findings on what is not. ``past``: records of the metric and key on earlier
    nights; ``minimum``: the least difference that counts; ``apart``: nodes that are no reference for others.
    """
    metric = series.metric
    comparable = [record for record in past if _definition(record.metric) == _definition(metric)]
    findings = []
    if past and max(record.night for record in past) not in {record.night for record in comparable}:
        text = f"{metric.name} changed its unit or direction since the last recorded night: they cannot be compared"
        findings.append(_finding(series, text))
    labels = {*series.values, *(record.node for record in comparable if series.takes_part(record.node))}
    reasons = {label: missing_reason(metric, series.values.get(label, ())) for label in sorted(labels)}
    for label, reason in reasons.items():
        if reason and not _is_zero(metric, series.values.get(label, ())):
            findings.append(
                _finding(series, f"{label}: {metric.name} {reason}" if label else f"{metric.name} {reason}", label)
            )
    if kind.compare == "new":
        references = [record for record in comparable if set(nodes_of(record.node)).isdisjoint(apart)]
        findings += [
            _judged(series, finding) for label, values in sorted(series.values.items())
            if (finding := counters.judge(metric, label, values, comparable, references, levels, minimum))
        ]  # fmt: skip
    measured = {label: values for label, values in series.values.items() if not reasons[label]}
    if kind.compare != "ratio" or not measured:
        return None, findings
    return Subject(
        series=dataclasses.replace(series, values=measured), past=comparable, kind=kind, minimum=minimum
    ), findings


def missing_reason(metric: Metric, values: Sequence[float]) -> str:
    """Why the ratio of a figure has no meaning; empty if it has one."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "was not measured"
    if metric.exceeds_ceiling(statistics.median(finite)):
        return f"{statistics.median(finite):g} {metric.unit} is better than its ceiling {metric.ceiling:g}: measured wrongly"
    if max(finite) <= 0:
        return "has no positive value, so that ratios have no meaning"
    stopped = sum(value <= 0 for value in finite)
    return f"was not above 0 in {stopped} of {len(finite)} repeats" if stopped and metric.better == "higher" else ""


def not_judged(series: Series, text: str) -> Judged:
    """That some directions of links are left out, which is no defect."""
    return dataclasses.replace(_finding(series, text), is_counted=False)


def _is_zero(metric: Metric, values: Sequence[float]) -> bool:
    """A counter of errors is zero on a healthy node: only then no ratio is needed."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and metric.better == "lower" and max(finite) == 0 == min(finite)


def _definition(metric: Metric) -> tuple[str, str]:
    return metric.unit, metric.better


def _finding(series: Series, text: str, label: str | None = None) -> Judged:
    return _judged(
        series, Finding(gate=MEASUREMENT, outcome="unknown", metric=series.metric.name, node=label, text=text)
    )


def _judged(series: Series, finding: Finding) -> Judged:
    values = (
        [value for value in series.values.get(finding.node or "", ()) if math.isfinite(value)]
        if finding.node is not None
        else []
    )
    runs = (
        series.runs.get(finding.node, [])
        if finding.node is not None
        else [run for runs in series.runs.values() for run in runs]
    )
    return Judged(
        finding=finding, state=finding.outcome, cell=series.cells[0] if series.cells else "", key=series.key,
        runs=tuple(dict.fromkeys(runs)), value=statistics.median(values) if values else None, unit=series.metric.unit,
    )  # fmt: skip
