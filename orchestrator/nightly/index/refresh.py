"""Bring the tables up to date with a directory of runs: read what changed, drop what was removed."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from ...model.errors import CcbedError
from ...model.frozen import dataclass
from . import rows, scan
from .database import Database
from .entries import Refreshed
from .tables import measurements, nights, roots, runs, series, skipped, suspects

if TYPE_CHECKING:
    from ..run_record import RunRecord

ReadRun = Callable[[Path], "RunRecord"]

#: Directories of a transaction. A refresh that is killed keeps the transactions before.
BATCH = 400
_BINDS = 500


@dataclass(frozen=True, slots=True)
class _Run:
    """A bundle that was read, in the types of the tables."""

    row: rows.Row
    values: Mapping[rows.Series, list[Any]]
    versions: tuple[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Night:
    row: rows.Row
    cells: Sequence[tuple[str, str, int, bool]]


@dataclass(frozen=True, slots=True)
class _Damaged:
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A directory of runs in the database. ``host`` and ``path``: its identity there."""

    directory: Path
    host: str
    path: str

    def id(self, connection: sa.Connection) -> int | None:
        query = sa.select(roots.c.id).where(roots.c.host == self.host, roots.c.path == self.path)
        return connection.execute(query).scalar()

    def create(self, connection: sa.Connection) -> int:
        known = self.id(connection)
        if known is not None:
            return known
        number = _next(connection, roots)
        connection.execute(sa.insert(roots), {"id": number, "host": self.host, "path": self.path})
        return number


def refresh(database: Database, root: Root, read: ReadRun) -> Refreshed:
    """Raises InfrastructureError, DamagedIndexError. The order matters: a run that another process adds meanwhile is not removed."""
    known = _known(database, root)
    entries = list(scan.entries(root.directory, {name for name, (kind, _) in known.items() if kind == "run"}))
    signatures = {name: signature for name, (_, signature) in known.items()}
    changed = [entry for entry in entries if signatures.get(entry.directory) != entry.signature]
    removed = signatures.keys() - {entry.directory for entry in entries}
    if changed or removed:
        _apply(database, root, _with_nights(changed, entries), removed, read)
    with database.read() as connection:
        count = connection.execute(
            sa.select(sa.func.count()).select_from(skipped).where(skipped.c.root_id == root.id(connection))
        ).scalar_one()
    return Refreshed(read=len(changed), removed=len(removed), skipped=count)


def forget(database: Database, root: Root) -> None:
    with database.write() as connection:
        number = root.id(connection)
        if number is None:
            return
        own = sa.select(runs.c.id).where(runs.c.root_id == number)
        connection.execute(sa.delete(measurements).where(measurements.c.run_id.in_(own)))
        for table in (runs, nights, skipped):
            connection.execute(sa.delete(table).where(table.c.root_id == number))
        used = sa.select(measurements.c.series_id)
        connection.execute(sa.delete(series).where(series.c.id.not_in(used)))
        kept = sa.select(runs.c.suspects_id).where(runs.c.suspects_id.is_not(None))
        connection.execute(sa.delete(suspects).where(suspects.c.id.not_in(kept)))


def _known(database: Database, root: Root) -> dict[str, tuple[str, str]]:
    """Directory -> kind and signature, as the index has them."""
    with database.read() as connection:
        number = root.id(connection)
        return {
            directory: (kind, signature)
            for kind, table in (("run", runs), ("night", nights), ("", skipped))
            for directory, signature in connection.execute(
                sa.select(table.c.directory, table.c.signature).where(table.c.root_id == number)
            )
        }


def _with_nights(changed: Sequence[scan.Entry], entries: Iterable[scan.Entry]) -> list[scan.Entry]:
    """The changed entries, bundles first, and the nights of changed bundles: a night names the cells of its bundles."""
    touched = {entry.night for entry in changed}
    names = {entry.directory for entry in changed}
    affected = [entry for entry in entries if entry.is_night and (entry.directory in touched | names)]
    return [*(entry for entry in changed if not entry.is_night), *affected]


def _apply(
    database: Database, root: Root, changed: Sequence[scan.Entry], removed: Collection[str], read: ReadRun
) -> None:
    with database.write() as connection:
        number = root.create(connection)
        _delete(connection, number, removed)
    results = ((entry, _load(read, root.directory, entry)) for entry in changed)
    while batch := list(itertools.islice(results, BATCH)):
        with database.write() as connection:
            _delete(connection, number, [entry.directory for entry, _ in batch])
            _insert(connection, number, batch)


def _load(read: ReadRun, root: Path, entry: scan.Entry) -> _Run | _Night | _Damaged:
    directory = root / entry.directory
    try:
        if entry.is_night:
            return _load_night(directory, entry)
        record = read(directory)
        return _Run(rows.of_run(record, entry), rows.measured(record.measurements), rows.versions(record.suspects))
    except CcbedError as error:
        return _Damaged(rows.text("; ".join(error.problems)))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        return _Damaged(rows.text(f"{directory}: {type(error).__name__}: {error}"))


