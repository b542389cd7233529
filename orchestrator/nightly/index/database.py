"""The connection to the index: a SQLite file or a PostgreSQL server, its table, and errors in one line.

All of it is derived from bundles and may be dropped. Who changes the table, or what is stored in it, changes VERSION: an index of
another version is dropped and made from the bundles again.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from ...model.errors import CcbedError, InfrastructureError, UsageError

VERSION = "r6"
#: The tables of the versions before, in the order in which they can be dropped.
_FORMER_VERSIONS = ("r1", "r2", "r3", "r4", "r5")
_FORMER_TABLES = ("measurements", "series", "runs", "suspects", "nights", "skipped", "roots")
#: How long a writer waits for another one, and for a server to accept a connection.
BUSY_S, CONNECT_S = 60.0, 10
#: In units of BUSY_S: a statement on a server, and a transaction as seen from here, for a server that hangs.
STATEMENT, RESPONSE = 2.0, 3.0
#: Number of PostgreSQL's advisory lock of the writers: "ccbedidx" in hexadecimal.
_LOCK = 0x6363626564696478
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_FORMAT}
#: What Python's sqlite3 says of a text that is not UTF-8; it has no code.
_NO_TEXT = "Could not decode to UTF-8"
#: SQLSTATE lock_not_available: another writer holds the lock. SQLSTATE undefined_table, undefined_column.
_LOCK_TIMEOUT, _UNDEFINED = "55P03", ("42P01", "42703")

_metadata = sa.MetaData()
version = sa.Table("ccbed_index_version", _metadata, sa.Column("version_num", sa.String(32), primary_key=True))


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, default="")


#: Runs, nights, and directories that look like one and cannot be read (``skipped``). ``root``: the directory of runs, as one database
#: serves several; ``directory``: relative to it; ``night``: of the night that a run belongs to. ``content``: JSON of a RunRecord, of a
#: NightContent, or why it is skipped. ``started_s``: seconds since 1970, NULL where unreadable.
entries = sa.Table(
    "ccbed_index_entries", _metadata, _text("root"), _text("directory"), _text("kind"), _text("signature"), _text("night"),
    _text("bed"), _text("trial"), _text("outcome"), sa.Column("started_s", sa.Float), _text("content"),
    sa.PrimaryKeyConstraint("root", "directory"), sa.Index("ix_ccbed_index_kind", "root", "kind", "started_s"),
)  # fmt: skip


class DamagedIndexError(CcbedError):
    """The index is no database, lacks its table, or has a row that cannot be read. It can be made again."""


def file_of(runs: Path, state: Path) -> Path:
    """The file of the index: on a local disk, wherever the runs are. Locks of SQLite fail on shared ones."""
    digest = hashlib.sha256(str(runs.resolve()).encode(errors="surrogateescape")).hexdigest()[:16]
    return state / "index" / f"{digest}.sqlite3"


class Database:
    """An engine whose errors are CcbedErrors. ``file``: of SQLite, else None."""

    def __init__(self, url: str | Path) -> None:
        """Raises UsageError for a URL that is not of SQLite or PostgreSQL. A path is that of a SQLite file, whose folder is made."""
        if isinstance(url, Path):
            url.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        parsed = _parse(url) if isinstance(url, str) else sa.URL.create("sqlite", database=str(url))
        self.file = None if parsed.get_backend_name() == "postgresql" else Path(parsed.database or "")
        self.label = parsed.render_as_string(hide_password=True) if self.file is None else str(self.file)
        self._limit_s = BUSY_S
        self._engine = _engine(parsed, BUSY_S)

    def prepare(self) -> None:
        """Create the table, empty, unless it is of this version. Raises DamagedIndexError, InfrastructureError."""
        with contextlib.suppress(DamagedIndexError), self.read():
            return
        with self._transaction(is_writer=True) as connection:
            exists = sa.inspect(connection).has_table(version.name)
            present = connection.execute(sa.select(version.c.version_num)).scalar() if exists else None
            if present != VERSION:  # another process may have made it meanwhile
                for name in _FORMER_TABLES if present in _FORMER_VERSIONS else ():
                    connection.exec_driver_sql(f"DROP TABLE IF EXISTS {name}")
                _metadata.drop_all(connection)
                _metadata.create_all(connection)
                connection.execute(version.insert(), {"version_num": VERSION})
            entries.create(connection, checkfirst=True)

    @contextlib.contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """A connection that sees one state of the index. Raises DamagedIndexError where it is of another version."""
        with self._transaction(is_writer=False) as connection:
            self._check(connection)
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """A transaction; it waits for other writers. Raises DamagedIndexError where the index is of another version."""
        with self._transaction(is_writer=True) as connection:
            self._check(connection)
            yield connection

    def _check(self, connection: sa.Connection) -> None:
        """Another ccbed may have made the index anew since it was opened."""
        present = connection.execute(sa.select(version.c.version_num)).scalar()
        if present != VERSION:
            raise DamagedIndexError(f"{self.label}: it is of version {present}, and this ccbed uses {VERSION}")

    @contextlib.contextmanager
    def _transaction(self, *, is_writer: bool) -> Iterator[sa.Connection]:
        isolation = {} if is_writer or self.file else {"isolation_level": "REPEATABLE READ"}
        try:
            with (
                self._engine.connect().execution_options(ccbed_writes=is_writer, **isolation) as connection,
                self._limited(connection), connection.begin(),
            ):  # fmt: skip
                if is_writer and self.file is None:
                    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                yield connection
        except DBAPIError as error:
            raise self._explained(error) from error

    @contextlib.contextmanager
    def _limited(self, connection: sa.Connection) -> Iterator[None]:
        """Cut the connection to a server that does not respond: the kernel of a suspended server still acknowledges every packet, so that
        no timeout of TCP ends the wait."""
        if self.file is not None:
            yield
            return
        timer = threading.Timer(RESPONSE * self._limit_s, _cut, [connection.connection.dbapi_connection])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def remove(self) -> None:
        """Remove the file of a damaged index; the next connection makes a new one. Another process may have done so meanwhile."""
        assert self.file is not None
        self._engine.dispose()
        for suffix in ("", "-journal", "-wal", "-shm"):
            self.file.with_name(self.file.name + suffix).unlink(missing_ok=True)

    def close(self) -> None:
        self._engine.dispose()

    def _explained(self, error: DBAPIError) -> CcbedError:
        cause = error.orig
        reason = " ".join(str(cause).split()) or type(cause).__name__
        code = getattr(cause, "sqlite_errorcode", None)
        if (code is not None and (code & 0xFF) in _CORRUPT) or reason.startswith(_NO_TEXT) or _is_missing(error):
            return DamagedIndexError(f"{self.label}: damaged: {reason}")
        if getattr(cause, "sqlstate", None) == _LOCK_TIMEOUT or (code or 0) & 0xFF == sqlite3.SQLITE_BUSY:
            return InfrastructureError(
                f"{self.label}: another process has written the index for more than {BUSY_S:g} s",
                hint="try again when it has ended",
            )
        if self.file is None and isinstance(error, OperationalError):
            return InfrastructureError(
                f"{self.label}: the database of the index cannot be reached: {reason}",
                hint="start it, or unset CCBED_DATABASE_URL to use a file; no bundle was changed",
            )
        return InfrastructureError(
            f"{self.label}: the index cannot be used: {reason}",
            hint="the bundles are complete; the index is made from them again",
        )


def _parse(url: str) -> sa.URL:
    hint = "postgresql+psycopg://USER:PASSWORD@HOST/DATABASE"
    try:
        parsed = sa.make_url(url)
    except (ArgumentError, ValueError):
        raise UsageError("CCBED_DATABASE_URL: not a URL of a database", hint=hint) from None
    if parsed.drivername in ("postgresql", "postgres"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.drivername not in ("postgresql+psycopg", "sqlite"):
        problem = f"CCBED_DATABASE_URL: unsupported: {parsed.drivername}; ccbed uses postgresql+psycopg or sqlite"
        raise UsageError(problem, hint=hint)
    return parsed


def _engine(url: sa.URL, limit_s: float) -> sa.Engine:
    """A wait for a lock ends after ``limit_s``. A process that stands still in its transaction loses it, with the lock, after that time."""
    if url.get_backend_name() == "sqlite":
        engine = sa.create_engine(url, connect_args={"timeout": limit_s})
        sa.event.listen(engine, "connect", lambda connection, _record: setattr(connection, "isolation_level", None))
        sa.event.listen(engine, "begin", _begin)
        return engine
    limits = {"lock_timeout": 1.0, "statement_timeout": STATEMENT, "idle_in_transaction_session_timeout": 1.0}
    options = " ".join(f"-c {name}={max(1, round(1000 * share * limit_s))}" for name, share in limits.items())
    try:
        return sa.create_engine(url, connect_args={"connect_timeout": CONNECT_S, "options": options})
    except ImportError:
        raise UsageError(
            "CCBED_DATABASE_URL: psycopg is not installed, so PostgreSQL cannot be used",
            hint="pip install 'ccbed[postgres]'",
        ) from None


def _begin(connection: sa.Connection) -> None:
    """A writer takes the lock at once: a reader that becomes a writer could not wait for another one."""
    writes = connection.get_execution_options().get("ccbed_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _cut(connection: Any) -> None:
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.pgconn.socket)) as connected:
        connected.shutdown(socket.SHUT_RDWR)


def _is_missing(error: DBAPIError) -> bool:
    """Return whether a statement failed because the database has no index, or one with other columns."""
    return getattr(error.orig, "sqlstate", "") in _UNDEFINED or "no such table" in str(error.orig)
