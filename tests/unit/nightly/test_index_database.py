"""The database of the index: made again for another version, replaced when damaged, one line when it cannot be used."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from orchestrator.model.errors import CcbedError, InfrastructureError
from orchestrator.nightly import bundle_records, index
from orchestrator.nightly.index import database
from orchestrator.nightly.index.database import Database
from orchestrator.nightly.index.store import Index

from .. import postgres
from ..postgres import server_url
from ..test_cli import Desk, ccbed
from . import run_archive
from .run_archive import Archive

__all__ = ["ccbed", "server_url"]


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    archive = Archive(tmp_path / "runs")
    archive.recorded_night(1, 90.0)
    return archive


def opened(archive: Archive, url: str = "") -> Index:
    return index.open(archive.directory, state=archive.directory.parent / "state", url=url, read=run_archive.read)


def file_of(archive: Archive) -> Path:
    return database.file_of(archive.directory, archive.directory.parent / "state")


def values(runs: Index) -> list[tuple[float, ...]]:
    return [record.values for record in runs.records(bed="lab")]


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/index.sqlite3"
    return postgres.empty(request.getfixturevalue("server_url"))


@pytest.mark.parametrize("other", ["r5", "r99"])
def test_an_index_of_another_version_is_made_from_the_bundles_again(
    archive: Archive, empty_url: str, other: str
) -> None:
    """An earlier version had other tables, which go; a later one is no reason to stop."""
    with opened(archive, empty_url) as runs:
        runs.refresh()
        before = values(runs)
    engine = sa.create_engine(empty_url)
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE ccbed_index_entries DROP COLUMN content"))
        connection.execute(sa.update(database.version).values(version_num=other))
        connection.execute(sa.text("CREATE TABLE runs (name TEXT)"))
    with opened(archive, empty_url) as runs:
        assert runs.runs() == ((), 0)
        runs.refresh()
        assert values(runs) == before
    names = {"ccbed_index_version", "ccbed_index_entries", *([] if other == "r5" else ["runs"])}
    assert set(sa.inspect(engine).get_table_names()) == names
    engine.dispose()


def test_an_index_that_another_version_makes_anew_meanwhile_is_not_read(archive: Archive, empty_url: str) -> None:
    with opened(archive, empty_url) as runs:
        runs.refresh()
        before = values(runs)
        engine = sa.create_engine(empty_url)
        with engine.begin() as connection:
            connection.execute(sa.update(database.version).values(version_num="r99"))
            connection.execute(sa.delete(database.entries))
        engine.dispose()
        assert values(runs) == before
        assert "it is of version r99" in runs.notes[0]


@pytest.mark.parametrize("content", [b"no database" * 500, b"SQLite format 3\0" + b"\xff" * 8192, b""])
def test_a_damaged_file_is_made_again(archive: Archive, content: bytes) -> None:
    """No content stands for the first half of a good file."""
    with opened(archive) as runs:
        runs.refresh()
        before = values(runs)
    file = file_of(archive)
    whole = file.read_bytes()
    file.write_bytes(content or whole[: len(whole) // 2])
    with opened(archive) as runs:
        runs.refresh()
        assert values(runs) == before
        (note,) = runs.notes
        assert "damaged" in note and note.endswith("it is made from the bundles again")
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_two_processes_that_notice_the_damage_both_go_on(archive: Archive) -> None:
    with opened(archive) as first, opened(archive) as second:
        first.refresh()
        before = values(first)
        assert values(second) == before
        file = file_of(archive)
        file.unlink()
        file.write_bytes(b"no database" * 500)
        first.close()
        second.close()
        assert values(first) == before == values(second)


def test_pages_that_are_overwritten_never_give_other_values(archive: Archive) -> None:
    for number in range(2, 8):
        archive.recorded_night(number, 90.0 + number)
    with opened(archive) as runs:
        runs.refresh()
        before = values(runs)
    file = file_of(archive)
    content = bytearray(file.read_bytes())
    for start in range(4096 * 2, len(content) - 4096, 4096 * 3):
        content[start : start + 512] = b"\xa5" * 512
    file.write_bytes(content)
    with opened(archive) as runs:
        runs.refresh()
        assert values(runs) == before


def test_the_index_is_on_a_local_disk_and_an_index_in_the_directory_of_runs_is_left_alone(archive: Archive) -> None:
    old = archive.directory / ".index.sqlite3"
    old.write_bytes(b"of an earlier version")
    with opened(archive) as runs:
        runs.refresh()
        assert Path(runs.location).is_relative_to(archive.directory.parent / "state") and len(values(runs)) == 2
    assert old.read_bytes() == b"of an earlier version"


_CONTROLLER = """
import sys
from pathlib import Path
from orchestrator.nightly import index
from tests.unit.nightly import run_archive
runs_dir, state, url = sys.argv[1:]
for _ in range(3):
    with index.open(Path(runs_dir), state=Path(state), url=url, read=run_archive.read) as runs:
        runs.refresh()
        print([(record.night, record.node, record.values) for record in runs.records(bed="lab")], flush=True)
        runs.rebuild()
