"""Judge a night: findings of gates and floors, rows that did not pass, known defects, then outcome and exit code.

The same night, history and baselines give the same judgement. Only nights before it are used.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ...app.hosts import quarantine
from ...store import bundle, paths
from .. import bundle_records, classes, identity, levels, night_files
from .. import row_states as night_rows
from ..baselines import Baseline
from ..classes import MetricClass
from ..night_judgement import Judged, NightJudgement
from ..records import Finding, Key, Record
from ..run_record import RunRecord, exempt, nodes_of
from ..statistics import digests
from ..suite import RUNS, MetricRule, Night, Row
from . import (
    busy_hosts,
    cells,
    conclusion,
    figures,
    floor_limits,
    hardware,
    known_defects,
    link_parts,
    metric_kinds,
    shipped_floors,
)  # fmt: skip
from .figures import NODE_PROBE, Series

RUN, SPARE, NODE = "run", "spare", "node"
#: The run that decided about a spare, at the end of the reason.
_DECISIVE_RUN = re.compile(r"\((\S+)\)$")
#: Nodes that left the bed and have a note each.
_LISTED = 4
#: Nights for which a metric that is no longer measured is missed.
RECENT = 3


def judge(
    directory: Path,
    history: Iterable[Record],
    baselines: Iterable[Baseline] = (),
    quarantined: Iterable[str] = (),
    earlier: Iterable[NightJudgement] = (),
    known: Sequence[MetricClass] = (),
) -> NightJudgement:
    """``history``: records of recorded nights of the bed. ``quarantined``: nodes whose failures are expected, and which are no
    reference for other nodes. ``earlier``: judgements of the last recorded nights before this one, for the nodes that tickets
    cover. ``known``: the classes of metrics, those that ccbed ships where none are given. Raises UsageError and TornBundleError for a
    night that cannot be read.

    A bundle that cannot be read is a note, and its row a finding.
    """
    night, rows = night_files.read_night(directory), night_files.read_rows(directory)
    runs, notes = read_runs(directory, rows, night)
    history = identity.Nodes(night.all_hosts).records(tuple(history))
    past = [record for record in history if _is_before(record, night)]
    number = night.number or max((record.night for record in past), default=0) + 1
    series = figures.collect(runs)
    groups = figures.group(past)
    baselines, quarantined = tuple(baselines), frozenset(quarantined)
    # A cell over the budget is not measured, and fails nothing.
    tried = {row.cell for row in rows if row.state != "skipped"}
    tonight = _tonight(night, tried, runs, series)
    about = _about(night, directory, number, series, groups, quarantined)
    accepted = [baseline.hardware for baseline in baselines if baseline.floors]
    findings = [
        *_judge_rows(rows, {record.run: record for _, record in runs}),
        *(
            judged
            for cell in night.suite.cells
            if cell.name in tried
            for judged in floor_limits.judge_suite(cell, series.values())
        ),
        *(judged for baseline in baselines for judged in floor_limits.judge_baseline(baseline, tonight)),
        *shipped_floors.judge(
            series.values(), accepted, (record for _, record in runs if record.workload == NODE_PROBE)
        ),
        *_judge_series(night, about, tonight, groups, known or classes.read()),
        *hardware.judge(series, past, night.all_hosts, accepted),
    ]
    spares = night_files.read_spares(directory)
    for node, reason in spares.unfit.items() if spares else ():
        finding = Finding(gate=SPARE, outcome="warn", node=node, text=f"{node} {reason}")
        findings.append(Judged(finding=finding, state="warn", runs=tuple(_DECISIVE_RUN.findall(reason))))
    findings += _bits(runs)
    findings = known_defects.apply(night, findings, series, earlier, _is_node_absent(night, runs, past))
    findings = known_defects.expect_failures_of(quarantined, findings)
    judgement = conclusion.conclude(
        rows, tuple(findings), earlier=_earlier(series, groups), fail_on=night.fail_on,
        night=f"night {night.number}" if night.number else "this night",
        notes=(
            *notes, *(spares.notes if spares else ()), *_unused(history, night), *_notes(night, runs, past),
            *floor_limits.notes_on(baselines, tonight),
        ),
    )  # fmt: skip
    disturbed = {node: reason for (of_night, node), reason in about.busy.items() if of_night == number}
    busy = {**about.crowded, **disturbed}
    texts = (f"{node} on host {night.all_hosts.get(node, node)}: {reason}" for node, reason in sorted(busy.items()))
    return dataclasses.replace(judgement, busy=tuple(texts))


def read_runs(
    directory: Path, rows: Iterable[Row], night: Night
) -> tuple[list[tuple[str, RunRecord]], tuple[str, ...]]:
    """The bundles that rows name, with their cells, and notes on those that cannot be read and on figures without a value.

    Their nodes have the names that the night has for their hosts.
    """
    runs, notes = [], []
    nodes = identity.Nodes(night.all_hosts)
    for row in sorted((row for row in rows if row.run), key=lambda row: (row.cell, row.repeat)):
        try:
            record = bundle_records.read(directory / RUNS / row.run)
        except paths.TornBundleError as error:
            notes.append(f"{row.run} is left out: {'; '.join(error.problems)}")
            continue
        runs.append((row.cell, nodes.run(dataclasses.replace(record, again=bool(row.again)))))
        notes += [f"{row.cell}: {note}" for note in record.notes]
    return runs, tuple(dict.fromkeys(notes))


def _is_before(record: Record, night: Night) -> bool:
    """A casual night has no number: it is compared with the nights that started before it."""
    return record.night < night.number if night.number else record.date < night.started


def _judge_rows(rows: Iterable[Row], records: Mapping[str, RunRecord]) -> Iterator[Judged]:
    """A row that did not pass. A passed row is unknown if its figures cannot be compared: no bundle, no figure, no hardware.

    A node that was lost is unknown, and the night is judged by what the others measured.
    """
    for row in rows:
        if node := night_rows.node(row):
            finding = Finding(gate=NODE, outcome="unknown", node=node, text=f"{node}: {row.reason}")
            yield Judged(finding=finding, state="unknown", is_counted=False)
            continue
        state = conclusion.STATES.get(row.state)
        reason = row.reason
        if row.state == "passed" and row.run and (gap := _gap(records.get(row.run))):
            state, reason = "unknown", gap
        if state is None:
            continue
        text = f"{row.cell}, repeat {row.repeat + 1}: {row.state}" + (f": {reason}" if reason else "")
        finding = Finding(gate=RUN, outcome=state, text=text)
        yield Judged(finding=finding, state=state, cell=row.cell, runs=(row.run,) if row.run else ())


def _gap(record: RunRecord | None) -> str:
    """Return why the figures of a run that passed cannot be compared; empty if they can."""
    if record is None:
        return "its bundle cannot be read"
    if nodes := [node for node, kind in record.hardware.items() if not kind]:
        return f"the hardware of {', '.join(nodes)} is not known, so that its figures cannot be compared"
    return "" if record.measurements else "it has no figure that can be compared"


def _can_have(record: RunRecord, hardware: str, metric: str) -> bool:
    """Return whether a node of this hardware took part that has such a figure by definition."""
    nodes = {node for node, kind in record.hardware.items() if kind == hardware}
    return bool(nodes - set(exempt(record, metric)))


def _tonight(
    night: Night,
    tried: Collection[str],
    runs: Iterable[tuple[str, RunRecord]],
    series: Mapping[tuple[str, Key], Series],
) -> floor_limits.Tonight:
    measured = tuple((cell, record) for cell, record in runs if not record.again)
    return floor_limits.Tonight(
        series=series,
        hardware=frozenset(kind for _, record in measured for kind in record.hardware.values() if kind),
        can_have=lambda hardware, metric: any(_can_have(record, hardware, metric) for _, record in measured),
        tried={Path(cell.trial).stem: cell.name for cell in reversed(night.suite.cells) if cell.name in tried},
    )


def _about(
    night: Night,
    directory: Path,
    number: int,
    series: Mapping[tuple[str, Key], Series],
    groups: Mapping[tuple[str, Key], Sequence[Record]],
    quarantined: Collection[str],
) -> cells.Tonight:
    accepted = [level for level in levels.read(directory.parent, night.bed) if level.night < number]
    loads = {identity: entry for identity, entry in series.items() if identity[0] in busy_hosts.BUSY}
    shares = [record for entry in loads.values() for record in entry.records(number, night.started)]
    past = [record for identity in loads for record in groups.get(identity, ())]
    return cells.Tonight(
        number=number, date=night.started, levels=accepted, apart=quarantined, busy=busy_hosts.busy((*past, *shares)),
        crowded=busy_hosts.crowded(shares, night.all_hosts),
    )  # fmt: skip


def _judge_series(
    night: Night,
    about: cells.Tonight,
    tonight: floor_limits.Tonight,
    groups: Mapping[tuple[str, Key], Sequence[Record]],
    known: Sequence[MetricClass],
) -> Iterator[Judged]:
    series = tonight.series
    rules = {cell.name: cell.rules for cell in night.suite.cells}

    def rules_of(entry: Series, name: str) -> list[MetricRule]:
        return [rule for cell in entry.cells for rule in rules.get(cell, ()) if floor_limits.matches(rule, name)]

    subjects: list[cells.Subject] = []
    for (name, key), entry in series.items():
        named = rules_of(entry, name)
        if not (figures.is_judged(name, key) or named):
            continue
        past = groups.get((name, key), ())
        minimum = max((rule.minimum_absolute for rule in named), default=0.0)
        between, comparable, reason = link_parts.between_hosts(entry, past)
        if reason:
            yield metric_kinds.unknown(between, reason, is_counted=False)
        if between.values:
            subject, findings = metric_kinds.sort(
                between, comparable, classes.of(name, known), about.levels, minimum, about.apart
            )
            yield from findings
            subjects += [subject] if subject else []
    judged = tuple(cells.judge(subjects, about))
    yield from judged
    for subject in subjects:
        if subject.metric.name == link_parts.LINK:
            yield from link_parts.judge_pairs(subject.series, judged, subject.kind, about.apart)
    measured = {key: entry for (_, key), entry in series.items()}
    for (name, key), past in groups.items():
        may_lack = key.hardware in tonight.hardware and not tonight.can_have(key.hardware, name)
        is_missed = (
            key in measured and (name, key) not in series and not may_lack and past[-1].night >= about.number - RECENT
        )
        if is_missed and (figures.is_judged(name, key) or rules_of(measured[key], name)):
            text = f"{name} was not measured; it was on {len({record.night for record in past})} earlier nights"
            finding = Finding(gate=metric_kinds.MEASUREMENT, outcome="unknown", metric=name, text=text)
            yield Judged(finding=finding, state="unknown", cell=measured[key].cells[0], key=key)


def _is_node_absent(night: Night, runs: Iterable[tuple[str, RunRecord]], past: Iterable[Record]) -> bool:
    """Return whether a node of the bed that was measured before took no part: a known defect may be its own."""
    present = {node for _, record in runs for node in record.hardware}
    wanted = {*night.hosts, *night.drained}
    return any(node in wanted and node not in present for record in past for node in nodes_of(record.node))


def _earlier(
    series: Mapping[tuple[str, Key], Series], groups: Mapping[tuple[str, Key], Sequence[Record]]
) -> tuple[str, ...]:
    """The nights that had a figure of tonight."""
    nights = {record.night: record.date for identity in series for record in groups.get(identity, ())}
    return tuple(date or f"night {number}" for number, date in sorted(nights.items()))


def _unused(history: Iterable[Record], night: Night) -> Iterator[str]:
    """A casual night has no place among the recorded ones but its date."""
    later = {record.night for record in history if not night.number and not _is_before(record, night)}
    if later:
        yield f"{len(later)} recorded nights are dated after this one, {night.started}, and are not compared with it"


def _notes(
    night: Night,
    runs: Sequence[tuple[str, RunRecord]],
    past: Sequence[Record],
) -> Iterator[str]:
    """Nodes in quarantine, drained, gone or absent, and clocks that went backwards."""
    yield from quarantine.describe(night)
    yield from (f"{node} {reason}; it takes no part" for node, reason in sorted(night.drained.items()))
    dates = dict(sorted((record.night, record.date) for record in past if record.date))
    dates[max(dates, default=0) + 1] = night.started
    for before, after in zip(list(dates.values()), list(dates.values())[1:], strict=False):
        if after < before:
            yield f"the clock went backwards: the night after that of {before} is dated {after}; nights count in their order"
    last_seen = {node: record for record in past for node in nodes_of(record.node) if node not in night.drained}
    present = {node for _, record in runs for node in record.hardware}
    gone = [node for node in sorted(last_seen) if night.hosts and node not in night.all_hosts]
    if len(gone) > _LISTED:  # each Slurm job has other hosts
        yield f"{len(gone)} nodes of earlier nights are no longer part of the bed ({', '.join(gone[:_LISTED])}, …)"
    for node in sorted(last_seen):
        if node in gone:
            if len(gone) <= _LISTED:
                yield f"{node} is no longer part of the bed; it was last measured on {last_seen[node].date}"
        elif node not in present and node not in night.spares:
            yield f"{node} took no part tonight; it was last measured on {last_seen[node].date}"


def _bits(runs: Iterable[tuple[str, RunRecord]]) -> Iterator[Judged]:
    """The digests of all node probes tonight. ``runs``: cell and record. Equal bits stay unknown, which is no defect."""
    computed: list[digests.Digest] = []
    names, cell_of = [], ""
    for cell, record in runs:
        if record.workload != NODE_PROBE:
            continue
        directory = Path(record.directory)
        try:
            results = digests.read([bundle.read_history(directory)], record.names)
        except paths.TornBundleError as error:
            text = f"the digests of {directory.name} cannot be read: {'; '.join(error.problems)}"
            finding = Finding(gate=digests.GATE, outcome="unknown", text=text)
            yield Judged(finding=finding, state="unknown", cell=cell, runs=(directory.name,))
            continue
        computed += results
        if results:
            names.append(directory.name)
            cell_of = cell_of or cell
    for finding in digests.judge(computed):
        yield Judged(
            finding=finding, state=finding.outcome, cell=cell_of, runs=tuple(names),
            reference="equal devices and libraries in the same night", is_counted=finding.outcome != "unknown",
        )  # fmt: skip
