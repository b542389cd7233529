"""JUnit XML of a night: a suite for each trial with its repeats, one for each metric with its nodes, one for the night itself."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable

from ...model.frozen import dataclass
from ...reports.junit import clean
from .. import row_states
from ..night_judgement import Judged
from ..suite import Row
from .night_report import NightReport, cells
from .night_table import ORDER

#: The tags of states of nights, of repeats and of findings; the others passed.
_TAGS = {
    "fail": "failure", "failed": "failure", "unfinished": "failure", "xpass": "failure", "unknown": "error", "error": "error",
    "skipped": "skipped", "not run": "skipped", "xfail": "skipped",
}  # fmt: skip


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
    judgement = report.judgement
    text = "\n".join([*judgement.notes, f"run it again: {report.night.command}"])
    tag = _TAGS.get(judgement.outcome, "error" if judgement.exit else "")
    verdict = Case(name="verdict", tag=tag, type=judgement.outcome, message=judgement.sentence, text=text)
    suites = {"night": [verdict]}
    missing = Case(name="run", tag="skipped", type="not run", message="the night has no row of this cell")
    for cell in cells(report):
        suites[cell.cell] = [_repeat(row, report) for row in cell.rows] or [missing]
    metrics: dict[str, dict[str, list[Judged]]] = {}
    for judged in report.gate_findings():
        name = f"{judged.cell}: {judged.finding.metric}" if judged.finding.metric else judged.finding.gate
        metrics.setdefault(name, {}).setdefault(judged.finding.node or "all nodes", []).append(judged)
    for name, nodes in metrics.items():
        suites.setdefault(name, []).extend(_figure(node, judged) for node, judged in nodes.items())
    for name, cases in suites.items():
        _suite(root, report, f"ccbed.{report.night.suite.name}.{name}", cases)
    ET.indent(root)
    content: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return content + b"\n"


def _repeat(row: Row, report: NightReport) -> Case:
    again = f", again on {row.again}" if row.again else ""
    return Case(
        name=f"repeat {row.repeat + 1}{again}", tag="skipped" if row_states.node(row) else _TAGS.get(row.state, ""), type=row.state,
        message=row.reason or row.state, text=f"run: {report.directory}/runs/{row.run}" if row.run else "no bundle",
        duration_s=row.duration_s,
    )  # fmt: skip


def _figure(node: str, judged: Iterable[Judged]) -> Case:
    """A metric of a node: the worst of its findings. One that does not count is skipped."""
    first, *others = sorted(judged, key=lambda entry: (not entry.is_counted, ORDER.index(entry.state)))
    return Case(
        name=node, tag=_TAGS.get(first.state, "") if first.is_counted else "skipped", type=first.state,
        message=f"{first.ticket}: {first.finding.text}" if first.ticket else first.finding.text,
        text="\n".join(f"{entry.state} {entry.finding.gate}: {entry.finding.text}" for entry in others),
    )  # fmt: skip


def _suite(root: ET.Element, report: NightReport, name: str, cases: list[Case]) -> None:
    tags = [case.tag for case in cases]
    suite = ET.SubElement(
        root, "testsuite", name=clean(name), tests=str(len(cases)), failures=str(tags.count("failure")),
        errors=str(tags.count("error")), skipped=str(tags.count("skipped")), time=f"{sum(case.duration_s for case in cases):.3f}",
        timestamp=clean(report.night.started.rstrip("Z")),
    )  # fmt: skip
    for case in cases:
        element = ET.SubElement(
            suite, "testcase", classname=clean(name), name=clean(case.name), time=f"{case.duration_s:.3f}"
        )
        if case.tag:
            ET.SubElement(element, case.tag, type=case.type, message=clean(case.message)).text = clean(case.text)
        else:
            ET.SubElement(element, "system-out").text = clean(f"{case.message}\n{case.text}".rstrip())
