"""Questions to the index: runs, nights, records of recorded nights, trends."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from ...model.frozen import dataclass, field
from . import rows
from .entries import NightEntry, RunEntry, Trend, TrendPoint
from .tables import measurements, nights, runs, series, skipped, suspects

if TYPE_CHECKING:
    from ..gates.records import Key, Metric, Record

_RUN = tuple(RunEntry.__dataclass_fields__)
_NIGHT = tuple(name for name in NightEntry.__dataclass_fields__ if name != "runs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What is not empty restricts. ``since_s``: seconds since 1970. ``night``: a directory, or the end of its name."""

    bed: str | None = None
    trial: str | None = None
    outcome: str | None = None
    since_s: float | None = None
    night: str | None = None
    limit: int | None = None


def list_runs(connection: sa.Connection, root: int, path: str, wanted: Filter) -> tuple[tuple[RunEntry, ...], int]:
    """The newest runs, oldest first, and how many match without the limit."""
    conditions = [runs.c.root_id == root]
    exact = {name: getattr(wanted, name) for name in ("bed", "trial", "outcome")}
    conditions += [runs.c[name] == value for name, value in exact.items() if value is not None]
    if wanted.since_s is not None:
        conditions.append(runs.c.started_s >= wanted.since_s)
    if wanted.night is not None:
        conditions.append(
            (runs.c.night == wanted.night) | runs.c.night.like(f"%-{_literal(wanted.night)}%", escape="\\")
        )
    query = sa.select(*(runs.c[name] for name in _RUN)).where(*conditions)
    newest = query.order_by(sa.func.coalesce(runs.c.started_s, 0.0).desc(), runs.c.directory.desc()).limit(wanted.limit)
    count = connection.execute(sa.select(sa.func.count()).select_from(runs).where(*conditions)).scalar_one()
    result = [
        RunEntry(**{**row, "directory": f"{path}/{row['directory']}"}) for row in connection.execute(newest).mappings()
    ]
    return tuple(reversed(result)), count


def list_nights(
    connection: sa.Connection, root: int, path: str, bed: str | None, *, recorded: bool
) -> tuple[NightEntry, ...]:
    """In the order of their start; recorded nights of one bed in the order of their numbers."""
    conditions = [nights.c.root_id == root]
    if bed is not None:
        conditions.append(nights.c.bed == bed)
    if recorded:
        conditions.append(nights.c.number > 0)
    order = (nights.c.number,) if recorded else ()
    per_night = sa.select(runs.c.night, sa.func.count()).where(runs.c.root_id == root).group_by(runs.c.night)
    counts = {row[0]: row[1] for row in connection.execute(per_night)}
    query = sa.select(*(nights.c[name] for name in _NIGHT)).where(*conditions)
    listed = connection.execute(query.order_by(*order, nights.c.started_s, nights.c.directory)).mappings()
    return tuple(
        NightEntry(**{**row, "directory": f"{path}/{row['directory']}"}, runs=counts.get(row["directory"], 0))
        for row in listed
    )


def list_skipped(connection: sa.Connection, root: int) -> list[str]:
    query = sa.select(skipped.c.directory, skipped.c.reason).where(skipped.c.root_id == root)
    return [
        f"{directory} is skipped: {reason}"
        for directory, reason in connection.execute(query.order_by(skipped.c.directory))
    ]


def list_metrics(connection: sa.Connection, root: int) -> tuple[tuple[str, str], ...]:
    """Trial and metric of every measurement in a recorded night."""
    query = sa.select(runs.c.trial, series.c.metric).distinct().select_from(_joined()).where(*_recorded(root))
    return tuple((trial, metric) for trial, metric in connection.execute(query.order_by(runs.c.trial, series.c.metric)))


class _Identity(NamedTuple):
    """Measurements with an equal identity are repeats of one another. ``hosts``: of the nodes of a measurement, where they matter."""

    bed: str
    number: int
    node: str
    metric: str
    unit: str
    better: str
    key: Key
    hosts: tuple[str, ...] = ()


@dataclass(slots=True)
class _Group:
    """The measurements of a series in a night. ``night``: its row; ``suspects_id``: of the last run; ``hosts``: of the nodes of a run."""

    night: Any
    trial: str
    values: list[float] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    cells: set[str] = field(default_factory=set)
    suspects_id: int | None = None
    hosts: Mapping[str, str] = field(default_factory=dict)
    metric: Metric = field(init=False)


