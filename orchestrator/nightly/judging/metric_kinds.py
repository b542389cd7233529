"""The figures of a night by the class of their metric: compared by ratio, by new errors, or never; and those that are missing."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ..classes import MetricClass
from ..levels import Level
from ..night_judgement import Judged
from ..records import Finding, Metric, Record
from ..run_record import nodes_of
from .cells import Subject
from .figures import Series

MEASUREMENT, COUNTER = "measurement", "counter"
#: Up to this multiple of its greatest count a node is in its usual range: events come in bursts.
USUAL = 2.0


def sort(
    series: Series, past: Sequence[Record], kind: MetricClass, levels: Sequence[Level], minimum: float, apart: Collection[str]
) -> tuple[Subject | None, list[Judged]]:  # fmt: skip
    """Return what is compared by ratio, None for nothing; and the findings on what is not. ``past``: records of the metric and key on
    earlier nights; ``minimum``: the least difference that counts; ``apart``: nodes that are no reference for others.
    """
    metric = series.metric
    comparable = [record for record in past if _definition(record.metric) == _definition(metric)]
    findings = []
    if past and max(record.night for record in past) not in {record.night for record in comparable}:
        text = f"{metric.name} changed its unit or direction since the last recorded night: they cannot be compared"
        findings.append(unknown(series, text))
    labels = {*series.values, *(record.node for record in comparable if series.takes_part(record.node))}
    reasons = {label: missing_reason(metric, series.values.get(label, ())) for label in sorted(labels)}
    for label, reason in reasons.items():
        if reason and not _is_zero(metric, series.values.get(label, ())):
            findings.append(unknown(series, f"{label}: {metric.name} {reason}".removeprefix(": "), label))
    if kind.compare == "new":
        references = [record for record in comparable if set(nodes_of(record.node)).isdisjoint(apart)]
        findings += [
            series.judged(finding) for label, values in sorted(series.values.items())
            if (finding := judge_count(metric, label, values, comparable, references, levels, minimum))
        ]  # fmt: skip
    measured = {label: values for label, values in series.values.items() if not reasons[label]}
    if kind.compare != "ratio" or not measured:
        return None, findings
    judged = dataclasses.replace(series, values=measured)
    return Subject(series=judged, past=comparable, kind=kind, minimum=minimum), findings


def missing_reason(metric: Metric, values: Sequence[float]) -> str:
    """Return why the ratio of a figure has no meaning; empty if it has one."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "was not measured"
    if metric.exceeds_ceiling(statistics.median(finite)):
        return f"{statistics.median(finite):g} {metric.unit} is better than its ceiling {metric.ceiling:g}: measured wrongly"
    if max(finite) <= 0:
        return "has no positive value, so that ratios have no meaning"
    stopped = sum(value <= 0 for value in finite)
    return f"was not above 0 in {stopped} of {len(finite)} repeats" if stopped and metric.better == "higher" else ""


def _is_zero(metric: Metric, values: Sequence[float]) -> bool:
    """A counter of errors is zero on a healthy node: only then no ratio is needed."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and metric.better == "lower" and max(finite) == 0 == min(finite)


def _definition(metric: Metric) -> tuple[str, str]:
    return metric.unit, metric.better


def unknown(series: Series, text: str, label: str | None = None, **more: Any) -> Judged:
    """A figure that cannot be compared."""
    finding = Finding(gate=MEASUREMENT, outcome="unknown", metric=series.metric.name, node=label, text=text)
    return series.judged(finding, **more)


def judge_count(
    metric: Metric, label: str, values: Sequence[float], past: Sequence[Record], references: Sequence[Record],
    levels: Iterable[Level], minimum: float = 0.0,
) -> Finding | None:  # fmt: skip
    """Counts of errors, drops and the like are zero on a healthy node, so that ratios have no meaning: more of them than is usual is a
    warning on each night until its level is accepted. None where it is not, or no earlier night says what is.

    ``references``: the records of nodes that are usual for others: a count that most of them have had is usual.
    """
    known = [value for value in values if math.isfinite(value)]
    begin = max((level.night for level in levels if level.covers(label, metric.name)), default=0)
    own = [record for record in past if record.node == label and record.night >= begin]
    if metric.better != "lower" or not known or not own:
        return None
    usual, nights = _greatest(own[0]), sorted({record.night for record in own})
    for record in own:
        usual = max(usual, _greatest(record)) if _greatest(record) <= USUAL * usual else usual
    others: dict[str, float] = {}
    for record in references:
        if record.node != label:
            others[record.node] = max(others.get(record.node, 0.0), _greatest(record))
    limit = USUAL * max(usual, statistics.median_low(others.values()) if others else 0.0)
    if max(known) <= limit or max(known) - usual < minimum:
        return None
    count = f"{len(nights)} earlier nights" if len(nights) > 1 else "the earlier night"
    text = f"{metric.name} is {max(known):g} {metric.unit}; it was {usual:g} at most on {count}; the limit is {limit:g}"
    return Finding(
        gate=COUNTER, outcome="warn", metric=metric.name, node=label, text=f"{label}: {text}" if label else text
    )


def _greatest(record: Record) -> float:
    return max((value for value in record.values if math.isfinite(value)), default=0.0)
