"""Limits of a connection to a PostgreSQL server: no statement waits for ever, whatever the server or another client does."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import Any

import psycopg
import sqlalchemy as sa

#: In units of the limit: a statement on the server, and the same seen from here, for a server that hangs.
STATEMENT, RESPONSE = 2.0, 3.0


def apply(engine: sa.Engine, limit_s: float) -> None:
    """Set the limits of every connection of the engine.

    A wait for a lock ends after ``limit_s``, a statement after twice that time, a response that does not come after three times.
    A process that stands still in its transaction loses it, with the lock, after ``limit_s``.
    """

    def connect(_dialect: Any, _record: Any, arguments: Any, options: Any) -> psycopg.Connection[Any]:
        connection = _Connection.connect(*arguments, **options)
        connection.limit_s = RESPONSE * limit_s
        return connection

    sa.event.listen(engine, "do_connect", connect)
    sa.event.listen(engine, "connect", lambda connection, _record: _configure(connection, limit_s))


def _configure(connection: Any, limit_s: float) -> None:
    limit_ms = max(1, round(1000 * limit_s))
    limits = {
        "lock_timeout": limit_ms, "statement_timeout": round(STATEMENT * limit_ms), "idle_in_transaction_session_timeout": limit_ms,
    }  # fmt: skip
    for name, value in limits.items():
        connection.execute(f"SET {name} = {value}")
    connection.commit()


class _Connection(psycopg.Connection[Any]):
    """A connection that is cut if a response does not come within ``limit_s``: the kernel of a suspended server still
    acknowledges every packet, so that no timeout of TCP ends the wait."""

    limit_s = 0.0

    def wait(self, *args: Any, **options: Any) -> Any:
        if not self.limit_s:
            return super().wait(*args, **options)
        timer = threading.Timer(self.limit_s, self._cut)
        timer.daemon = True
        timer.start()
        try:
            return super().wait(*args, **options)
        finally:
            timer.cancel()

    def _cut(self) -> None:
        with suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(self.pgconn.socket)) as connected:
            connected.shutdown(socket.SHUT_RDWR)