"""


@pytest.mark.slow
def test_two_controllers_index_the_same_runs_at_once(archive: Archive, empty_url: str) -> None:
    """Both begin with an empty database, and rebuild what the other one may be reading."""
    for number in range(2, 8):
        archive.recorded_night(number, 90.0 + number, 80.0)
    with opened(archive) as own:
        own.refresh()
        expected = [(record.night, record.node, record.values) for record in own.records(bed="lab")]
    state = archive.directory.parent / "state"
    argv = [sys.executable, "-c", _CONTROLLER, str(archive.directory), str(state), empty_url]
    controllers = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for controller in controllers:
        output, _ = controller.communicate(timeout=900)
        assert controller.returncode == 0
        assert output.splitlines() == [repr(expected)] * 3
    with opened(archive, empty_url) as runs:
        assert runs.notes == ()


_HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("holds", flush=True)
sys.stdin.read()
connection.execute("COMMIT")
"""


def test_a_writer_that_waits_too_long_is_one_error(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(archive).close()
    monkeypatch.setattr("orchestrator.nightly.index.database.BUSY_S", 0.05)
    argv = [sys.executable, "-c", _HOLD, str(file_of(archive))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "holds\n"
        with opened(archive) as runs:
            assert values(runs) == []  # a reader does not wait
            with pytest.raises(InfrastructureError, match="another process has written the index"):
                runs.refresh()
            holder.stdin.close()
            holder.wait(timeout=900)
            runs.refresh()
            assert len(values(runs)) == 2


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://u@h/d", "unsupported: mysql; ccbed uses postgresql+psycopg or sqlite"),
        ("nonsense", "not a URL of a database"),
        ("postgresql+asyncpg://h/d", "unsupported: postgresql+asyncpg"),
    ],
)
def test_a_wrong_url_is_one_error(ccbed: Desk, monkeypatch: pytest.MonkeyPatch, url: str, reason: str) -> None:
    monkeypatch.setenv(index.URL, url)
    assert ccbed("runs") == 3
    assert reason in ccbed.err and ccbed.err.count("error:") == 1


