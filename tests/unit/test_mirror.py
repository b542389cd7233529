"""The mirror of a host: bytes where they belong, nothing elsewhere, and no frame in part."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from orchestrator.node.hostlink import tails
from orchestrator.providers.ssh.mirror import Mirror

LOG = "nodes/n0/runs/R/i1-e0/rank-0.log"


@pytest.fixture
def mirror(tmp_path: Path) -> Mirror:
    return Mirror(tmp_path, "h1")


def test_files_lie_as_on_the_host_and_the_keepers_by_host(mirror: Mirror, tmp_path: Path) -> None:
    assert mirror.write({"file": LOG, "at": 0}, b"one\n")
    assert mirror.write({"file": LOG, "at": 4, "end": True}, b"two\n")
    assert mirror.write({"file": "keeper/events.jsonl", "at": 0}, b"{}\n")
    assert (tmp_path / LOG).read_bytes() == b"one\ntwo\n"
    assert (tmp_path / "keeper-h1/events.jsonl").read_bytes() == b"{}\n"


def test_nothing_is_written_once_the_files_may_be_removed(mirror: Mirror, tmp_path: Path) -> None:
    """What the thread of a link still has to write would leave a directory of a bed that is down."""
    mirror.close()
    assert mirror.write({"file": "keeper/events.jsonl", "at": 0}, b"{}\n"), "it is not requested again"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "nodes/../../x", "/etc/passwd", "shared/x", ""])
def test_no_name_leads_elsewhere(mirror: Mirror, name: str) -> None:
    with pytest.raises(ValueError):
        mirror.write({"file": name, "at": 0}, b"x")


@pytest.mark.parametrize("offset", [3, 5, 400])
def test_bytes_that_do_not_fit_are_refused(mirror: Mirror, tmp_path: Path, offset: int) -> None:
    mirror.write({"file": LOG, "at": 0}, b"one\n")
    assert not mirror.write({"file": LOG, "at": offset}, b"two\n")
    assert (tmp_path / LOG).read_bytes() == b"one\n"


def test_offset_zero_begins_anew(mirror: Mirror, tmp_path: Path) -> None:
    mirror.write({"file": LOG, "at": 0}, b"a long line\n")
    assert mirror.write({"file": LOG, "at": 0}, b"short\n")
    assert (tmp_path / LOG).read_bytes() == b"short\n"


def test_what_is_here_is_told_with_the_hash_of_its_end(mirror: Mirror, tmp_path: Path) -> None:
    data = os.urandom(10_000)
    mirror.write({"file": LOG, "at": 0}, data)
    mirror.write({"file": "nodes/n0/agent.log", "at": 0}, b"x")
    listed = [tails.Tree(path="nodes/n0/runs/R", node="n0", deep=True), tails.Tree(path="keeper", node="")]
    have = mirror.have(listed)
    assert list(have) == [LOG]
    (tmp_path / "copy").write_bytes(b"y" * (10_000 - tails.TAIL) + data[-tails.TAIL :])
    assert have[LOG] == (10_000, tails.end_hash(str(tmp_path / "copy"), 10_000))


def test_a_full_disk_takes_back_the_part_that_was_written(
    mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror.write({"file": LOG, "at": 0}, b"one\n")
    real = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        if offset > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:2], offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space"):
        mirror.write({"file": LOG, "at": 4}, b"two\n")
    assert (tmp_path / LOG).read_bytes() == b"one\n"
