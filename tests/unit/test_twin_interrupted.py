"""Ctrl-C in a twin that follows a run: the run is complete, and the terminal says so."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model.errors import Interrupted
from orchestrator.run import twin_runs
from orchestrator.store import beds, bundle


@pytest.mark.parametrize("is_interrupted", [True, False])
def test_an_interrupted_twin_leaves_the_run_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    def make(*_: Any) -> None:
        if is_interrupted:
            raise Interrupted("interrupted in the twin, t-twin")

    ended: list[Path] = []
    monkeypatch.setattr(bundle, "has_ended", lambda directory: True)
    monkeypatch.setattr(twin_runs, "_is_comparable", lambda directory: True)
    monkeypatch.setattr(twin_runs, "_outside_files", lambda request, directory: ())
    monkeypatch.setattr(twin_runs, "_make", make)
    monkeypatch.setattr(beds, "end_twin", ended.append)
    notes: list[str] = []
    request: Any = SimpleNamespace(twin_after=True, bed=SimpleNamespace(workdir="/bed"), on_note=notes.append)
    (tmp_path / "work").mkdir()
    assert twin_runs.provide_after(request, tmp_path) == is_interrupted
    note = "interrupted in the twin, t-twin; the run itself is complete and is judged without a twin"
    assert notes == [note] * is_interrupted
    assert ended == [Path("/bed")] and not (tmp_path / "work").exists()