def test_a_server_that_is_away_is_one_error_without_the_password(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv(index.URL, f"postgresql://me:hunter2@127.0.0.1:{unused.getsockname()[1]}/runs")
        assert ccbed("trend", "copy") == 4
    assert "the database of the index cannot be reached" in ccbed.err and "no bundle was changed" in ccbed.err
    assert "hunter2" not in ccbed.err and ccbed.err.count("error:") == 1


def test_a_server_that_went_away_loses_nothing(tmp_path: Path) -> None:
    folder = postgres.required()
    archive = Archive(tmp_path / "runs")
    archive.recorded_night(1, 90.0)
    with postgres.server(folder) as url:
        runs = opened(archive, url)
        runs.refresh()
    archive.recorded_night(2, 91.0)
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        runs.refresh()
    runs.close()
    with opened(archive) as local:
        local.refresh()
        assert len(values(local)) == 4


def test_rebuild_reads_every_bundle(ccbed: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_records, "read", run_archive.read)
    Archive(ccbed.root / "runs").run()
    assert ccbed("runs") == 0
    with sqlite3.connect(database.file_of(ccbed.root / "runs", ccbed.root / "state")) as connection:
        connection.execute("UPDATE ccbed_index_entries SET content = replace(content, 'copy', 'forged')")
    connection.close()
    assert ccbed("runs") == 0 and "forged" in ccbed.out
    assert ccbed("runs", "--rebuild") == 0 and "forged" not in ccbed.out


DAMAGE = {
    "no JSON": "[90.0",
    "no mapping": "[]",
    "values are no list": '{"run": "a", "directory": "b", "measurements": [{"values": 90}]}',
    "a value is no number": '{"measurements": [{"values": ["ninety"]}]}',
    "nothing": "",
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_value_that_cannot_be_read_is_damage_and_is_made_again(archive: Archive, empty_url: str, kind: str) -> None:
    """A flipped byte in a page of SQLite, or a row that another program changed."""

    def everything(runs: Index) -> object:
        return list(runs.records(bed="lab")), runs.trend(), runs.runs(), runs.nights()

    with opened(archive, empty_url) as runs:
        runs.refresh()
        before = everything(runs)
        engine = sa.create_engine(empty_url)
        with engine.begin() as connection:
            connection.execute(sa.update(database.entries).values(content=DAMAGE[kind]))
        engine.dispose()
        assert everything(runs) == before
        (note,) = runs.notes
        assert "damaged: a row cannot be read" in note and "made from the bundles again" in note


def test_a_text_that_is_not_utf8_is_damage(archive: Archive) -> None:
    with opened(archive) as runs:
        runs.refresh()
        before = runs.runs()
        with sqlite3.connect(file_of(archive)) as connection:
            connection.execute("UPDATE ccbed_index_entries SET content = CAST(X'ff61' AS TEXT)")
        connection.close()
        assert runs.runs() == before
        assert any("it is made from the bundles again" in note for note in runs.notes)


def test_a_query_that_fails_on_good_rows_ends_with_one_error(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise TypeError("a bug")

    with opened(archive) as runs:
        runs.refresh()
        monkeypatch.setattr(Index, "_run", fail)
        with pytest.raises(CcbedError, match=r"a row cannot be read \(TypeError: a bug\)"):
            runs.runs()


@pytest.fixture
def filled(archive: Archive, server_url: str) -> str:
    """The URL of a server whose index is up to date with the archive."""
    url = postgres.empty(server_url)
    with opened(archive, url) as runs:
        runs.refresh()
    return url


def limited(monkeypatch: pytest.MonkeyPatch, url: str, limit_s: float = 4.0) -> Database:
    """A database with a shorter limit than others have."""
    with monkeypatch.context() as short:
        short.setattr(database, "BUSY_S", limit_s)
        return Database(url)


def test_a_writer_of_a_server_that_waits_too_long_is_one_error(
    archive: Archive, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held by a process that stands still. A reader does not wait for it."""
    archive.recorded_night(2, 91.0)
    engine = sa.create_engine(filled)
    with opened(archive, filled) as runs, engine.connect() as holder:
        holder.execute(sa.text("SELECT pg_advisory_lock(:number)"), {"number": database._LOCK})
        assert len(values(runs)) == 2
        monkeypatch.setattr(runs, "_database", limited(monkeypatch, filled))
        with pytest.raises(InfrastructureError, match="another process has written the index for more than 60 s"):
            runs.refresh()
        assert len(values(runs)) == 2
    engine.dispose()
    with opened(archive, filled) as runs:
        runs.refresh()
        assert len(values(runs)) == 4


def test_a_process_that_stands_still_in_its_transaction_loses_the_lock(
    archive: Archive, filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.recorded_night(2, 91.0)
    suspended = limited(monkeypatch, filled)

    def stand_still() -> None:
        with suspended.write() as connection, opened(archive, filled) as runs:
            runs.refresh()  # waits for the lock, until the other one loses it
            connection.execute(sa.text("SELECT 1"))

    with pytest.raises(InfrastructureError, match="cannot be"):
        stand_still()
    suspended.close()
    with opened(archive, filled) as runs:
        assert len(values(runs)) == 4


@pytest.mark.parametrize("statement", ["SELECT pg_sleep(600)", "SELECT 1"])
def test_a_server_that_does_not_respond_is_one_error(
    filled: str, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """It takes too long for a statement, or its process is suspended: its kernel still acknowledges every packet."""
    hung = limited(monkeypatch, filled)

    def wait_for_it() -> None:
        with hung.read() as connection:
            pid = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
            if "sleep" not in statement:
                os.kill(pid, signal.SIGSTOP)
            try:
                connection.execute(sa.text(statement))
            finally:
                os.kill(pid, signal.SIGCONT)

    with pytest.raises(InfrastructureError, match="cannot be reached"):
        wait_for_it()
    hung.close()


def test_a_server_that_accepts_and_is_silent_is_one_error(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "CONNECT_S", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql+psycopg://me@127.0.0.1:{silent.getsockname()[1]}/runs"
        with pytest.raises(InfrastructureError, match="cannot be reached"):
            opened(archive, url)
