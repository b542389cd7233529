"""`logs --follow` ends with the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.app.recorded import logs
from orchestrator.store import seal


def log(directory: Path) -> logs.Log:
    path = directory / "rank-0.log"
    path.write_text("first\n")
    return logs.Log(node="n0", path=path, rank=0, epoch=0, run=directory)


def test_the_logs_of_a_closed_run_end_though_they_are_followed(tmp_path: Path) -> None:
    (tmp_path / seal.MANIFEST).touch()
    assert [text for _, text in logs.parts([log(tmp_path)], logs.LogsRequest(follow=True))] == ["first\n"]


def test_logs_are_followed_to_the_last_line_of_an_open_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = log(tmp_path)

    def wait(_seconds: float) -> None:
        with followed.path.open("a") as file:
            file.write("last\n")
        (tmp_path / seal.MANIFEST).touch()

    monkeypatch.setattr("time.sleep", wait)
    assert [text for _, text in logs.lines([followed], logs.LogsRequest(follow=True))] == ["first", "last"]
