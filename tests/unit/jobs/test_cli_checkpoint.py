"""``ccbed checkpoint check``: lines, document and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from orchestrator.cli import main


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for step in (10, 20):
        torch.save({"step": step, "weight": torch.full((9,), step)}, tmp_path / f"snapshot_{step}.pt")
    return tmp_path


def test_whole_checkpoints_pass(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["checkpoint", "check", str(out)]) == 0
    assert "PASS  2 checkpoints are whole; the newest whole checkpoint is snapshot_20.pt" in capsys.readouterr().out


def test_a_damaged_one_fails_and_the_newest_whole_is_named(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "snapshot_20.pt").write_bytes((out / "snapshot_20.pt").read_bytes()[:-9])
    assert main.run(["checkpoint", "check", str(out)]) == 1
    printed = capsys.readouterr().out
    assert "snapshot_20.pt: it is cut: the directory at the end of the archive is missing" in printed
    assert "FAIL  1 of 2 checkpoints damaged; the newest whole checkpoint is snapshot_10.pt" in printed


def test_what_is_not_known_is_neither(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (out / "model_30.bin").write_bytes(b"no form")
    assert main.run(["checkpoint", "check", str(out), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["outcome"], document["newest_whole"]) == ("unknown", "snapshot_20.pt")


def test_a_directory_that_is_not_there_is_an_error_with_its_next_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["checkpoint", "check", str(tmp_path / "none")]) == 3
    assert "no such file or directory" in capsys.readouterr().err


def test_a_newest_checkpoint_of_another_world_fails_and_an_older_one_does_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step, world in ((10, 4), (20, 2)):
        for rank in range(world):
            path = tmp_path / f"step-{step}" / f"model_rank{rank}.pt"
            path.parent.mkdir(exist_ok=True)
            torch.save({"step": step, "weight": torch.full((9,), step + rank)}, path)
    assert main.run(["checkpoint", "check", str(tmp_path), "--world", "2"]) == 0
    assert "misfit" in capsys.readouterr().out
    assert main.run(["checkpoint", "check", str(tmp_path), "--world", "4"]) == 1
    assert "it is of 2 ranks, 4 would load it" in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize(("denied", "code"), [("other", 2), ("none", 0)])
def test_a_directory_that_was_not_read_leaves_it_unknown(
    out: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, denied: str, code: int
) -> None:
    (out / "other").mkdir()
    real = os.scandir

    def scandir(folder: Path) -> object:
        if Path(folder).name == denied:
            raise PermissionError(13, "Permission denied")
        return real(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main.run(["checkpoint", "check", str(out)]) == code
    assert (f"not read: {out / 'other'}: Permission denied" in capsys.readouterr().out) == bool(code)
