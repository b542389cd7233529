"""Gathers what the reports of a night show: its rows and findings, the records of earlier nights, and links to its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model.frozen import dataclass, field
from ..judging.night import RUN
from ..night_judgement import FLEET, Judged, NightJudgement
from ..records import Record
from ..suite import Night, Row
from .night_table import ALL_NODES, ORDER

#: States of repeats, from the worst to the best.
ROW_ORDER = ("failed", "error", "unfinished", "unknown", "skipped", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """``records``: of the bed's recorded nights, this one included if it is recorded. ``links``: name of a run -> address of
    its page, relative to the report. ``directory``: of the night, as people know it.
    """

    night: Night
    rows: tuple[Row, ...]
    judgement: NightJudgement
    records: tuple[Record, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""

    def gate_findings(self) -> tuple[Judged, ...]:
        """Return the findings without those that only repeat a row. A passed row whose bundle cannot be read has an unknown finding."""
        return tuple(
            judged for judged in self.judgement.findings if judged.finding.gate != RUN or judged.state == "unknown"
        )

    def with_states(self, *states: str) -> tuple[Judged, ...]:
        """The findings in these states, in the order of the judgement."""
        return tuple(judged for judged in self.judgement.findings if judged.state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRows:
    """A cell with its repeats. ``state``: the worst of them, or ``not run``. ``reasons``: of repeats that did not pass."""

    cell: str
    trial: str
    state: str
    rows: tuple[Row, ...]
    duration_s: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A part that findings name: a node, a link, a switch group, or all nodes together."""

    name: str
    state: str
    findings: tuple[Judged, ...]

    @property
    def since(self) -> str:
        """The earliest of the nights in which its findings began."""
        return min((judged.finding.since for judged in self.findings if judged.finding.since), default="")

    @property
    def changed(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for judged in self.findings for text in judged.finding.suspects))

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run for judged in self.findings for run in judged.runs))


def worst(states: Iterable[str], order: Sequence[str], default: str = "") -> str:
    present = set(states)
    return next((state for state in order if state in present), default)


def cells(report: NightReport) -> tuple[CellRows, ...]:
    """The cells in the order of the night, then those of the suite that were not chosen."""
    suite = {cell.name: cell for cell in report.night.suite.cells}
    rows: dict[str, list[Row]] = {name: [] for name in (*report.night.order, *suite)}
    for row in report.rows:
        rows.setdefault(row.cell, []).append(row)
    return tuple(
        CellRows(
            cell=name, trial=suite[name].trial if name in suite else "", rows=tuple(of_cell),
            state=worst((row.state for row in of_cell), ROW_ORDER, "not run"),
            duration_s=sum(row.duration_s for row in of_cell),
            reasons=tuple(dict.fromkeys(row.reason for row in of_cell if row.reason)),
        )
        for name, of_cell in rows.items()
    )  # fmt: skip


def parts(judged: Judged) -> tuple[str, ...]:
    """The parts that a finding names. A row of a run names none, and a figure of a whole run only its cell."""
    finding = judged.finding
    if finding.culprits or finding.node:
        return finding.culprits or (finding.node or "",)
    if finding.gate == FLEET:
        return (ALL_NODES,)
    return (f"{judged.cell or 'the suite'} (whole run)",) if finding.metric else ()


def suspects(report: NightReport) -> tuple[Suspect, ...]:
    """The parts that failed or are suspects, worst first, then by the number of findings. A finding stands with one of them."""
    findings: dict[str, list[Judged]] = {}
    for judged in report.with_states("fail", "xpass", "warn"):
        for name in parts(judged)[:1]:
            findings.setdefault(name, []).append(judged)
    named = [
        Suspect(
            name=name, state=worst((judged.state for judged in of_part), ORDER),
            findings=tuple(sorted(of_part, key=lambda judged: ORDER.index(judged.state))),
        )
        for name, of_part in findings.items()
    ]  # fmt: skip
    return tuple(sorted(named, key=lambda part: (ORDER.index(part.state), -len(part.findings), part.name)))


def unknowns(report: NightReport) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return why figures are not known, and of which metrics: 64 nodes without a value are one line."""
    groups: dict[str, dict[str, None]] = {}
    for judged in report.with_states("unknown"):
        if judged.is_counted:
            finding = judged.finding
            text = finding.text.removeprefix(f"{finding.node}: ") if finding.node else finding.text
            text = (
                text.removeprefix(f"{finding.metric} ").removeprefix(f"{finding.metric}: ") if finding.metric else text
            )
            groups.setdefault(text, {})[finding.metric or finding.gate] = None
    return tuple((text, tuple(metrics)) for text, metrics in groups.items())
