"""The index of a directory of runs, as other modules use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import msgspec
import sqlalchemy as sa

from ...model.frozen import replace
from . import refresh as refreshing
from .database import DamagedIndexError, Database, entries, file_of
from .entries import NightContent, NightEntry, RunEntry, Trend
from .refresh import ReadRun, seconds
from .scan import RUNS

if TYPE_CHECKING:
    from ..records import Record
    from ..run_record import Measurement, RunRecord
    from ..suite import Row

T = TypeVar("T")
#: Most values of a list in a statement.
_BINDS = 500


class Index:
    """``notes``: what an operator must know about the history: skipped directories, a damaged index, a clock that went backwards."""

    def __init__(self, runs_dir: Path, *, state: Path, url: str = "", read: ReadRun | None = None) -> None:
        """Raises UsageError, InfrastructureError."""
        self.directory = runs_dir.resolve()
        self._read = read or _read_bundle
        self._events: list[str] = []
        self._database = Database(url or file_of(self.directory, state))
        # The file of an index moves with its directory; a server knows many directories.
        root = f"{os.uname().nodename}:{self.directory}" if url else ""
        self._root = root.encode(errors="replace").decode()
        try:
            self._database.prepare()
        except DamagedIndexError as error:
            self._replace(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._database.close()

    @property
    def location(self) -> str:
        """The file, or the URL without its password."""
        return self._database.label

    def refresh(self) -> int:
        """Read what changed, and drop what was removed. Return how many were read. Raises InfrastructureError."""
        return self._mended(self._refresh)

    def _refresh(self) -> int:
        return refreshing.refresh(self._database, self.directory, self._root, self._read)

    def rebuild(self) -> int:
        """Read everything again. Raises InfrastructureError."""
        self._mended(lambda: refreshing.outdate(self._database, self._root))
        return self.refresh()

    @property
    def notes(self) -> tuple[str, ...]:
        from . import history

        with_reason = self._query(lambda connection: self._rows(connection, "skipped"))
        skipped = (f"{name} is skipped: {reason}" for name, reason in sorted(with_reason))
        nights = sorted(self._query(self._recorded), key=lambda night: (night.bed, night.number))
        return (*self._events, *skipped, *history.clock_notes(nights))

    def runs(
        self, *, bed: str | None = None, trial: str | None = None, outcome: str | None = None, since_s: float | None = None,
        night: str | None = None, limit: int | None = None,
    ) -> tuple[tuple[RunEntry, ...], int]:  # fmt: skip
        """The newest ``limit`` runs, oldest first, and the number of all that match. ``since_s``: seconds since 1970; ``night``: a
        directory, or the end of its name.
        """
        exact = {"bed": bed, "trial": trial, "outcome": outcome}
        conditions = [entries.c[name] == value for name, value in exact.items() if value is not None]
        conditions += [entries.c.started_s >= since_s] if since_s is not None else []
        if night is not None:
            is_end = entries.c.night.contains(f"-{night}", autoescape=True)
            conditions.append((entries.c.night == night) | is_end)
        conditions += [entries.c.root == self._root, entries.c.kind == "run"]

        def listed(connection: sa.Connection) -> tuple[tuple[RunEntry, ...], int]:
            newest = sa.func.coalesce(entries.c.started_s, 0.0).desc(), entries.c.directory.desc()
            query = sa.select(entries.c.directory, entries.c.content).where(*conditions).order_by(*newest).limit(limit)
            named = self._named(self._nights(connection))
            runs = [self._run(name, content, named) for name, content in connection.execute(query)]
            count = sa.select(sa.func.count()).select_from(entries).where(*conditions)
            return tuple(reversed(runs)), connection.execute(count).scalar_one()

        return self._query(listed)

    def _run(self, directory: str, content: str, named: Mapping[str, tuple[NightContent, Row]]) -> RunEntry:
        entry = msgspec.json.decode(content, type=RunEntry)
        _, row = named.get(directory, (None, None))
        cell, repeat = (row.cell, row.repeat) if row else ("", 0)
        return replace(entry, directory=f"{self.directory}/{directory}", cell=cell, repeat=repeat)

    def nights(self) -> tuple[NightEntry, ...]:
        """All nights, oldest first."""

        def listed(connection: sa.Connection) -> tuple[NightEntry, ...]:
            is_run = (entries.c.root == self._root) & (entries.c.kind == "run")
            query = sa.select(entries.c.night, sa.func.count()).where(is_run).group_by(entries.c.night)
            counts = {row[0]: row[1] for row in connection.execute(query)}
            return tuple(
                replace(
                    night, directory=f"{self.directory}/{night.directory}", runs=counts.get(night.directory, 0), rows=()
                )
                for night in sorted(
                    self._nights(connection), key=lambda night: (seconds(night.started) or 0.0, night.name)
                )
            )

        return self._query(listed)

    def records(self, *, bed: str) -> Iterator[Record]:
        """The measurements of the bed's recorded nights: what gates compare with."""
        from . import history

        return (
            figure.record()
            for figure in history.collect(self._query(lambda connection: self._of_nights(connection, bed)))
        )

    def trend(
        self, trial: str | None = None, metric: str | None = None, *, since_s: float | None = None, node: str | None = None,
        bed: str | None = None,
    ) -> tuple[Trend, ...]:  # fmt: skip
        """A trend per bed, trial, metric and comparability key, over recorded nights.

        ``trial``: the name of a trial or cell, with or without its matrix. ``metric``: its name, or the last words of it, such as
        ``busbw``. ``node``: with its ranks and links.
        """
        from ..run_record import nodes_of
        from . import history

        def is_wanted(item: Measurement) -> bool:
            is_metric = not metric or f" {item.metric.name}".endswith(f" {metric}")
            return is_metric and node in (None, item.node, *item.node.split("->"), *nodes_of(item.node))

        runs = self._query(lambda connection: self._of_nights(connection, bed, trial, since_s))
        return history.trends(history.collect(runs, is_wanted))

    def _of_nights(
        self, connection: sa.Connection, bed: str | None, trial: str | None = None, since_s: float | None = None
    ) -> list[tuple[NightContent, RunRecord]]:
        """Nights and runs that count, in the order of cells and repeats: sealed ones that a row of a recorded night names. A twin, or a
        run that was cut off, is not evidence of the night. Of two nights with one number, as after a copy of a directory, the last one
        counts.
        """
        from ..run_record import MEASURED, RunRecord

        by_number = {(night.bed, night.number): night for night in self._recorded(connection)}
        nights = [night for night in by_number.values() if bed in (None, night.bed)]
        named = self._named(night for night in nights if since_s is None or (seconds(night.started) or 0.0) >= since_s)
        trials = {name: trial_of for name, trial_of in self._rows(connection, "run", entries.c.trial) if name in named}
        wanted = [
            name for name, of_run in trials.items() if not trial or trial in (of_run, cell := named[name][1].cell, cell.partition("[")[0])
        ]  # fmt: skip
        runs = []
        for name, content in self._contents(connection, wanted):
            night, row = named[name]
            record = msgspec.json.decode(content, type=RunRecord)
            if record.is_sealed and record.outcome in MEASURED:
                runs.append((night, replace(record, cell=row.cell, repeat=row.repeat, again=bool(row.again))))
        return sorted(runs, key=lambda item: (item[1].cell, item[1].repeat, item[1].started, item[1].directory))

    def _contents(self, connection: sa.Connection, names: list[str]) -> Iterator[tuple[str, str]]:
        for start in range(0, len(names), _BINDS):
            yield from self._rows(connection, "run", entries.c.content, names[start : start + _BINDS])

    def _rows(
        self, connection: sa.Connection, kind: str, column: sa.Column[str] = entries.c.content, names: Collection[str] | None = None
    ) -> list[tuple[str, str]]:  # fmt: skip
        """Directory and a column of the entries of a kind, of all or of these directories."""
        query = sa.select(entries.c.directory, column).where(entries.c.root == self._root, entries.c.kind == kind)
        query = query if names is None else query.where(entries.c.directory.in_(names))
        return [(directory, value) for directory, value in connection.execute(query)]

    def _nights(self, connection: sa.Connection) -> list[NightContent]:
        """Read the nights in the order of their directories."""
        return [
            msgspec.json.decode(content, type=NightContent) for _, content in sorted(self._rows(connection, "night"))
        ]

    def _recorded(self, connection: sa.Connection) -> list[NightContent]:
        return [night for night in self._nights(connection) if night.number > 0]

    @staticmethod
    def _named(nights: Iterator[NightContent] | list[NightContent]) -> dict[str, tuple[NightContent, Row]]:
        """Directory of a run -> the row that names it, with its night."""
        return {f"{night.directory}/{RUNS}/{row.run}": (night, row) for night in nights for row in night.rows}

    def _query(self, query: Callable[[sa.Connection], T]) -> T:
        return self._mended(lambda: self._execute(query))

    def _execute(self, query: Callable[[sa.Connection], T]) -> T:
        """A value that cannot be read is damage."""
        with self._database.read() as connection:
            try:
                return query(connection)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                reason = f"a row cannot be read ({type(error).__name__}: {error})"
                raise DamagedIndexError(
                    f"{self._database.label}: damaged: {reason}", hint="ccbed runs --rebuild"
                ) from error

    def _mended(self, action: Callable[[], T]) -> T:
        """An index that is found damaged is made from the bundles again, and then the action is done again."""
        try:
            return action()
        except DamagedIndexError as error:
            self._replace(error)
            self._refresh()
            return action()

    def _replace(self, error: DamagedIndexError) -> None:
        """Begin a new file. On a server, the rows of this directory are made again."""
        self._events.append(f"{error}; it is made from the bundles again")
        if self._database.file is not None:
            self._database.remove()
        self._database.prepare()
        if self._database.file is None:
            refreshing.outdate(self._database, self._root)


def _read_bundle(directory: Path) -> RunRecord:
    """Loads what reads bundles only when one changed."""
    from .. import bundle_records

    return bundle_records.read(directory)
