"""What the reports of a night show: its rows and findings, the records of earlier nights, and links to its runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...model.frozen import dataclass, field
from ..gates.nights import Key, Record
from ..judging.night import RUN
from ..night_judgement import Judged, NightJudgement
from ..suite import Night, Row

#: States of findings, from the worst to the best. ``xpass`` counts as a failure.
FINDING_ORDER = ("fail", "xpass", "warn", "unknown", "xfail", "pass")
#: States of repeats, from the worst to the best.
ROW_ORDER = ("failed", "error", "unfinished", "unknown", "skipped", "passed")
#: The gate of a change that all nodes share, and what it names.
FLEET_GATE, FLEET = "fleet", "all nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousNight:
    """The recorded night before this one."""

    night: Night
    rows: tuple[Row, ...]
    judgement: NightJudgement


@dataclass(frozen=True, slots=True, kw_only=True)
class NightReport:
    """``records``: of the bed's recorded nights, this one included if it is recorded. ``links``: name of a run -> address of
    its page, relative to the report. ``previous``: or why it cannot be read. ``directory``: of the night, as people know it.
    """

    night: Night
    rows: tuple[Row, ...]
    judgement: NightJudgement
    records: tuple[Record, ...] = ()
    previous: PreviousNight | str | None = None
    links: Mapping[str, str] = field(default_factory=dict)
    directory: str = ""

    def judged_metrics(self) -> Mapping[tuple[str, Key], str]:
        """Metric and key -> the first cell, of every metric that a gate read. Records have other figures, too."""
        cells: dict[tuple[str, Key], str] = {}
        for judged in self.judgement.findings:
            if judged.key is not None and judged.finding.metric:
                cells.setdefault((judged.finding.metric, judged.key), judged.cell)
        return cells

    def gate_findings(self) -> tuple[Judged, ...]:
        """Without those that only repeat a row. A passed row whose bundle cannot be read has an unknown finding."""
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
class Culprit:
    """A part that findings name: a node, a link, a switch group, or the whole fleet."""

    name: str
    state: str
    findings: tuple[Judged, ...]

    @property
    def since(self) -> str:
        """The earliest of the nights in which its findings began."""
        return min((judged.finding.since for judged in self.findings if judged.finding.since), default="")

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(judged.finding.metric for judged in self.findings if judged.finding.metric))

    @property
    def gates(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(judged.finding.gate for judged in self.findings))

    @property
    def suspects(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(text for judged in self.findings for text in judged.finding.suspects))

    @property
    def runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run for judged in self.findings for run in judged.runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """A floor of a metric, over all nodes. ``worst``: the finding whose value is nearest to the floor, or beyond it."""

    cell: str
    metric: str
    reference: str
    worst: Judged
    count: int
    below: int


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
    if finding.gate == FLEET_GATE:
        return (FLEET,)
    return (f"{judged.cell or 'the suite'} (whole run)",) if finding.metric else ()


def culprits(report: NightReport) -> tuple[Culprit, ...]:
    """The parts that failed or are suspects, worst first, then by the number of findings."""
    findings: dict[str, list[Judged]] = {}
    for judged in report.with_states("fail", "xpass", "warn"):
        for name in parts(judged):
            findings.setdefault(name, []).append(judged)
    named = [
        Culprit(
            name=name, state=worst((judged.state for judged in of_part), FINDING_ORDER),
            findings=tuple(sorted(of_part, key=lambda judged: FINDING_ORDER.index(judged.state))),
        )
        for name, of_part in findings.items()
    ]  # fmt: skip
    return tuple(sorted(named, key=lambda part: (FINDING_ORDER.index(part.state), -len(part.findings), part.name)))


def floors(report: NightReport) -> tuple[Floor, ...]:
    """The floors by cell and metric, those with a node below them first."""
    groups: dict[tuple[str, str, str], list[Judged]] = {}
    for judged in report.judgement.findings:
        if judged.finding.gate == "floor":
            groups.setdefault((judged.cell, judged.finding.metric, judged.reference), []).append(judged)
    better = {record.metric.name: record.metric.better for record in report.records}
    rows = [
        Floor(
            cell=cell, metric=metric, reference=reference, count=len(group),
            below=sum(judged.state in ("fail", "xfail") for judged in group),
            worst=min(group, key=lambda judged: _rank(judged, better.get(judged.finding.metric))),
        )
        for (cell, metric, reference), group in groups.items()
    ]  # fmt: skip
    return tuple(sorted(rows, key=lambda row: (FINDING_ORDER.index(row.worst.state), row.cell, row.metric)))


def _rank(judged: Judged, better: str | None) -> tuple[int, float]:
    """The worst state first; then a missing value, then the worst value if the direction is known."""
    sign = {"higher": 1.0, "lower": -1.0}.get(better or "", 0.0)
    value = float("-inf") if judged.value is None else sign * judged.value
    return FINDING_ORDER.index(judged.state), value


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Findings with one message. ``metrics`` and ``nodes``: those that it is about. ``is_counted``: see Judged."""

    state: str
    gate: str
    message: str
    metrics: tuple[str, ...]
    nodes: tuple[str, ...]
    ticket: str = ""
    is_counted: bool = True


def grouped(findings: Iterable[Judged]) -> tuple[Group, ...]:
    """Findings with one state, gate, ticket and message together: 64 nodes without a history are one line, not 64."""
    groups: dict[tuple[str, str, str, str, bool], list[Judged]] = {}
    for judged in findings:
        identity = judged.state, judged.finding.gate, message(judged), judged.ticket, judged.is_counted
        groups.setdefault(identity, []).append(judged)
    return tuple(
        Group(
            state=state, gate=gate, message=text, ticket=ticket, is_counted=is_counted,
            metrics=tuple(dict.fromkeys(judged.finding.metric for judged in group if judged.finding.metric)),
            nodes=tuple(dict.fromkeys(judged.finding.node for judged in group if judged.finding.node)),
        )
        for (state, gate, text, ticket, is_counted), group in groups.items()
    )  # fmt: skip


def message(judged: Judged) -> str:
    """A finding without the node and the metric that it begins with; findings of several of them may then be equal."""
    finding = judged.finding
    text = finding.text.removeprefix(f"{finding.node}: ") if finding.node else finding.text
    return text.removeprefix(f"{finding.metric} ").removeprefix(f"{finding.metric}: ") if finding.metric else text


#: Prefixes for times, which are far below their unit.
_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "µ"), (1e-9, "n"), (1e-12, "p"))


def quantity(value: float, unit: str) -> str:
    """Four digits with the unit: 7.407 ms, 0.9646 ns/byte, 61.2 TFLOP/s, 0.967 for a share."""
    if unit == "1":
        return f"{value:.4g}"
    if unit in ("s", "s/byte") and 0 < abs(value) < 1:
        factor, prefix = next((entry for entry in _PREFIXES if abs(value) >= entry[0]), _PREFIXES[-1])
        return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"
