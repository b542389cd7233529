"""Floors: absolute limits of a suite or of a baseline. A metric that is missing fails its floor."""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Iterable, Iterator, Mapping

from ..baselines import Baseline, Floor
from ..gates import judgement
from ..gates.finding import Finding
from ..gates.nights import Key
from ..night_judgement import Judged
from ..suite import Cell, MetricRule
from .figures import Series

GATE = "floor"


def matches(rule: MetricRule, name: str) -> bool:
    """Whether a rule names the metric."""
    return matches_name(rule.metric, name)


def matches_name(pattern: str, name: str) -> bool:
    """Whether a pattern is the metric's name, some of its words in order, or matches them with ``*``."""
    return fnmatch.fnmatchcase(f" {name} ", f"* {pattern} *")


def judge_suite(cell: Cell, series: Iterable[Series]) -> Iterator[Judged]:
    """The floors of a cell that was run."""
    measured = [entry for entry in series if cell.name in entry.cells]
    for rule in cell.rules:
        if rule.floor is None:
            continue
        matched = [entry for entry in measured if matches(rule, entry.metric.name)]
        for entry in matched:
            yield from _judge(entry, rule.floor, cell.name, f"the floor of the suite for {rule.metric}")
        if not matched:
            text = f"{rule.metric} was not measured; its floor is {rule.floor:g}"
            yield _missing(rule.metric, text, cell.name, "the floor of the suite")


def judge_baseline(baseline: Baseline, series: Mapping[tuple[str, Key], Series]) -> Iterator[Judged]:
    """The floors of a baseline for hardware and trials that were measured tonight."""
    measured = {key: entry for (_, key), entry in series.items()}
    for floor in baseline.floors:
        key = baseline.key(floor)
        entry = series.get((floor.metric, key))
        reference = _reference(baseline, floor)
        if entry is not None and (entry.metric.unit, entry.metric.better) != (floor.unit, floor.better):
            text = f"{floor.metric} is in {entry.metric.unit}, its floor in {floor.unit}: they cannot be compared"
            finding = Finding(gate=GATE, outcome="unknown", metric=floor.metric, text=text)
            yield Judged(finding=finding, state="unknown", cell=entry.cells[0], key=key, reference=reference)
        elif entry is not None:
            yield from _judge(entry, floor.floor, entry.cells[0], reference)
        elif key in measured and floor.trial in measured[key].trials:
            text = f"{floor.metric} was not measured; its floor is {floor.floor:g} {floor.unit}"
            yield _missing(floor.metric, text, measured[key].cells[0], reference, key)


def _judge(series: Series, floor: float, cell: str, reference: str) -> Iterator[Judged]:
    """A finding for every node of the series, and for every node of its runs where nodes have figures of their own."""
    labels = set(series.values)
    if labels.isdisjoint(("",)) and not any("->" in label or ":" in label for label in labels):
        labels |= series.participants
    for node in sorted(labels):
        values = tuple(series.values.get(node, ()))
        finding = judgement.judge_floor(series.metric, node, values, floor)
        text = finding.text.removeprefix(": ")
        yield Judged(
            finding=Finding(gate=GATE, outcome=finding.outcome, metric=finding.metric, node=node, text=text),
            state=finding.outcome, cell=cell, key=series.key, runs=tuple(dict.fromkeys(series.runs.get(node, ()))),
            value=statistics.median(values) if values else None, unit=series.metric.unit, reference=reference,
        )  # fmt: skip


def _missing(metric: str, text: str, cell: str, reference: str, key: Key | None = None) -> Judged:
    finding = Finding(gate=GATE, outcome="fail", metric=metric, text=text)
    return Judged(finding=finding, state="fail", cell=cell, key=key, reference=reference)


def _reference(baseline: Baseline, floor: Floor) -> str:
    side = "below" if floor.better == "higher" else "above"
    accepted = f"accepted {floor.accepted}, {floor.margin:.0%} {side} {floor.measured:g} {floor.unit}"
    return f"the floor of {baseline.file or baseline.hardware}, {accepted}"