def records(
    connection: sa.Connection, root: int, bed: str, before_night: int | None, metric: str | None
) -> Iterator[Record]:
    """In the order of nights, nodes and metrics. The values are the medians of the passes of a cell, in order.

    A node that a new Slurm job moved to another host during a night has a record for each host.
    """
    from ..gates.records import Record
    from ..run_record import hosts_of, versions_of

    conditions = [nights.c.bed == bed]
    if before_night is not None:
        conditions.append(nights.c.number < before_night)
    if metric is not None:
        conditions.append(series.c.metric == metric)
    documents = sa.select(suspects.c.id, suspects.c.versions)
    versions = {row.id: row.versions for row in connection.execute(documents)}
    hosts = {number: hosts_of(document) for number, document in versions.items()}
    groups = _groups(connection, root, conditions, hosts)
    for identity, group in sorted(groups.items(), key=lambda item: item[0][:6]):
        yield Record(
            night=identity.number, node=identity.node, metric=group.metric, key=identity.key,
            values=tuple(group.values), again=tuple(group.again), date=group.night.started,
            suspects=versions_of(versions.get(group.suspects_id or 0, {}), identity.node), hosts=group.hosts,
        )  # fmt: skip


def trends(connection: sa.Connection, root: int, conditions: Sequence[sa.ColumnElement[bool]]) -> tuple[Trend, ...]:
    """Points in the order of nights and nodes; the definition of a metric is that of the newest night."""
    collected: dict[tuple[Any, ...], list[tuple[_Identity, _Group]]] = {}
    for identity, group in sorted(_groups(connection, root, conditions).items(), key=lambda item: item[0][:6]):
        trend = (identity.bed, group.trial, identity.metric, identity.unit, identity.better, identity.key)
        collected.setdefault(trend, []).append((identity, group))
    return tuple(
        Trend(
            bed=trend[0], trial=trend[1], cells=tuple(sorted(set().union(*(group.cells for _, group in members)))),
            metric=members[-1][1].metric, key=trend[5], points=tuple(_point(*member) for member in members),
        )
        for trend, members in sorted(collected.items(), key=lambda item: (*item[0][:5], str(item[0][5])))
    )  # fmt: skip


def _point(identity: _Identity, group: _Group) -> TrendPoint:
    values = tuple(group.values)
    return TrendPoint(
        night=identity.number, name=group.night.name, date=group.night.started, node=identity.node, value=rows.median(values),
        values=values,
    )  # fmt: skip


def matching(
    trial: str | None, metric: str | None, since_s: float | None, node: str | None, bed: str | None
) -> list[sa.ColumnElement[bool]]:
    """``trial``: of a trial or a cell, with or without its matrix. ``metric``: a name, or its last words.

    ``node``: with its ranks and links.
    """
    conditions: list[sa.ColumnElement[bool]] = []
    if trial:
        cell = runs.c.cell.like(f"{_literal(trial)}[%", escape="\\")
        conditions.append((runs.c.trial == trial) | (runs.c.cell == trial) | cell)
    if metric:
        conditions.append((series.c.metric == metric) | series.c.metric.like(f"% {_literal(metric)}", escape="\\"))
    if since_s is not None:
        conditions.append(nights.c.started_s >= since_s)
    if node is not None:
        label, ends = series.c.node, _literal(node)
        links = (label.like(f"{ends}{end}", escape="\\") for end in ("->%", ":%"))
        to_node = (label.like(f"%->{ends}{end}", escape="\\") for end in ("", ":%"))
        conditions.append(sa.or_(label == node, *links, *to_node))
    if bed is not None:
        conditions.append(nights.c.bed == bed)
    return conditions


