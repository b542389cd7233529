"""A PostgreSQL server of the tests' own: a socket in a directory, no TCP, gone with the tests."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests import undo

#: Where Debian keeps the programs, beside PATH.
_DEBIAN = Path("/usr/lib/postgresql")


def programs() -> Path | None:
    """The folder of initdb and pg_ctl; None where there is no server."""
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += sorted(_DEBIAN.glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "pg_ctl").exists() and (folder / "postgres").exists()), None)


def required() -> Path:
    """``programs``, or the test is skipped."""
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    return folder


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server for the tests of a module."""
    with server(required()) as url:
        yield url


def empty(url: str) -> str:
    """The URL, after all tables of its database were dropped."""
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP SCHEMA public CASCADE"))
        connection.execute(sa.text("CREATE SCHEMA public"))
    engine.dispose()
    return url


@contextlib.contextmanager
def server(folder: Path) -> Iterator[str]:
    """The URL of the database ``postgres`` of a new server. As root, the server runs as another user: it refuses root."""
    with undo.temporary_directory("ccbed-pg-") as directory:
        data = directory / "data"
        as_user = _as_user(directory)
        options = f"-c listen_addresses='' -c unix_socket_directories={directory} -c fsync=off"
        words = ("-U", "ccbed", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync")
        _call(as_user, folder / "initdb", "-D", data, *words)
        control = (folder / "pg_ctl", "-D", data, "-w", "-t", "120", "-l", directory / "log")
        stop = (*control, "-m", "immediate", "stop")
        # Its processes write their titles over their environment, in which they could be recognised.
        with undo.by_command(*as_user, *stop):
            _call(as_user, *control, "-o", options, "start")
            try:
                yield f"postgresql+psycopg://ccbed@/postgres?host={directory}"
            finally:
                _call(as_user, *stop)


def _as_user(directory: Path) -> Sequence[str]:
    if os.geteuid() != 0:
        return ()
    names = {entry.pw_name for entry in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(directory, user.pw_uid, user.pw_gid)
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")


def _call(as_user: Sequence[str], *argv: object) -> None:
    done = subprocess.run(
        [*as_user, *map(str, argv)], capture_output=True, text=True, cwd="/", timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