def _load_night(directory: Path, entry: scan.Entry) -> _Night | _Damaged:
    from .. import night_files

    is_closed = night_files.is_closed(directory)
    if is_closed and (problems := night_files.verify(directory)):
        return _Damaged(rows.text("; ".join(problems)))
    night, judgement = night_files.read_night(directory), None
    with contextlib.suppress(CcbedError):
        judgement = night_files.read_judgement(directory)
    cells = [
        (f"{entry.directory}/{scan.RUNS}/{row.run}", rows.text(row.cell), row.repeat, bool(row.again))
        for row in night_files.read_rows(directory)
        if row.run
    ]
    return _Night(rows.of_night(night, judgement, entry, is_closed=is_closed), cells)


def _delete(connection: sa.Connection, root: int, directories: Iterable[str]) -> None:
    names = iter(directories)
    while chunk := list(itertools.islice(names, _BINDS)):
        own = sa.select(runs.c.id).where(runs.c.root_id == root, runs.c.directory.in_(chunk))
        connection.execute(sa.delete(measurements).where(measurements.c.run_id.in_(own)))
        for table in (runs, nights, skipped):
            connection.execute(sa.delete(table).where(table.c.root_id == root, table.c.directory.in_(chunk)))


def _insert(connection: sa.Connection, root: int, batch: Sequence[tuple[scan.Entry, _Run | _Night | _Damaged]]) -> None:
    _insert_runs(connection, root, [result for _, result in batch if isinstance(result, _Run)])
    for entry, result in batch:
        if isinstance(result, _Damaged):
            row = {"directory": entry.directory, "signature": entry.signature, "reason": result.reason}
            connection.execute(sa.insert(skipped), {"root_id": root, **row})
        if entry.is_night:
            _name_cells(connection, root, entry.directory, result.cells if isinstance(result, _Night) else ())
        if isinstance(result, _Night):
            connection.execute(sa.insert(nights), {"id": _next(connection, nights), "root_id": root, **result.row})


def _insert_runs(connection: sa.Connection, root: int, results: Sequence[_Run]) -> None:
    if not results:
        return
    series_ids = _ids(connection, {name for result in results for name in result.values})
    first = _next(connection, runs)
    versions = _version_ids(connection, dict(result.versions for result in results))
    connection.execute(
        sa.insert(runs),
        [
            {"id": number, "root_id": root, "suspects_id": versions[result.versions[0]], **result.row}
            for number, result in enumerate(results, start=first)
        ],
    )
    values = [
        {"run_id": number, "series_id": series_ids[name], "values": values, "median": rows.median(values)}
        for number, result in enumerate(results, start=first)
        for name, values in result.values.items()
    ]
    if values:
        connection.execute(sa.insert(measurements), values)


def _ids(connection: sa.Connection, names: Collection[rows.Series]) -> dict[rows.Series, int]:
    """The numbers of series; new ones are inserted."""
    columns = [series.c[name] for name in rows.SERIES]
    metrics = sorted({name[1] for name in names})
    known: dict[rows.Series, int] = {}
    for start in range(0, len(metrics), _BINDS):
        query = sa.select(series.c.id, *columns).where(series.c.metric.in_(metrics[start : start + _BINDS]))
        known.update((tuple(row[1:]), row[0]) for row in connection.execute(query))
    new = [name for name in names if name not in known]
    if new:
        known.update(zip(new, itertools.count(_next(connection, series))))
        connection.execute(
            sa.insert(series), [{"id": known[name], **dict(zip(rows.SERIES, name, strict=True))} for name in new]
        )
    return known


def _version_ids(connection: sa.Connection, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    query = sa.select(suspects.c.digest, suspects.c.id).where(suspects.c.digest.in_(documents))
    known = {row.digest: row.id for row in connection.execute(query)}
    new = [digest for digest in documents if digest not in known]
    if new:
        known.update(zip(new, itertools.count(_next(connection, suspects))))
        connection.execute(
            sa.insert(suspects),
            [{"id": known[digest], "digest": digest, "versions": documents[digest]} for digest in new],
        )
    return known


def _name_cells(connection: sa.Connection, root: int, night: str, cells: Sequence[tuple[str, str, int, bool]]) -> None:
    """Only the runs that a row of the night names have a cell."""
    connection.execute(
        sa.update(runs).where(runs.c.root_id == root, runs.c.night == night).values(cell="", repeat=0, again=False)
    )
    update = (
        sa.update(runs)
        .where(runs.c.root_id == root, runs.c.directory == sa.bindparam("in_directory"))
        .values(cell=sa.bindparam("to_cell"), repeat=sa.bindparam("to_repeat"), again=sa.bindparam("to_again"))
    )
    if cells:
        connection.execute(
            update,
            [
                {"in_directory": name, "to_cell": cell, "to_repeat": repeat, "to_again": again}
                for name, cell, repeat, again in cells
            ],
        )


def _next(connection: sa.Connection, table: sa.Table) -> int:
    """The first free number. The writer holds the lock."""
    return (connection.execute(sa.select(sa.func.max(table.c.id))).scalar() or 0) + 1
