"""The index of a directory of runs, as other modules use it."""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import sqlalchemy as sa

from . import queries, rows
from . import refresh as refreshing
from .database import DamagedIndexError, Database, file_url
from .entries import NightEntry, Refreshed, RunEntry, Trend
from .refresh import ReadRun

if TYPE_CHECKING:
    from ..gates.records import Record
    from ..run_record import RunRecord

T = TypeVar("T")


class Index:
    """``notes``: what an operator must know about the history: skipped directories, a damaged index, a clock that went backwards."""

    def __init__(self, runs_dir: Path, *, state: Path, url: str = "", read: ReadRun | None = None) -> None:
        """Raises UsageError, InfrastructureError."""
        self.directory = runs_dir.resolve()
        self._read = read or _read_bundle
        self._events: list[str] = []
        self._database = Database(url or file_url(self.directory, state))
        # The file of an index moves with its directory; a server knows many directories.
        host, path = (os.uname().nodename, str(self.directory)) if url else ("", "")
        self._root = refreshing.Root(directory=self.directory, host=rows.text(host), path=rows.text(path))
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

    def refresh(self) -> Refreshed:
        """Read the bundles and nights that changed, and drop those that were removed. Raises InfrastructureError."""
        try:
            return refreshing.refresh(self._database, self._root, self._read)
        except DamagedIndexError as error:
            self._replace(error)
            return refreshing.refresh(self._database, self._root, self._read)

    def rebuild(self) -> Refreshed:
        """Read everything again. Raises InfrastructureError."""
        try:
            refreshing.forget(self._database, self._root)
        except DamagedIndexError as error:
            self._replace(error)
        return refreshing.refresh(self._database, self._root, self._read)

    @property
    def notes(self) -> tuple[str, ...]:
        skipped = self._query(queries.list_skipped)
        return (*self._events, *skipped, *_clock_notes(self.nights(recorded=True)))

    def runs(
        self, *, bed: str | None = None, trial: str | None = None, outcome: str | None = None, since_s: float | None = None,
        night: str | None = None, limit: int | None = None,
    ) -> tuple[tuple[RunEntry, ...], int]:  # fmt: skip
        """The newest ``limit`` runs, oldest first, and the number of all that match. ``since_s``: seconds since 1970."""
        wanted = queries.Filter(bed=bed, trial=trial, outcome=outcome, since_s=since_s, night=night, limit=limit)
        return self._query(lambda connection, root: queries.list_runs(connection, root, str(self.directory), wanted))

    def nights(self, *, bed: str | None = None, recorded: bool = False) -> tuple[NightEntry, ...]:
        """All nights, or the recorded ones, oldest first."""
        path = str(self.directory)
        return self._query(lambda connection, root: queries.list_nights(connection, root, path, bed, recorded=recorded))

    def records(self, *, bed: str, before_night: int | None = None, metric: str | None = None) -> Iterator[Record]:
        """The measurements of the bed's recorded nights, before the night with that number: what gates compare with."""
        return iter(
            self._query(lambda connection, root: tuple(queries.records(connection, root, bed, before_night, metric)))
        )

    def trend(
        self, trial: str | None = None, metric: str | None = None, *, since_s: float | None = None, node: str | None = None,
        bed: str | None = None,
    ) -> tuple[Trend, ...]:  # fmt: skip
        """A trend per bed, trial, metric and comparability key, over recorded nights.

        ``trial``: the name of a trial or cell. ``metric``: its name, or the last words of it, such as ``busbw``.
        """
        conditions = queries.matching(trial, metric, since_s, node, bed)
        return self._query(lambda connection, root: queries.trends(connection, root, conditions))

    def metrics(self) -> tuple[tuple[str, str], ...]:
        return self._query(queries.list_metrics)

    def _query(self, query: Callable[[sa.Connection, int], T]) -> T:
        """An index that is found damaged is made again from the bundles, and queried again."""
        try:
            return self._execute(query)
        except DamagedIndexError as error:
            self._replace(error)
            self.refresh()
            return self._execute(query)

    def _execute(self, query: Callable[[sa.Connection, int], T]) -> T:
        """No row has the root 0, which a directory has before its first refresh. A value that cannot be read is damage."""
        with self._database.read() as connection:
            try:
                return query(connection, self._root.id(connection) or 0)
            except (ValueError, LookupError, TypeError, AttributeError) as error:
                reason = f"a row cannot be read ({type(error).__name__}: {error})"
                raise DamagedIndexError(
                    f"{self._database.label}: damaged: {reason}", hint="ccbed runs --rebuild"
                ) from error

    def _replace(self, error: DamagedIndexError) -> None:
        """Move the damaged file aside, and begin a new one. On a server, forget the rows of this directory."""
        if self._database.file is None:
            refreshing.forget(self._database, self._root)
            self._events.append(f"{error}; the rows of {self.directory} are made from the bundles again")
            return
        moment = datetime.datetime.now(datetime.UTC)
        aside = self._database.move_aside(f"{moment:%Y%m%dT%H%M%S.%fZ}")
        self._events.append(f"{error}; it was moved to {aside.name} and is made from the bundles again")
        self._database.prepare()


def _read_bundle(directory: Path) -> RunRecord:
    """Loads what reads bundles only when one changed."""
    from .. import bundle_records

    return bundle_records.read(directory)


def _clock_notes(nights: tuple[NightEntry, ...]) -> list[str]:
    notes = []
    for bed in sorted({night.bed for night in nights}):
        of_bed = [night for night in nights if night.bed == bed]
        for earlier, later in itertools.pairwise(of_bed):
            if earlier.number == later.number:
                notes.append(
                    f"bed {bed}: {earlier.name} and {later.name} are both night {later.number}; the second counts"
                )
            elif later.started < earlier.started:
                notes.append(
                    f"bed {bed}: the clock went backwards: night {later.number} began {later.started}, "
                    f"night {earlier.number} {earlier.started}; nights count by their numbers"
                )
    return notes
