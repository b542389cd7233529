"""What changed since the last recorded night: findings, rows, nodes, versions, and the medians of metrics."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping

from ...model.frozen import dataclass
from ..gates.nights import Key, Metric, Record
from ..judging.night import RUN
from ..night_judgement import Judged
from ..run_record import nodes_of
from ..suite import Row
from .night_report import ROW_ORDER, NightReport, PreviousNight, parts, quantity, worst
from .trends import noun

#: A median that moved by less is not listed.
LEAST_MOVE = 0.01
#: Metrics that are listed, those that moved most.
MOST_MOVES = 5
_BAD = ("fail", "xpass", "warn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """``kind``: worse, better, version, node, note, or moved: of a median that changed, which the gates judge."""

    kind: str
    text: str


def changes(report: NightReport) -> tuple[Change, ...]:
    """Worse first. Without an earlier night, or with one that cannot be read, the first line says so."""
    earlier = _last_night(report)
    lines: list[Change] = []
    if isinstance(report.previous, PreviousNight):
        lines += [*_findings(report, report.previous), *_rows(report, report.previous)]
    if earlier:
        tonight = _tonight(report)
        lines += [
            *_nodes(earlier, tonight),
            *_versions(earlier, tonight),
            *_moves(earlier, tonight, report.judged_metrics()),
        ]
    if isinstance(report.previous, str):
        lines.append(Change(kind="note", text=f"Findings and rows are not compared: {report.previous}"))
    elif report.previous is None and not earlier:
        lines.append(Change(kind="note", text="No earlier recorded night to compare with"))
    order = ("note", "worse", "version", "node", "better", "moved")
    return tuple(sorted(lines, key=lambda change: order.index(change.kind)))


def _last_night(report: NightReport) -> tuple[Record, ...]:
    """The records of the newest recorded night before this one."""
    numbers = {
        record.night for record in report.records if not report.night.recorded or record.night < report.night.number
    }
    return tuple(record for record in report.records if numbers and record.night == max(numbers))


def _tonight(report: NightReport) -> tuple[Record, ...]:
    """Empty for a casual night: it has no records."""
    return tuple(record for record in report.records if report.night.recorded and record.night == report.night.number)


def _identity(judged: Judged) -> tuple[object, ...]:
    return judged.finding.gate, judged.finding.metric, judged.cell, parts(judged)


def _findings(report: NightReport, previous: PreviousNight) -> Iterator[Change]:
    before = {_identity(judged): judged for judged in previous.judgement.findings}
    for judged in (entry for entry in report.gate_findings() if entry.state in _BAD):
        earlier = before.get(_identity(judged))
        if earlier is None or earlier.state not in _BAD:
            yield Change(
                kind="worse",
                text=f"{judged.state}, was {earlier.state if earlier else 'not judged'}: {judged.finding.text}",
            )
        elif judged.state == "fail" and earlier.state == "warn":
            yield Change(kind="worse", text=f"fail, was warn: {judged.finding.text}")
    now = {_identity(judged): judged for judged in report.judgement.findings}
    for identity, judged in before.items():
        after = now.get(identity)
        if judged.finding.gate == RUN:
            continue
        if judged.state in _BAD and after is not None and after.state in ("pass", "xfail"):
            yield Change(kind="better", text=f"{after.state}, was {judged.state}: {after.finding.text}")
        elif judged.state in _BAD and (after is None or after.state == "unknown"):
            reason = after.finding.text if after else "it was not judged tonight"
            yield Change(kind="worse", text=f"unknown, was {judged.state} ({judged.finding.text}): {reason}")


def _rows(report: NightReport, previous: PreviousNight) -> Iterator[Change]:
    before, now = _states(previous.rows), _states(report.rows)
    for cell, state in now.items():
        if cell in before and before[cell] != state:
            is_worse = ROW_ORDER.index(state) < ROW_ORDER.index(before[cell])
            yield Change(kind="worse" if is_worse else "better", text=f"{cell}: {state}, was {before[cell]}")


def _states(rows: Iterable[Row]) -> Mapping[str, str]:
    states: dict[str, list[str]] = {}
    for row in rows:
        states.setdefault(row.cell, []).append(row.state)
    return {cell: worst(of_cell, ROW_ORDER) for cell, of_cell in states.items()}


def _nodes(earlier: tuple[Record, ...], tonight: tuple[Record, ...]) -> Iterator[Change]:
    before, now = ({node for record in records for node in nodes_of(record.node)} for records in (earlier, tonight))
    if not now:
        return
    for text, names in (("not measured tonight", before - now), ("not measured in the last night", now - before)):
        if names:
            yield Change(kind="node", text=f"{text}: {', '.join(sorted(names))}")


def _versions(earlier: tuple[Record, ...], tonight: tuple[Record, ...]) -> Iterator[Change]:
    before, now = _suspects(earlier), _suspects(tonight)
    nodes: dict[str, list[str]] = {}
    for node in sorted(before.keys() & now.keys()):
        for name in sorted(before[node].keys() | now[node].keys()):
            versions = before[node].get(name, "none"), now[node].get(name, "none")
            if versions[0] != versions[1]:
                nodes.setdefault(f"{name} {versions[0]} -> {versions[1]}", []).append(node)
    for text, changed in nodes.items():
        where = ", ".join(changed) if len(changed) <= 4 else f"{len(changed)} of {len(now)} nodes"
        yield Change(kind="version", text=f"{text} on {where}")


def _suspects(records: Iterable[Record]) -> Mapping[str, Mapping[str, str]]:
    versions: dict[str, dict[str, str]] = {}
    for record in records:
        nodes = nodes_of(record.node)
        if len(nodes) == 1:
            versions.setdefault(nodes[0], {}).update(record.suspects)
    return versions


def _moves(
    earlier: tuple[Record, ...], tonight: tuple[Record, ...], cells: Mapping[tuple[str, Key], str]
) -> list[Change]:  # fmt: skip
    """The medians over nodes that both nights have; else a slow node that is missing would look like progress."""
    moves: list[tuple[float, Change]] = []
    for metric, key, both, old, new in _medians(earlier, tonight, cells):
        if old <= 0 or new <= 0 or abs(new / old - 1) < LEAST_MOVE:
            continue
        direction = "worse" if metric.sign * (new - old) > 0 else "better"
        text = f"{metric.name} ({cells[metric.name, key] or key.workload}) {new / old - 1:+.1%}, {direction}:"
        text += f" {quantity(old, metric.unit)} -> {quantity(new, metric.unit)}"
        text += f", median of {len(both)} {noun([dict.fromkeys(both, 0.0)])}s" if len(both) > 1 else ""
        moves.append((abs(math.log(new / old)), Change(kind="moved", text=text)))
    moves.sort(key=lambda move: -move[0])
    return [change for _, change in moves[:MOST_MOVES]]


def compares_medians(report: NightReport) -> bool:
    """Whether the last night has figures of tonight: without them no median can have moved."""
    return any(True for _ in _medians(_last_night(report), _tonight(report), report.judged_metrics()))


def _medians(
    earlier: tuple[Record, ...], tonight: tuple[Record, ...], cells: Mapping[tuple[str, Key], str]
) -> Iterator[tuple[Metric, Key, list[str], float, float]]:
    """Metric, key, the nodes that both nights have, and their median then and now."""
    before, now = _values(earlier), _values(tonight)
    for (metric, key), nodes in now.items():
        both = sorted(nodes.keys() & before.get((metric, key), {}).keys())
        if both and (metric.name, key) in cells:
            old, new = (statistics.median(values[metric, key][node] for node in both) for values in (before, now))
            yield metric, key, both, old, new


def _values(records: Iterable[Record]) -> Mapping[tuple[Metric, Key], Mapping[str, float]]:
    """The median of each node's finite values."""
    values: dict[tuple[Metric, Key], dict[str, float]] = {}
    for record in records:
        finite = [value for value in record.values if math.isfinite(value)]
        if finite:
            values.setdefault((record.metric, record.key), {})[record.node] = statistics.median(finite)
    return values
