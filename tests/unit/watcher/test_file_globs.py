"""Files of writers that are not observed: reported by the patterns of CCBED_CHECKPOINT_GLOBS once they are complete."""

from __future__ import annotations

import ctypes
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from orchestrator.rank.watcher.checkpoints import file_globs

from .observed import Observed, observed

__all__ = ["observed"]


class NoInstance:
    """The C library where the user has no inotify instance left."""

    def inotify_init1(self, flags: int) -> int:
        return -1

    def inotify_add_watch(self, fd: int, path: bytes, mask: int) -> int:
        return -1


@pytest.fixture(params=["inotify", "none left"])
def globs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[file_globs.GlobWatcher]:
    """A watcher of ``runs/*/*.ckpt`` in a directory that does not exist yet."""
    monkeypatch.setenv("CCBED_CHECKPOINT_GLOBS", str(tmp_path / "runs" / "*" / "*.ckpt"))
    monkeypatch.setattr(file_globs, "POLL_S", 0.05)
    with monkeypatch.context() as patch:
        if request.param == "none left":
            patch.setattr(ctypes, "CDLL", lambda *_, **__: NoInstance())
        watcher = file_globs.GlobWatcher(file_globs.patterns())
    yield watcher
    if watcher.fd >= 0:
        os.close(watcher.fd)


def is_watched(watcher: file_globs.GlobWatcher, folder: Path) -> bool:
    """Without inotify every search finds new directories."""
    return watcher.fd < 0 or str(folder) in watcher._directories.values()


def report(watcher: file_globs.GlobWatcher, is_reported: Callable[[], bool]) -> None:
    """Let the watcher read its events until the condition holds."""
    deadline = time.monotonic() + 600
    while not is_reported() and time.monotonic() < deadline:
        watcher.wait(0.05)
    assert is_reported()


def test_a_file_is_committed_when_it_is_closed_or_renamed(
    observed: Observed, globs: file_globs.GlobWatcher, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    report(globs, lambda: is_watched(globs, folder))
    with (folder / "torn.ckpt").open("wb") as out:
        out.write(b"torn")
        out.flush()
        (folder / "x.partial").write_bytes(b"whole")
        os.replace(folder / "x.partial", folder / "x.ckpt")
        report(globs, lambda: observed.of("committed") != [])
        committed, how = observed.merged("committed"), "rename" if globs.fd >= 0 else "return"
        assert (committed["path"], committed["how"], committed["bytes"]) == (str(folder / "x.ckpt"), how, 5)
    report(globs, lambda: "torn.ckpt" in str(observed.of("committed")))
    assert {line["api"] for line in observed.of("save")} == {"file"}
    assert all(line["weights"] is None for line in observed.of("saved"))


def test_a_save_of_torch_is_not_reported_twice(
    observed: Observed, globs: file_globs.GlobWatcher, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "a"
    folder.mkdir(parents=True)
    report(globs, lambda: is_watched(globs, folder))
    torch.save({"weight": torch.ones(2)}, folder / "a.ckpt")
    (folder / "b.ckpt").write_bytes(b"b")
    report(globs, lambda: "b.ckpt" in str(observed.of("committed")))
    assert [Path(line["path"]).name for line in observed.of("save")] == ["a.ckpt", "b.ckpt"]


def test_files_from_before_and_of_other_names_are_not_reported(
    observed: Observed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old.ckpt").write_bytes(b"old")
    monkeypatch.setenv("CCBED_CHECKPOINT_GLOBS", str(tmp_path / "*.ckpt"))
    watcher = file_globs.GlobWatcher(file_globs.patterns())
    (tmp_path / "log.txt").write_text("log")
    (tmp_path / "new.ckpt").write_bytes(b"new")
    report(watcher, lambda: observed.of("committed") != [])
    assert [Path(line["path"]).name for line in observed.of("save")] == ["new.ckpt"]


def test_only_the_first_rank_of_a_node_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CCBED_CHECKPOINT_GLOBS", "a" + os.pathsep + "/b/*")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert file_globs.patterns() == []
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert file_globs.patterns() == [str(Path.cwd() / "a"), "/b/*"]


def test_a_directory_that_arises_before_its_parent_is_watched_is_found(
    globs: file_globs.GlobWatcher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search, folder = file_globs.parents, tmp_path / "runs" / "a"

    def search_too_early(pattern: str) -> set[str]:
        directories = search(pattern)
        folder.mkdir(parents=True, exist_ok=True)
        return directories

    monkeypatch.setattr(file_globs, "parents", search_too_early)
    numbers = itertools.count(100)
    monkeypatch.setattr(globs, "_libc", SimpleNamespace(inotify_add_watch=lambda *_: next(numbers)))
    globs.add_directories()
    assert str(folder) in globs._directories.values()
