"""A copy of a script's project shares no file with the original that a training could write."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.model.errors import UsageError
from orchestrator.run import work_dirs


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in ("pkg/train.py", "data/a.bin", ".git/HEAD", ".venv/pyvenv.cfg", "runs/r1/trial.json", "__pycache__/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root / "pkg/train.py").chmod(0o755)
    (root / "inside").symlink_to("data/a.bin")
    (root / "absolute").symlink_to(root / "data/a.bin")
    (root / "outside").symlink_to("../shared/b.bin")
    return root


def test_a_copy_has_modes_links_and_content_and_no_file_in_common(project: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    work_dirs.copy_project(project, copy, left_out=(project / "runs",))
    assert (copy / "pkg/train.py").stat().st_mode & 0o777 == 0o755
    assert not (copy / "runs").exists() and not (copy / "__pycache__").exists()
    (copy / "data/a.bin").write_text("changed")
    assert (copy / "inside").read_text() == (copy / "absolute").read_text() == "changed"
    assert (project / "data/a.bin").read_text() == "data/a.bin"
    assert (copy / "outside").readlink() == tmp_path / "shared/b.bin"
    assert (copy / ".git").readlink() == project / ".git" and (copy / ".venv").readlink() == project / ".venv"


def test_without_shared_blocks_too_much_is_refused_and_nothing_is_left(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(work_dirs, "LIMIT", 5)
    monkeypatch.setattr(work_dirs, "FICLONE", 0)
    with pytest.raises(UsageError, match="would be copied") as error:
        work_dirs.copy_project(project, tmp_path / "copy")
    assert "--no-reference" in error.value.hint
    assert not (tmp_path / "copy").exists()


def test_a_project_whose_runs_lie_in_it_is_not_copied_into_itself(project: Path) -> None:
    own = project / "elsewhere/r2/work"
    own.parent.mkdir(parents=True)
    work_dirs.copy_project(project, own, left_out=(project / "elsewhere",))
    assert not (own / "elsewhere").exists()
    assert (own / "pkg/train.py").exists()


def test_a_project_with_too_many_files_is_no_snapshot_and_says_so(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert work_dirs.keep_snapshot(project, tmp_path / "first") == ""
    monkeypatch.setattr(work_dirs, "SNAPSHOT_ENTRIES", 3)
    assert f"{project} has more than 3 files" in work_dirs.keep_snapshot(project, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
