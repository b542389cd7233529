"""SHA-256 of files that are rotated while they are hashed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from orchestrator.rank.watcher.checkpoints import file_hashes


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_hashes, "CHUNK", 7)
    path = tmp_path / "saves" / "last.pt"
    path.parent.mkdir()
    path.write_bytes(b"weights of a model")
    return path


def _is_open(path: Path) -> bool:
    files = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return any(file.exists() and file.samefile(path) for file in files)


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_file_that_stays_has_its_hash_and_is_closed(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, is_remote: bool
) -> None:
    monkeypatch.setattr(file_hashes, "is_on_network", lambda path: is_remote)
    file = file_hashes.Unchanged(str(checkpoint), file_hashes.stamp(str(checkpoint)))
    assert _is_open(checkpoint) == (not is_remote)
    assert file.sha256() == hashlib.sha256(checkpoint.read_bytes()).hexdigest()
    assert not _is_open(checkpoint)


def test_on_a_network_file_system_a_file_that_is_gone_or_replaced_has_no_hash(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_hashes, "is_on_network", lambda path: True)
    expected = file_hashes.stamp(str(checkpoint))
    (checkpoint.parent / "next.pt").write_bytes(b"weights of a MODEL")
    file = file_hashes.Unchanged(str(checkpoint), expected)
    os.replace(checkpoint.parent / "next.pt", checkpoint)
    assert file.sha256() is None
    checkpoint.unlink()
    assert file.sha256() is None


def test_a_temporary_directory_is_local_and_a_path_without_a_file_system_is_not_known(tmp_path: Path) -> None:
    assert not file_hashes.is_on_network(str(tmp_path))
    assert file_hashes.is_on_network(str(tmp_path / "nothing"))
