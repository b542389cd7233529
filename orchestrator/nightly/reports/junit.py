"""JUnit XML of a night: a suite for each trial with its repeats, one for each metric with its nodes, one for the night itself."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from ...model.frozen import dataclass
from ...reports.junit import clean
from .. import rows
from ..night_judgement import Judged
from ..suite import Row
from .night_report import NightReport, cells
from .table import ORDER

_ROW_TAGS = {
    "failed": "failure", "error": "error", "unfinished": "failure", "unknown": "error", "skipped": "skipped", "not run": "skipped"
}  # fmt: skip
_FINDING_TAGS = {"fail": "failure", "xpass": "failure", "unknown": "error", "xfail": "skipped"}
_NIGHT_TAGS = {"fail": "failure", "unknown": "error"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """``tag``: failure, error or skipped; empty if it passed. ``text``: the evidence."""

    name: str
    tag: str
    type: str
    message: str
    text: str = ""
    duration_s: float = 0.0


def render(report: NightReport) -> bytes:
    """``junit.xml``. Its suites are as red as the exit code of the night."""
    root = ET.Element("testsuites", name=clean(report.night.name))
    _suite(root, report, "night", [_night(report)])
    for cell in cells(report):
        repeats = [_repeat(row, report) for row in cell.rows]
        if not repeats:
            repeats = [Case(name="run", tag="skipped", type="not run", message="the night has no row of this cell")]
        _suite(root, report, cell.cell, repeats)
    metrics: dict[str, dict[str, list[Judged]]] = {}
    for judged in report.gate_findings():
        name = f"{judged.cell}: {judged.finding.metric}" if judged.finding.metric else judged.finding.gate
        metrics.setdefault(name, {}).setdefault(judged.finding.node or "all nodes", []).append(judged)
    for name, nodes in metrics.items():
        _suite(root, report, name, [_figure(node, judged) for node, judged in nodes.items()])
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _night(report: NightReport) -> Case:
    judgement = report.judgement
    tag = _NIGHT_TAGS.get(judgement.outcome, "error" if judgement.exit else "")
    text = "\n".join([*judgement.notes, f"run it again: {report.night.command}"])
    return Case(name="verdict", tag=tag, type=judgement.outcome, message=judgement.sentence, text=text)


def _repeat(row: Row, report: NightReport) -> Case:
    text = f"run: {report.directory}/runs/{row.run}" if row.run else "no bundle"
    tag = "skipped" if rows.node(row) else _ROW_TAGS.get(row.state, "")
    again = f", again on {row.again}" if row.again else ""
    return Case(
        name=f"repeat {row.repeat + 1}{again}", tag=tag, type=row.state, message=row.reason or row.state,
        text=text, duration_s=row.duration_s,
    )  # fmt: skip


def _figure(node: str, judged: Iterable[Judged]) -> Case:
    """A metric of a node: the worst of its findings. One that does not count is skipped."""
    ranked = sorted(judged, key=lambda entry: (not entry.is_counted, ORDER.index(entry.state)))
    first = ranked[0]
    message = f"{first.ticket}: {first.finding.text}" if first.ticket else first.finding.text
    text = "\n".join(f"{entry.state} {entry.finding.gate}: {entry.finding.text}" for entry in ranked[1:])
    tag = _FINDING_TAGS.get(first.state, "") if first.is_counted else "skipped"
    return Case(name=node, tag=tag, type=first.state, message=message, text=text)


def _suite(root: ET.Element, report: NightReport, name: str, cases: list[Case]) -> None:
    tags = [case.tag for case in cases]
    suite = ET.SubElement(
        root, "testsuite", name=clean(f"ccbed.{report.night.suite.name}.{name}"), tests=str(len(cases)),
        failures=str(tags.count("failure")), errors=str(tags.count("error")), skipped=str(tags.count("skipped")),
        time=f"{sum(case.duration_s for case in cases):.3f}", timestamp=clean(report.night.started.rstrip("Z")),
    )  # fmt: skip
    for case in cases:
        element = ET.SubElement(
            suite, "testcase", classname=clean(f"ccbed.{report.night.suite.name}.{name}"), name=clean(case.name),
            time=f"{case.duration_s:.3f}",
        )  # fmt: skip
        if case.tag:
            ET.SubElement(element, case.tag, type=case.type, message=clean(case.message)).text = clean(case.text)
        else:
            ET.SubElement(element, "system-out").text = clean(f"{case.message}\n{case.text}".rstrip())
