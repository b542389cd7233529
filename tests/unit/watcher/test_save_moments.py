"""All ranks know when one of them saves."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.rank.watcher.checkpoints.save_moments import SaveMoments


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SaveMoments, SaveMoments]:
    monkeypatch.setenv("CCBED_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("CCBED_EPOCH", "1")
    return SaveMoments(), SaveMoments()


def test_a_save_of_one_rank_is_new_to_each_once(ranks: tuple[SaveMoments, SaveMoments]) -> None:
    saving, other = ranks
    assert not other.is_new()
    saving.announce()
    assert (saving.is_new(), other.is_new()) == (True, True)
    assert (saving.is_new(), other.is_new()) == (False, False)
    saving.announce()
    assert other.is_new()


def test_a_process_that_begins_later_does_not_take_earlier_saves_for_new_ones(
    ranks: tuple[SaveMoments, SaveMoments], monkeypatch: pytest.MonkeyPatch
) -> None:
    ranks[0].announce()
    assert not SaveMoments().is_new()


def test_without_a_directory_or_a_run_nothing_is_written_and_nothing_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CCBED_CHECKPOINTS", str(tmp_path / "absent"))
    monkeypatch.setenv("CCBED_EPOCH", "0")
    absent = SaveMoments()
    monkeypatch.delenv("CCBED_EPOCH")
    outside = SaveMoments()
    for moments in (absent, outside):
        moments.announce()
        assert not moments.is_new()
    assert list(tmp_path.iterdir()) == []
