"""Gauges of a night in the Prometheus text format, for a textfile collector or a push gateway."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime

from ...reports.metrics import Gauge, known_gauge, text
from ..night_judgement import Judged
from .night_report import ROW_ORDER, NightReport, cells, worst
from .night_table import ORDER

OUTCOMES = {"pass": 0, "fail": 1, "unknown": 2, "warn": 3, "xfail": 4, "xpass": 5}
_STATES = ", ".join(f"{number} {state}" for state, number in OUTCOMES.items())
_Samples = list[tuple[Mapping[str, str], float]]


def render(report: NightReport) -> bytes:
    """``metrics.prom``; a figure that is not known is left out, not zero."""
    return text(gauges(report), {"bed": report.night.bed, "suite": report.night.suite.name}).encode(errors="replace")


def gauges(report: NightReport) -> tuple[Gauge, ...]:
    """All gauges, without the labels bed and suite that all of them share."""
    night, judgement, trials = report.night, report.judgement, cells(report)
    single: list[tuple[str, str, float | None]] = [
        ("outcome", "How the night came out: 0 pass, 1 fail, 2 unknown, 3 warn.", OUTCOMES[judgement.outcome]),
        ("exit_code", "The exit code of ccbed nightly.", judgement.exit),
        ("start_time_seconds", "When the night began, by the clock of the controller.", _epoch_s(night.started)),
        ("number", "The number of the recorded night; absent for a casual one.", night.number if night.recorded else None),
        ("earlier_nights", "Recorded nights that it was compared with.", len(judgement.earlier)),
    ]  # fmt: skip
    repeats: _Samples = [
        ({"cell": trial.cell, "state": state}, float(sum(row.state == state for row in trial.rows)))
        for trial in trials
        for state in ROW_ORDER
    ]
    durations = [({"cell": trial.cell}, trial.duration_s) for trial in trials if trial.rows]
    name = {"night": night.name, "version": night.ccbed}
    return (
        known_gauge("night_info", "The night that the other figures are of.", [(name, 1.0)]),
        *(known_gauge(f"night_{name}", meaning, [({}, value)]) for name, meaning, value in single),
        known_gauge("night_repeats", "Repeats of a cell by state.", repeats),
        known_gauge("night_cell_duration_seconds", "Time in the runs of a cell.", durations),
        known_gauge("night_findings", "Findings of a gate by state.", _findings(report)),
        known_gauge("night_metric_value", "The night's median of a metric on a node, in its unit.", _values(report)),
        known_gauge("night_finding", f"What a gate says of a metric of a node: {_STATES}.", _states(report)),
    )  # fmt: skip


def _epoch_s(started: str) -> float | None:
    try:
        return datetime.fromisoformat(started).timestamp()
    except ValueError:
        return None


def _findings(report: NightReport) -> _Samples:
    """Zero for a state that a gate could have had, so that an alert sees it end."""
    states: list[tuple[str, str]] = [(judged.finding.gate, judged.state) for judged in report.judgement.findings]
    gates = dict.fromkeys(gate for gate, _ in states)
    return [({"gate": gate, "state": state}, float(states.count((gate, state)))) for gate in gates for state in ORDER]


def _labels(judged: Judged, **last: str) -> tuple[tuple[str, str], ...]:
    finding = judged.finding
    return tuple({"cell": judged.cell, "metric": finding.metric, "node": finding.node or "", **last}.items())


def _values(report: NightReport) -> _Samples:
    """A value that is not unique is not known."""
    values: dict[tuple[tuple[str, str], ...], set[float]] = {}
    for judged in report.judgement.findings:
        if judged.finding.metric and judged.value is not None and math.isfinite(judged.value):
            values.setdefault(_labels(judged, unit=judged.unit), set()).add(judged.value)
    return [(dict(labels), unique.pop()) for labels, unique in values.items() if len(unique) == 1]


def _states(report: NightReport) -> _Samples:
    """Return the states by gate: a gate that could not judge leaves the others as they are. The worst of several findings counts."""
    states: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for judged in report.judgement.findings:
        states.setdefault(_labels(judged, gate=judged.finding.gate), []).append(judged.state)
    return [(dict(labels), float(OUTCOMES[worst(of_gate, ORDER)])) for labels, of_gate in states.items()]
