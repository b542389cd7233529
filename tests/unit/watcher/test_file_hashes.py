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


def test_of_many_files_that_wait_few_are_open_and_all_are_hashed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.pt" for number in range(3 * file_hashes.MAX_OPEN)]
    for number, path in enumerate(paths):
        path.write_bytes(b"%d" % number)
    files = [file_hashes.Unchanged(str(path), file_hashes.stamp(str(path))) for path in paths]
    assert sum(map(_is_open, paths)) <= file_hashes.MAX_OPEN
    assert [file.sha256() for file in files] == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert not any(map(_is_open, paths))


def test_a_job_that_is_not_due_runs_with_the_drain_after_those_that_are() -> None:
    thread, done = file_hashes.HashThread(), list[str]()
    thread.submit(lambda: done.append("later"), 3600.0)
    thread.submit(lambda: done.append("now"))
    assert thread.drain(30) and sorted(done) == ["later", "now"]


class Node:
    """A node of two that hashes files of one directory."""

    def __init__(self, number: int, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        environment = {
            "RANK": number,
            "WORLD_SIZE": 2,
            "LOCAL_WORLD_SIZE": 1,
            "CCBED_EPOCH": 0,
            "CCBED_CHECKPOINTS": folder,
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        self.hashes = file_hashes.SharedHashes()
        self.computed = list[str]()

    def sha256(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> str | None:
        file = file_hashes.Unchanged(str(path), file_hashes.stamp(str(path)))
        compute = file_hashes.Unchanged.sha256

        def counted(own: file_hashes.Unchanged) -> str | None:
            self.computed.append(own.path)
            return compute(own)

        with monkeypatch.context() as patch:
            patch.setattr(file_hashes.Unchanged, "sha256", counted)
            return self.hashes.sha256(file)


def test_a_file_that_two_nodes_see_is_hashed_by_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [Node(number, monkeypatch, tmp_path) for number in range(2)]
    paths = [tmp_path / f"{number}.pt" for number in range(20)]
    for path in paths:
        path.write_bytes(str(path).encode())
    sums = [[node.sha256(path, monkeypatch) for path in paths] for node in nodes]
    assert sums[0] == sums[1] == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]
    assert nodes[0].computed == [str(path) for path in paths] and nodes[1].computed == []
    nodes[0].sha256(paths[0], monkeypatch)
    late = [nodes[1].hashes.delay_s(str(path)) for path in paths]
    assert late == [0.0] * 20, (
        "it has published no hash that the other needs, and so does not know that files are shared"
    )
    other = tmp_path / "other.pt"
    other.write_bytes(b"other")
    file = file_hashes.Unchanged(str(other), file_hashes.stamp(str(other)))
    assert nodes[1].hashes.sha256(file) == hashlib.sha256(b"other").hexdigest()
    os.utime(other, ns=(1, 1))
    assert nodes[0].sha256(other, monkeypatch) == hashlib.sha256(b"other").hexdigest(), "not the file that was hashed"
    assert nodes[0].computed[-1] == str(other)


def test_nodes_that_have_hashed_the_same_file_wait_for_the_share_of_the_other_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [Node(number, monkeypatch, tmp_path) for number in range(2)]
    first = tmp_path / "first.pt"
    first.write_bytes(b"first")
    key = f"{file_hashes.stamp(str(first))} {first}"
    for node in nodes:  # both at once: neither finds the hash of the other
        node.hashes._publish(key, hashlib.sha256(b"first").hexdigest())
    for node in nodes:
        node.sha256(first, monkeypatch)
    delays = [[node.hashes.delay_s(f"{number}.pt") for number in range(20)] for node in nodes]
    assert all(sorted(pair) == [0.0, file_hashes.WAIT_S] for pair in zip(*delays, strict=True))
    lost = tmp_path / "lost.pt"
    lost.write_bytes(b"lost")
    assert nodes[1].sha256(lost, monkeypatch) == hashlib.sha256(b"lost").hexdigest(), "the other node is lost"
