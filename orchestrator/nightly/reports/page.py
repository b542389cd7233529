"""The page of a night: the verdict, the table of nodes and metrics, trends of what moved, suspects, and the trials. Offline."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jinja2

from ...core.verdict.sentence import count, seconds
from . import trends
from .figure_units import name, quantity
from .night_report import CellRows, NightReport, cells, suspects, unknowns
from .night_table import ALL_NODES, head, next_step, table

#: Lines of each part; findings.json has all findings. Columns whose figures are written out; of more nodes only those that moved are.
SUSPECTS, FINDINGS, CELLS, UNKNOWNS, NODES, WRITTEN = 20, 4, 60, 12, 12, 12
#: Figures of the table: browsers become slow with more.
FIGURES = 6000
#: Repeats that a page links; a suite with more of them shows those that did not pass.
REPEATS = 400


def render(report: NightReport) -> bytes:
    """``index.html``, complete in itself: no script, no link to anything outside of the night's directory."""
    return environment().get_template("night.html.j2").render(values(report)).encode(errors="replace")


@functools.cache
def environment() -> jinja2.Environment:
    """Templates of nights, with the style sheet of the page of a run."""
    loaders = [
        jinja2.PackageLoader("orchestrator.nightly.reports", "page"),
        jinja2.PackageLoader("orchestrator.reports", "page"),
    ]
    made = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(duration=duration, plural=count, nodes=name_nodes, quantity=quantity, metric=name)
    return made


def values(report: NightReport) -> Mapping[str, Any]:
    night, judgement = report.night, report.judgement
    named, shown, unknown = suspects(report), table(night, judgement), unknowns(report)
    most = max(len(shown.shown), FIGURES // max(1, len(shown.nodes)))
    return {
        "outcome": judgement.word,
        "title": night.name,
        "sentence": judgement.sentence,
        "subtitle": [
            f"{night.suite.name}, seed {night.suite.seed}",
            head(night, judgement, shown),
            night.started,
            f"ccbed {night.ccbed}",
        ],
        "table": shown,
        "lines": shown.lines[:most],
        "more_lines": max(0, len(shown.lines) - most),
        "columns": [*shown.nodes, *([ALL_NODES] if any(ALL_NODES in line.cells for line in shown.lines) else [])],
        "is_written": len(shown.nodes) <= WRITTEN,
        "trends": [(trend, trends.draw(trend, f"trend{index}")) for index, trend in enumerate(trends.trends(report))],
        "suspects": [(part, part.findings[:FINDINGS], len(part.findings[FINDINGS:])) for part in named[:SUSPECTS]],
        "more_suspects": max(0, len(named) - SUSPECTS),
        "next_step": next_step(night, judgement, report.directory),
        "expected": report.with_states("xfail")[:UNKNOWNS],
        "unknown": unknown[:UNKNOWNS],
        "more_unknown": max(0, len(unknown) - UNKNOWNS),
        "cells": shown_cells(report),
        "more_cells": max(0, len(cells(report)) - CELLS),
        "links_all": len(report.rows) <= REPEATS,
        "links": report.links,
        "notes": (*([f"history: {judgement.history}"] if judgement.history else []), *judgement.notes),
        "command": night.command,
    }


def shown_cells(report: NightReport) -> list[CellRows]:
    """Return the cells in their order; of a suite with more cells than a page can hold first those that did not pass."""
    every = cells(report)
    ranked = sorted(range(len(every)), key=lambda index: (every[index].state == "passed", index))
    return [every[index] for index in sorted(ranked[:CELLS])]


def duration(value_s: float) -> str:
    """Write a duration from an hour on in hours and minutes: 2 h 05 min."""
    if value_s < 3600:
        return seconds(value_s)
    hours, rest = divmod(round(value_s / 60), 60)
    return f"{hours} h {rest:02d} min"


def name_nodes(nodes: tuple[str, ...]) -> str:
    """All names while they are few, else the first ones and a number."""
    if len(nodes) <= NODES:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"
