"""The page of a night: the verdict first, then what changed, the culprits, the rows, the floors and the trends. Offline."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import jinja2

from ...core.verdict.sentence import count, seconds
from .. import rows as night_rows
from ..night_judgement import Judged
from . import trends
from .changes import changes, compares_medians
from .night_report import CellRows, Culprit, NightReport, cells, culprits, floors, grouped, quantity

#: Lines of each table; findings.json has all findings.
CULPRITS, FINDINGS, CELLS, CHANGES, GROUPS, FLOORS, NODES = 40, 4, 150, 24, 25, 30, 12
#: Elements of a page, and those of a row of each table: browsers become slow with more of them.
ELEMENTS, CELL, CULPRIT, LINE = 4900, 9, 30, 9
#: Repeats that a page links; a suite with more of them shows those that did not pass.
REPEATS = 800


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
    made.filters.update(duration=duration, plural=count, nodes=name_nodes, quantity=quantity)
    return made


def values(report: NightReport) -> Mapping[str, Any]:
    night, judgement = report.night, report.judgement
    named, all_trends = culprits(report), trends.trends(report)
    drawn = list(trends.pictures(all_trends, _free_elements(report, len(named))))
    listed = changes(report)
    unknown = sorted(grouped(report.with_states("unknown")), key=lambda group: not group.is_counted)
    expected = grouped(report.with_states("xfail", "xpass"))
    return {
        "outcome": judgement.word,
        "title": night.name,
        "sentence": judgement.sentence,
        "subtitle": [night.suite.name, f"bed {night.bed}", night.started, _recorded(report)],
        "figures": figures(report),
        "changes": listed[:CHANGES],
        "compares_medians": compares_medians(report),
        "more_changes": max(0, len(listed) - CHANGES),
        "culprits": [(part, details(part)) for part in named[:CULPRITS]],
        "more_culprits": max(0, len(named) - CULPRITS),
        "expected": expected[:GROUPS],
        "unknown": unknown[:GROUPS],
        "more_unknown": max(0, len(unknown) - GROUPS),
        "cells": shown_cells(report),
        "more_cells": max(0, len(cells(report)) - CELLS),
        "links_all": len(report.rows) <= REPEATS,
        "links": report.links,
        "floors": floors(report)[:FLOORS],
        "trends": drawn,
        "more_trends": len(all_trends) - len(drawn),
        "notes": judgement.notes,
        "facts": facts(report),
        "command": night.command,
    }


def _free_elements(report: NightReport, named: int) -> int:
    """What the tables leave for pictures."""
    names = {*report.night.order, *(cell.name for cell in report.night.suite.cells), *(row.cell for row in report.rows)}
    tables = CELL * min(len(names), CELLS) + min(len(report.rows), REPEATS) + CULPRIT * min(named, CULPRITS)
    return ELEMENTS - tables - LINE * (2 * GROUPS + FLOORS + CHANGES)


def shown_cells(report: NightReport) -> list[CellRows]:
    """In their order; of a suite with more cells than a page can hold first those that did not pass."""
    every = cells(report)
    ranked = sorted(range(len(every)), key=lambda index: (every[index].state == "passed", index))
    return [every[index] for index in sorted(ranked[:CELLS])]


def _recorded(report: NightReport) -> str:
    night = report.night
    return f"recorded night {night.number}" if night.recorded else "casual night, not recorded"


def figures(report: NightReport) -> list[tuple[str, str, str]]:
    """(name, figure, meaning) for the row below the sentence."""
    states = [row.state for row in report.rows if not night_rows.node(row)]
    lost = len(set(filter(None, map(night_rows.node, report.rows))))
    hosts = count(len(set(report.night.hosts.values())), "host")
    passed, skipped = states.count("passed"), states.count("skipped")
    judged = [entry for entry in report.judgement.findings if entry.state != "unknown"]
    bad = report.with_states("fail", "xpass")
    note = f"{skipped} skipped" if skipped else "of all cells"
    return [
        ("repeats passed", f"{passed} / {len(states) - skipped}", note),
        ("findings failed", str(len(bad)), f"of {len(judged):,} judged; {len(report.judgement.findings) - len(judged):,} not judged"),
        ("parts named", str(len(culprits(report))), "nodes, links or switch groups"),
        ("nodes", str(len(report.night.hosts)), f"on {hosts}{f', {lost} lost' if lost else ''}"),
        ("time in runs", duration(sum(row.duration_s for row in report.rows)), _budget(report)),
        ("compared with", str(len(report.judgement.earlier)), "earlier nights"),
    ]  # fmt: skip


def _budget(report: NightReport) -> str:
    budget = report.night.suite.budget_s
    return f"of a budget of {duration(budget)}" if budget is not None else "no budget"


def duration(value_s: float) -> str:
    """From an hour on in hours and minutes: 2 h 05 min."""
    if value_s < 3600:
        return seconds(value_s)
    hours, rest = divmod(round(value_s / 60), 60)
    return f"{hours} h {rest:02d} min"


def details(part: Culprit) -> tuple[list[Judged], int]:
    """The findings that are shown of a part, and how many are not."""
    return list(part.findings[:FINDINGS]), max(0, len(part.findings) - FINDINGS)


def name_nodes(nodes: tuple[str, ...]) -> str:
    """All names while they are few, else the first ones and a number."""
    if len(nodes) <= NODES:
        return ", ".join(nodes)
    return f"{', '.join(nodes[:3])} and {len(nodes) - 3} more"


def _earlier(report: NightReport) -> str:
    earlier = report.judgement.earlier
    if len(earlier) < 2:
        return earlier[0] if earlier else "no earlier night"
    return f"{len(earlier)} nights: {earlier[0]} to {earlier[-1]}"


def facts(report: NightReport) -> list[tuple[str, str]]:
    night = report.night
    return [
        ("night", night.name),
        ("suite", f"{night.suite.name}, seed {night.suite.seed}"),
        ("bed", f"{night.bed} ({night.provider})"),
        ("started", night.started),
        ("nodes", name_nodes(tuple(night.hosts))),
        ("compared with", _earlier(report)),
        *([("history", report.judgement.history)] if report.judgement.history else []),
        ("ccbed", night.ccbed),
        ("exit", str(report.judgement.exit)),
    ]
