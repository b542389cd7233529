"""A Grafana dashboard over the metrics of nights, for import into any Grafana with a Prometheus data source."""

from __future__ import annotations

import json
from typing import Any

#: Grafana asks for the data source and fills it in at import.
_SOURCE = {"type": "prometheus", "uid": "${DS_PROMETHEUS}"}
_BED = 'bed=~"$bed",suite=~"$suite"'
_NAMES = {0: "pass", 1: "fail", 2: "unknown", 3: "warn", 4: "xfail", 5: "xpass"}
_COLOURS = {0: "green", 1: "red", 2: "yellow", 3: "orange", 4: "blue", 5: "red"}
_STATES = [
    {
        "type": "value",
        "options": {str(number): {"text": name, "color": _COLOURS[number]} for number, name in _NAMES.items()},
    }
]


def render() -> bytes:
    """``grafana.json``, the same for every night."""
    return (json.dumps(dashboard(), indent=1) + "\n").encode()


def dashboard() -> dict[str, Any]:
    panels = [
        _panel("stat", "Outcome of the last night", f"ccbed_night_outcome{{{_BED}}}", "{{bed}} {{suite}}", (0, 0, 8, 5), _STATES),
        _panel("stat", "Exit code", f"ccbed_night_exit_code{{{_BED}}}", "{{bed}} {{suite}}", (8, 0, 4, 5)),
        _panel("stat", "Time since the last night began", f"time() - ccbed_night_start_time_seconds{{{_BED}}}",
               "{{bed}} {{suite}}", (12, 0, 6, 5), unit="s"),
        _panel("stat", "Earlier nights compared with", f"ccbed_night_earlier_nights{{{_BED}}}", "{{bed}} {{suite}}", (18, 0, 6, 5)),
        _panel("timeseries", "Outcome over nights", f"ccbed_night_outcome{{{_BED}}}", "{{bed}} {{suite}}", (0, 5, 12, 7), _STATES),
        _panel("timeseries", "Findings by state", f"sum by (state) (ccbed_night_findings{{{_BED}}})", "{{state}}", (12, 5, 12, 7)),
        _panel("table", "Failed and suspect metrics", f"ccbed_night_finding{{{_BED}}} == 1 or ccbed_night_finding{{{_BED}}} == 3"
               f" or ccbed_night_finding{{{_BED}}} == 5", "", (0, 12, 24, 8), _STATES),
        _panel("timeseries", "Metric $metric by node", f'ccbed_night_metric_value{{{_BED},metric=~"$metric",node=~"$node"}}',
               "{{cell}} {{node}} {{unit}}", (0, 20, 24, 10)),
        _panel("timeseries", "Repeats by state", f"sum by (state) (ccbed_night_repeats{{{_BED}}})", "{{state}}", (0, 30, 12, 7)),
        _panel("timeseries", "Time in runs by cell", f"ccbed_night_cell_duration_seconds{{{_BED}}}", "{{cell}}", (12, 30, 12, 7), unit="s"),
        _panel("table", "Nights", f"ccbed_night_info{{{_BED}}}", "", (0, 37, 16, 6)),
        _panel("stat", "Recorded nights", f"ccbed_night_number{{{_BED}}}", "{{bed}} {{suite}}", (16, 37, 8, 6)),
    ]  # fmt: skip
    return {
        "__inputs": [{"name": "DS_PROMETHEUS", "label": "Prometheus", "type": "datasource", "pluginId": "prometheus"}],
        "title": "ccbed nights", "uid": "ccbed-nights", "schemaVersion": 39, "version": 1, "editable": True, "tags": ["ccbed"],
        "time": {"from": "now-30d", "to": "now"}, "timezone": "utc", "refresh": "5m",
        "templating": {"list": [_variable(name) for name in ("bed", "suite", "metric", "node")]},
        "panels": [{"id": number, **panel} for number, panel in enumerate(panels, 1)],
    }  # fmt: skip


def _variable(name: str) -> dict[str, Any]:
    source = "ccbed_night_outcome" if name in ("bed", "suite") else "ccbed_night_metric_value"
    return {
        "name": name, "type": "query", "datasource": _SOURCE, "query": {"query": f"label_values({source}, {name})", "refId": name},
        "refresh": 2, "includeAll": True, "multi": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "sort": 1,
    }  # fmt: skip


def _panel(
    kind: str, title: str, expression: str, legend: str, grid: tuple[int, int, int, int],
    mappings: list[dict[str, Any]] | None = None, unit: str = "none",
) -> dict[str, Any]:  # fmt: skip
    """``grid``: x, y, width and height in Grafana's grid of 24 columns."""
    target: dict[str, Any] = {"refId": "A", "datasource": _SOURCE, "expr": expression, "legendFormat": legend}
    if kind == "table":
        target |= {"format": "table", "instant": True}
    return {
        "type": kind, "title": title, "datasource": _SOURCE, "targets": [target],
        "gridPos": dict(zip(("x", "y", "w", "h"), grid, strict=True)),
        "fieldConfig": {"defaults": {"unit": unit, "mappings": mappings or []}, "overrides": []}, "options": {},
    }  # fmt: skip