def _groups(
    connection: sa.Connection,
    root: int,
    conditions: Sequence[sa.ColumnElement[bool]],
    hosts: Mapping[int, Mapping[str, str]] = MappingProxyType({}),
) -> dict[_Identity, _Group]:
    """The measurements, in the order of cells and repeats. Rows are many, and carry numbers of nights and series only.

    ``hosts``: node -> host by the number of the versions; without them nodes are told apart by their names only.
    Of two nights with one number, as after a copy of a directory, the last one counts. Raises TypeError for a damaged row.
    """
    query = (
        sa.select(
            nights.c.id,
            series.c.id,
            runs.c.trial,
            runs.c.cell,
            runs.c.again,
            runs.c.suspects_id,
            measurements.c["values"],
        )
        .select_from(_joined())
        .where(*_recorded(root), *conditions)
        .order_by(runs.c.cell, runs.c.repeat, runs.c.started_s, runs.c.id)
    )
    chosen = _chosen(connection, root)
    by_number: dict[tuple[int, int, int], _Group] = {}
    places: dict[tuple[tuple[str, str], ...], int] = {}
    place_of = {number: places.setdefault(tuple(sorted(known.items())), len(places)) for number, known in hosts.items()}
    for night_id, series_id, trial, cell, again, suspects_id, values in connection.execute(query):
        if night_id not in chosen:
            continue
        if type(values) is not list:
            raise TypeError("the values of a measurement are no list")
        place = place_of.get(suspects_id, -1)
        group = by_number.get((night_id, series_id, place))
        if group is None:
            known = hosts.get(suspects_id, {})
            group = by_number[night_id, series_id, place] = _Group(chosen[night_id], trial, hosts=known)
        (group.again if again else group.values).append(_of_pass(values))
        group.cells.add(cell)
        group.suspects_id = suspects_id
    return _identified(connection, by_number)


def _of_pass(values: list[float | str]) -> float:
    """The median of a run; of one with a value that is no number that value."""
    numbers = rows.decoded(values)
    return next((number for number in numbers if not math.isfinite(number)), rows.median(numbers) or 0.0)


def _identified(connection: sa.Connection, by_number: Mapping[tuple[int, int, int], _Group]) -> dict[_Identity, _Group]:
    """The groups by what they are. Two series that differ in their ceiling only are one."""
    from ..run_record import nodes_of

    numbers = {series_id for _, series_id, _ in by_number}
    columns = sa.select(series.c.id, *(series.c[name] for name in rows.SERIES))
    definitions = {row.id: row for row in connection.execute(columns) if row.id in numbers}
    groups: dict[_Identity, _Group] = {}
    for (_, series_id, _), group in by_number.items():
        row = definitions[series_id]
        night = group.night
        hosts = tuple(group.hosts.get(node, "") for node in nodes_of(row.node))
        identity = _Identity(night.bed, night.number, row.node, row.metric, row.unit, row.better, rows.key(row), hosts)
        group.metric = rows.metric(row)
        known = groups.setdefault(identity, group)
        if known is not group:
            known.values += group.values
            known.again += group.again
            known.cells |= group.cells
    return _with_second(groups)


def _with_second(groups: Mapping[_Identity, _Group]) -> dict[_Identity, _Group]:
    """Second measurements with the passes of their night: alone a node has another hardware, and a link another world."""
    known = {_suspect(identity): group for identity, group in groups.items() if group.values}
    for identity, group in groups.items():
        if not group.values and (passes := known.get(_suspect(identity))):
            passes.again += group.again
    return {identity: group for identity, group in groups.items() if group.values}


def _suspect(identity: _Identity) -> tuple[object, ...]:
    return identity.bed, identity.number, identity.node, identity.metric, identity.key.workload


def _chosen(connection: sa.Connection, root: int) -> dict[int, Any]:
    """Number in the database -> row of the night, for one night of each bed and number."""
    columns = nights.c.id, nights.c.bed, nights.c.number, nights.c.name, nights.c.started
    query = sa.select(*columns).where(nights.c.root_id == root).order_by(nights.c.directory)
    by_night = {(row.bed, row.number): row for row in connection.execute(query)}
    return {row.id: row for row in by_night.values()}


def _joined() -> sa.FromClause:
    in_night = (nights.c.root_id == runs.c.root_id) & (nights.c.directory == runs.c.night)
    return (
        series.join(measurements, measurements.c.series_id == series.c.id)
        .join(runs, runs.c.id == measurements.c.run_id)
        .join(nights, in_night)
    )


def _recorded(root: int) -> list[sa.ColumnElement[bool]]:
    """Sealed runs that a row of a recorded night names: a twin, or a run that was cut off, is not evidence of the night."""
    from ..run_record import MEASURED

    is_measured = runs.c.is_sealed.is_(True) & runs.c.outcome.in_(MEASURED)
    return [runs.c.root_id == root, nights.c.number > 0, runs.c.cell != "", is_measured]


def _literal(text: str) -> str:
    """For LIKE."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
