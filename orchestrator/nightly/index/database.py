"""The connection to the index: a SQLite file or a PostgreSQL server, its tables, and errors in one line."""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from ...model.errors import CcbedError, InfrastructureError, UsageError
from . import tables

#: How long a writer waits for another one, and for a server to accept a connection.
BUSY_S, CONNECT_S = 60.0, 10
#: Number of PostgreSQL's advisory lock of the writers: "ccbedidx" in hexadecimal.
_LOCK = 0x6363626564696478
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}
#: What Python's sqlite3 says of a text that is not UTF-8; it has no code.
_NO_TEXT = "Could not decode to UTF-8"
#: SQLSTATE lock_not_available: another writer holds the lock.
_LOCK_TIMEOUT = "55P03"
_REBUILT = "the bundles are complete; the index is made from them again"


class DamagedIndexError(CcbedError):
    """The file of the index is no database, or lacks tables. It can be made again."""


def file_url(runs: Path, state: Path) -> str:
    """The URL of the index's file, in ``state``: on a local disk, wherever the runs are. Locks of SQLite fail on shared ones."""
    file = file_of(runs, state)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return sa.URL.create("sqlite", database=str(file)).render_as_string(hide_password=False)


def file_of(runs: Path, state: Path) -> Path:
    digest = hashlib.sha256(str(runs.resolve()).encode(errors="surrogateescape")).hexdigest()[:16]
    return state / "index" / f"{digest}.sqlite3"


class Database:
    """An engine whose errors are CcbedErrors. ``file``: of SQLite, else None."""

    def __init__(self, url: str) -> None:
        """Raises UsageError for a URL that is not of SQLite or PostgreSQL."""
        parsed = _parse(url)
        self.is_server = parsed.get_backend_name() == "postgresql"
        self.file = None if self.is_server else Path(parsed.database or "")
        self.label = parsed.render_as_string(hide_password=True) if self.is_server else str(self.file)
        self._engine = _engine(parsed, is_server=self.is_server)

    def prepare(self) -> None:
        """Create the tables, empty, unless they are of this version. Tables of the same names that are no index stay as they are.

        Raises UsageError for an index of a newer version, DamagedIndexError, InfrastructureError.
        """
        if self._revision() == tables.REVISIONS[-1]:
            return
        with self.write() as connection:
            revision = self._revision()
            if revision is not None and revision not in tables.REVISIONS:
                place = f"move {self.file} away" if self.file else "use another database"
                raise UsageError(
                    f"{self.label}: the index has revision {revision} of a newer ccbed; this one knows {tables.REVISIONS[-1]}",
                    hint=f"use the newer ccbed, or {place}: the index is made from the bundles again",
                )
            if revision != tables.REVISIONS[-1]:
                if revision is not None:
                    tables.metadata.drop_all(connection)
                tables.metadata.create_all(connection, checkfirst=False)
                connection.execute(tables.version.insert(), {"version_num": tables.REVISIONS[-1]})

    def _revision(self) -> str | None:
        """None: the database has no tables of the index."""
        try:
            with self._engine.connect() as connection:
                return connection.execute(sa.select(tables.version.c.version_num)).scalar()
        except DBAPIError as error:
            if _is_missing_table(error):
                return None
            raise self._explained(error) from error

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one state of the database."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise self._explained(error) from error

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction; it waits for other writers."""
        try:
            with self._engine.connect().execution_options(ccbed_writes=True) as connection, connection.begin():
                if self.is_server:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                yield connection
        except DBAPIError as error:
            raise self._explained(error) from error

    def move_aside(self, suffix: str) -> Path:
        """Rename the file of a damaged index; the next connection makes a new one. Returns its new path.

        Another process may have done so in the meantime.
        """
        assert self.file is not None
        self._engine.dispose()
        target = self.file.with_name(f"{self.file.name}.damaged-{suffix}")
        with contextlib.suppress(FileNotFoundError):
            self.file.replace(target)
        for name in ("-wal", "-shm"):
            self.file.with_name(self.file.name + name).unlink(missing_ok=True)
        return target

    def close(self) -> None:
        self._engine.dispose()

    def _explained(self, error: DBAPIError) -> CcbedError:
        cause = error.orig
        reason = " ".join(str(cause).split()) or type(cause).__name__
        code = getattr(cause, "sqlite_errorcode", None)
        if (code is not None and (code & 0xFF) in _CORRUPT) or reason.startswith(_NO_TEXT):
            return DamagedIndexError(f"{self.label}: damaged: {reason}")
        if getattr(cause, "sqlstate", None) == _LOCK_TIMEOUT:
            return self._busy()
        if self.is_server and isinstance(error, OperationalError):
            return InfrastructureError(
                f"{self.label}: the database of the index cannot be reached: {reason}",
                hint="start it, or unset CCBED_DATABASE_URL to use a file; no bundle was changed",
            )
        if code is not None and (code & 0xFF) == sqlite3.SQLITE_BUSY:
            return self._busy()
        return InfrastructureError(f"{self.label}: the index cannot be used: {reason}", hint=_REBUILT)

    def _busy(self) -> InfrastructureError:
        return InfrastructureError(
            f"{self.label}: another process has written the index for more than {BUSY_S:g} s",
            hint="try again when it has ended",
        )


def _parse(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError(
            "CCBED_DATABASE_URL: not a URL of a database", hint="postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
        ) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("postgresql+psycopg", "sqlite"):
        raise UsageError(
            f"CCBED_DATABASE_URL: unsupported: {parsed.drivername}; ccbed uses postgresql+psycopg or sqlite",
            hint="postgresql+psycopg://USER:PASSWORD@HOST/DATABASE",
        )
    return parsed


def _engine(url: sa.URL, *, is_server: bool) -> sa.Engine:
    codec: dict[str, Any] = {
        "json_serializer": lambda value: msgspec.json.encode(value).decode(), "json_deserializer": msgspec.json.decode,
    }  # fmt: skip
    if is_server:
        try:
            from . import server_limits

            engine = sa.create_engine(url, connect_args={"connect_timeout": CONNECT_S}, **codec)
            server_limits.apply(engine, BUSY_S)
            return engine
        except ImportError:
            raise UsageError(
                "CCBED_DATABASE_URL: psycopg is not installed, so PostgreSQL cannot be used",
                hint="pip install 'ccbed[postgres]'",
            ) from None
    engine = sa.create_engine(url, connect_args={"timeout": BUSY_S}, **codec)
    sa.event.listen(engine, "connect", _configure)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _configure(connection: Any, _record: Any) -> None:
    """Readers do not wait for a writer. The index is derived, so the last commits may be lost with the machine's power."""
    connection.isolation_level = None
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")


def _begin(connection: sa.Connection) -> None:
    """A writer takes the lock at once: a reader that becomes a writer could not wait for another one."""
    writes = connection.get_execution_options().get("ccbed_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_missing_table(error: DBAPIError) -> bool:
    """Whether a query failed because its table does not exist: SQLSTATE 42P01, or SQLite's message."""
    return getattr(error.orig, "sqlstate", "") == "42P01" or "no such table" in str(error.orig)
