"""What a run created outside of its project is told from what it changed there, by times of birth and of change."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model import watch
from orchestrator.run import outside_files


def run_of(*lines: watch.Line) -> Any:
    """A run with one record, of a rank of the first attempt."""
    begin = watch.Begin(t=0.0, format=1, rank=0, pid=1)
    record = SimpleNamespace(of=lambda kind: [line for line in (begin, *lines) if isinstance(line, kind)])
    return SimpleNamespace(files=SimpleNamespace(watch=lambda: [record]))


def saves(*paths: Path | str) -> list[watch.Line]:
    return [watch.Save(t=0.0, id=number, n=1, path=str(path)) for number, path in enumerate(paths)]


@pytest.fixture
def began(tmp_path: Path) -> Callable[[], float]:
    """The time of a file that is made now: all later ones have a later time."""

    def now() -> float:
        (tmp_path / "marker").touch()
        first = (tmp_path / "marker").stat().st_mtime
        later = tmp_path / "later"
        later.touch()
        while outside_files._times(str(later))[0] <= first:  # the clock of files has ticks of some milliseconds
            later.unlink()
            later.touch()
        return first + 1e-6

    return now


def changes(run: Any, since: float, *own: Path, **params: Any) -> tuple[set[str], set[str]]:
    files = outside_files.changes(run, since, params, map(str, own))
    return files.created, files.lost


def test_new_files_are_told_from_changed_ones_and_old_ones(tmp_path: Path, began: Callable[[], float]) -> None:
    out = tmp_path / "out"
    (out / "dir").mkdir(parents=True)
    for name in ("kept", "dir/kept", "log", "latest.pt"):
        (out / name).write_text("before")
    since = began()
    (out / "new.pt").write_text("new")
    (out / "new").mkdir()
    (out / "new/part.distcp").write_text("new")
    (out / "link").symlink_to("new.pt")
    (out / "dir/state").write_text("beside it")
    assert changes(run_of(*saves(out / "new.pt")), since) == (
        {str(out / name) for name in ("new.pt", "link")},
        set(),
    )
    (out / "log").open("a").write("line")
    (out / "moved").write_text("new")
    (out / "moved").rename(out / "latest.pt")
    created, lost = changes(run_of(), since, args=("--out", str(out)))
    assert created == {str(out / name) for name in ("new.pt", "new", "link", "dir/state", "latest.pt")}
    assert lost == {str(out / "log")}
    assert changes(run_of(*saves(out / "latest.pt")), since, tmp_path) == (set(), set()), "its own directories"


def test_a_new_directory_is_named_as_a_whole_also_behind_a_link_and_a_home(
    tmp_path: Path, began: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "project").mkdir()
    (tmp_path / "project/linked").symlink_to(tmp_path / "target")
    since = began()
    (tmp_path / "target/deep").mkdir(parents=True)
    (tmp_path / "target/deep/a.pt").touch()
    for run, args in (
        (run_of(*saves(tmp_path / "project/linked/deep/a.pt")), ()),
        (run_of(), ("--out=~/target/deep",)),
    ):
        assert changes(run, since, tmp_path / "project", args=args) == ({str(tmp_path / "target")}, set())


def test_in_a_directory_of_everybody_only_what_was_saved_counts(tmp_path: Path, began: Callable[[], float]) -> None:
    everybodys = tmp_path / "tmp"
    everybodys.mkdir()
    everybodys.chmod(0o1777)
    (everybodys / "theirs").touch()
    since = began()
    for name in ("theirs", "others", "mine.pt"):
        (everybodys / name).write_text("now")
    assert changes(run_of(*saves(everybodys / "mine.pt")), since) == ({str(everybodys / "mine.pt")}, set())


def test_what_the_run_began_with_must_still_be_there(tmp_path: Path, began: Callable[[], float]) -> None:
    kept, gone, replaced = (tmp_path / name for name in ("kept.pt", "gone.pt", "replaced.pt"))
    kept.touch()
    since = began()
    replaced.touch()
    loads = [watch.Load(t=0.0, id=path.name, n=0, path=str(path)) for path in (kept, gone, replaced)]
    later = watch.Load(t=0.0, id="later", n=3, path=str(tmp_path / "other.pt"))
    assert changes(run_of(*loads, later, *saves(replaced)), since)[1] == {str(gone), str(replaced)}


def test_without_times_of_birth_nothing_counts_as_created(
    tmp_path: Path, began: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    since = began()
    (tmp_path / "a.pt").touch()
    times = outside_files._times
    monkeypatch.setattr(outside_files, "_times", lambda path: (0.0, times(path)[1]))
    assert changes(run_of(*saves(tmp_path / "a.pt")), since)[1] >= {os.path.realpath(tmp_path / "a.pt")}
