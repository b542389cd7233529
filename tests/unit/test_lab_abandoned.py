"""Beds of aborted tests are told from beds that somebody uses."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.files import label

from ..lab import abandoned


def test_a_bed_in_a_temporary_directory_without_its_keeper_is_abandoned(tmp_path: Path) -> None:
    assert abandoned.is_abandoned(tmp_path / "gone")
    (tmp_path / "bed/keeper").mkdir(parents=True)
    (tmp_path / "bed/keeper/lock").touch()
    assert abandoned.is_abandoned(tmp_path / "bed")


def test_a_bed_whose_keeper_lives_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label, "lock_holder", lambda directory: 7 if directory == tmp_path / "keeper" else 0)
    assert not abandoned.is_abandoned(tmp_path)


@pytest.mark.parametrize("directory", ["/srv/beds/mine", "", "/"])
def test_nor_is_anything_outside_of_temporary_directories(directory: str) -> None:
    assert not abandoned.is_abandoned(Path(directory))


def test_the_directory_of_a_bed_is_told_by_what_its_containers_see() -> None:
    assert abandoned.hostdir([{"Source": "/data"}, {"Source": "/tmp/x/bed/agent"}]) == Path("/tmp/x/bed")
    assert abandoned.hostdir([]) == Path("/")
