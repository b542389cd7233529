"""Gauges of a night in the Prometheus text format, for a textfile collector or a push gateway."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime

from ...reports.metrics import Gauge, known_gauge, text
from ..night_judgement import Judged
from .night_report import ROW_ORDER, NightReport, cells, worst
from .table import ORDER

OUTCOMES = {"pass": 0, "fail": 1, "unknown": 2, "warn": 3, "xfail": 4, "xpass": 5}
_STATES = ", ".join(f"{number} {state}" for state, number in OUTCOMES.items())


def render(report: NightReport) -> bytes:
    """``metrics.prom``; a figure that is not known is left out, not zero."""
    return text(gauges(report), {"bed": report.night.bed, "suite": report.night.suite.name}).encode(errors="replace")


def gauges(report: NightReport) -> tuple[Gauge, ...]:
    """All gauges, without the labels bed and suite that all of them share."""
    night, judgement = report.night, report.judgement
    single: list[tuple[str, str, float | None]] = [
        ("outcome", "How the night came out: 0 pass, 1 fail, 2 unknown, 3 warn.", OUTCOMES[judgement.outcome]),
        ("exit_code", "The exit code of ccbed nightly.", judgement.exit),
        ("start_time_seconds", "When the night began, by the clock of the controller.", _epoch_s(night.started)),
        (
            "number",
            "The number of the recorded night; absent for a casual one.",
            night.number if night.recorded else None,
        ),
        ("earlier_nights", "Recorded nights that it was compared with.", len(judgement.earlier)),
    ]
    return (
        known_gauge("night_info", "The night that the other figures are of.", [({"night": night.name, "version": night.ccbed}, 1.0)]),
        *(known_gauge(f"night_{name}", meaning, [({}, value)]) for name, meaning, value in single),
        known_gauge("night_repeats", "Repeats of a cell by state.", _repeats(report)),
        known_gauge("night_cell_duration_seconds", "Time in the runs of a cell.",
               [({"cell": cell.cell}, cell.duration_s) for cell in cells(report) if cell.rows]),
        known_gauge("night_findings", "Findings of a gate by state.", _findings(report)),
        known_gauge("night_metric_value", "The night's median of a metric on a node, in its unit.", _values(report)),
        known_gauge("night_finding", f"What a gate says of a metric of a node: {_STATES}.", _states(report.judgement.findings)),
    )  # fmt: skip


def _epoch_s(started: str) -> float | None:
    try:
        return datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None


def _repeats(report: NightReport) -> list[tuple[Mapping[str, str], float]]:
    return [
        ({"cell": cell.cell, "state": state}, float(sum(row.state == state for row in cell.rows)))
        for cell in cells(report)
        for state in ROW_ORDER
    ]


def _findings(report: NightReport) -> list[tuple[Mapping[str, str], float]]:
    """Zero for a state that a gate could have had, so that an alert sees it end."""
    states: dict[str, list[str]] = {}
    for judged in report.judgement.findings:
        states.setdefault(judged.finding.gate, []).append(judged.state)
    return [
        ({"gate": gate, "state": state}, float(of_gate.count(state)))
        for gate, of_gate in states.items()
        for state in ORDER
    ]


def _series(findings: Iterable[Judged]) -> dict[tuple[str, str, str, str], list[Judged]]:
    """The findings on a metric of a node, by cell, metric, node and unit."""
    groups: dict[tuple[str, str, str, str], list[Judged]] = {}
    for judged in findings:
        if judged.finding.metric:
            names = judged.cell, judged.finding.metric, judged.finding.node or "", judged.unit
            groups.setdefault(names, []).append(judged)
    return groups


def _labels(names: tuple[str, str, str, str]) -> Mapping[str, str]:
    return dict(zip(("cell", "metric", "node", "unit"), names, strict=True))


def _values(report: NightReport) -> list[tuple[Mapping[str, str], float]]:
    """A value that is not unique is not known."""
    values = (
        (names, {judged.value for judged in group if judged.value is not None and math.isfinite(judged.value)})
        for names, group in _series(report.judgement.findings).items()
    )
    return [(_labels(names), unique.pop()) for names, unique in values if len(unique) == 1]


def _states(findings: Iterable[Judged]) -> list[tuple[Mapping[str, str], float]]:
    """By gate: a gate that could not judge leaves the others as they are. Of several findings the worst."""
    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for judged in findings:
        finding = judged.finding
        groups.setdefault((judged.cell, finding.metric, finding.node or "", finding.gate), []).append(judged.state)
    return [
        (
            dict(zip(("cell", "metric", "node", "gate"), names, strict=True)),
            float(OUTCOMES[worst(states, ORDER)]),
        )
        for names, states in groups.items()
    ]
