"""What a night is compared with does not depend on its index: without one the bundles are read, and a note says why."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.inputs.terminal_session import Session
from orchestrator.cli.render import terminal
from orchestrator.nightly import index, night_files
from orchestrator.nightly.app import night_end
from orchestrator.nightly.index import database

from .night_bundles import figure, write_night

NODES = ("n0", "n1")


@pytest.fixture
def nights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setattr(database, "BUSY_S", 0.1)
    monkeypatch.setattr(database, "CONNECT_S", 1)
    return [
        write_night(tmp_path, number, {"gemm": [[figure("rate", 10.0 + number, node=node) for node in NODES]]}, nodes=NODES)
        for number in (1, 2, 3)
    ]  # fmt: skip


def file_of(runs: Path) -> Path:
    return database.file_of(runs, runs / "state")


def read(directory: Path) -> night_end.History:
    session = Session(state=directory.parent / "state", terminal=terminal.standard())
    return night_end.read_history(session, directory, night_files.read_night(directory))


def lock(runs: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    connection = sqlite3.connect(file_of(runs), isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    (runs / "changed").mkdir()
    return connection


def make_directory(runs: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    for file in file_of(runs).parent.iterdir():
        file.unlink()
    file_of(runs).mkdir()
    return None


def stop_server(runs: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setenv(index.URL, "postgresql+psycopg://ada@127.0.0.1:9/index")
    return None


@pytest.mark.parametrize("spoil", [lock, make_directory, stop_server])
def test_without_its_index_a_night_is_compared_with_the_same_nights(
    spoil: Callable[[Path, pytest.MonkeyPatch], object], nights: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = read(nights[1])
    assert [record.night for record in first.earlier] == [1, 1]
    assert (first.is_indexed, first.notes) == (True, ())
    write_night(nights[0].parent, 4, {"gemm": [[figure("rate", 14.0, node=node) for node in NODES]]}, nodes=NODES)
    spoiled = spoil(nights[0].parent, monkeypatch)
    history = read(nights[2])
    del spoiled
    assert [record.night for record in history.earlier] == [1, 1, 2, 2]
    assert [record.values for record in history.earlier] == [(11.0,), (11.0,), (12.0,), (12.0,)]
    assert not history.is_indexed
    assert history.notes[0].startswith("the index cannot be used, so the earlier nights were read from their bundles: ")
    assert len(history.notes[0].splitlines()) == 1


def test_a_damaged_index_is_made_again_and_named(nights: list[Path]) -> None:
    before = read(nights[2])
    file = file_of(nights[0].parent)
    file.write_bytes(b"\xff" * file.stat().st_size)
    after = read(nights[2])
    assert after.earlier == before.earlier
    assert "damaged" in after.notes[0]
