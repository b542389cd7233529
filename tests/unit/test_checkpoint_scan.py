"""The newest valid checkpoint of the lineage that was kept, and the fence before it."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import pytest

from orchestrator.model import codec, manifest
from orchestrator.node.agent import checkpoint_scan
from orchestrator.system import plain_files


def _commit(directory: Path, epoch: int, step: int, content: bytes = b"weights") -> str:
    name = f"e{epoch}-s{step}"
    (directory / f"{name}.pt").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    manifest = {
        "name": name,
        "file": f"{name}.pt",
        "step": step,
        "epoch": epoch,
        "sha256": digest,
        "bytes": len(content),
    }
    (directory / f"{name}.json").write_text(json.dumps({**manifest, "parent": None, "world": 4}))
    return name


def _commit_shards(directory: Path, step: int) -> None:
    """As four ranks and rank 0 leave it."""
    name, files = f"e0-s{step}", {}
    (directory / name).mkdir()
    for file in (".metadata", *(f"__{rank}_0.distcp" for rank in range(4))):
        (directory / name / file).write_bytes(f"{file} of {step}".encode())
        content = (directory / name / file).read_bytes()
        files[file] = {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    document = {"name": name, "file": name, "step": step, "epoch": 0, "parent": None, "world": 4, "files": files}
    document |= {"sha256": manifest.joint(files), "bytes": manifest.total(files)}
    (directory / f"{name}.json").write_text(json.dumps(document))


def _edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _newest(directory: Path, lineage: list[tuple[int, int]]) -> str | None:
    scan = codec.plain(checkpoint_scan.find_newest(directory, lineage))["newest"]
    return str(scan["name"]) if scan else None


def test_the_newest_by_number_is_chosen_not_by_name(tmp_path: Path) -> None:
    for step in (5, 10, 100, 25):
        _commit(tmp_path, 0, step)
    scan = codec.plain(checkpoint_scan.find_newest(tmp_path, [(0, 0)]))
    assert scan["newest"] == {
        "name": "e0-s100",
        "file": "e0-s100.pt",
        "step": 100,
        "epoch": 0,
        "sha256": hashlib.sha256(b"weights").hexdigest(),
        "parent": None,
        "bytes": 7,
    }
    assert scan["skipped"] == []


def test_what_a_later_epoch_did_not_carry_on_does_not_count(tmp_path: Path) -> None:
    for epoch, step in ((0, 5), (0, 10), (0, 15), (1, 12)):
        _commit(tmp_path, epoch, step)
    assert _newest(tmp_path, [(0, 0), (1, 10)]) == "e1-s12"
    assert _newest(tmp_path, [(0, 0), (1, 10), (2, 10)]) == "e0-s10"
    assert _newest(tmp_path, [(0, 0), (1, 10), (2, 7)]) == "e0-s5"
    assert _newest(tmp_path, [(0, 0), (1, 0)]) == "e1-s12"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "e0-s20.pt").write_bytes(b"weight"), "size 6, manifest says 7"),
        (lambda d: (d / "e0-s20.pt").write_bytes(b"wEights"), "sha256"),
        (lambda d: (d / "e0-s20.pt").unlink(), "half-written: no e0-s20.pt"),
        (lambda d: (d / "e0-s20.json").unlink(), "half-written: no e0-s20.json"),
        (lambda d: (d / "e0-s20.json").write_text('{"name": "e0-'), "manifest not readable"),
        (lambda d: (d / "e0-s20.json").write_text("[]"), "manifest not readable"),
        (lambda d: (d / "e0-s10.json").replace(d / "e0-s20.json"), "manifest is of epoch 0, step 10"),
    ],
    ids=["truncated", "flipped", "no-file", "no-manifest", "torn-manifest", "not-a-manifest", "another-manifest"],
)
def test_a_damaged_one_is_skipped_with_the_reason(tmp_path: Path, damage: object, reason: str) -> None:
    for step in (5, 10, 20):
        _commit(tmp_path, 0, step)
    assert callable(damage)
    damage(tmp_path)
    scan = codec.plain(checkpoint_scan.find_newest(tmp_path, [(0, 0)]))
    assert scan["newest"]["name"] in ("e0-s10", "e0-s5")
    assert scan["skipped"][0]["name"] == "e0-s20" and reason in scan["skipped"][0]["reason"]


def test_a_directory_of_every_ranks_file_is_told_as_one(tmp_path: Path) -> None:
    _commit_shards(tmp_path, 5)
    _commit_shards(tmp_path, 10)
    scan = codec.plain(checkpoint_scan.find_newest(tmp_path, []))
    assert (scan["newest"]["name"], scan["newest"]["file"], scan["skipped"]) == ("e0-s10", "e0-s10", [])
    assert scan["newest"]["sha256"] == json.loads((tmp_path / "e0-s10.json").read_text())["sha256"]


def _swap(directory: Path) -> None:
    shard, other = directory / "e0-s10/__0_0.distcp", directory / "e0-s10/__1_0.distcp"
    first, second = shard.read_bytes(), other.read_bytes()
    shard.write_bytes(second)
    other.write_bytes(first)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda d: (d / "e0-s10/__2_0.distcp").write_bytes(b"short"), "__2_0.distcp: size 5, manifest says 18"),
        (lambda d: (d / "e0-s10/__2_0.distcp").write_bytes(b"x" * 18), "__2_0.distcp: sha256"),
        (lambda d: (d / "e0-s10/.metadata").write_bytes(b"x" * 15), ".metadata: sha256"),
        (lambda d: (d / "e0-s10/__3_0.distcp").unlink(), "half-written: no __3_0.distcp"),
        (lambda d: (d / "e0-s10.json").unlink(), "half-written: no e0-s10.json"),
        (lambda d: (d / "e0-s10").rename(d / ".e0-s10.tmp"), "half-written: no .metadata"),
        (lambda d: (d / "e0-s10").rename(d / "away") and (d / "e0-s10").symlink_to("away"), "e0-s10 is a link"),
        (lambda d: _edit(d / "e0-s10.json", files={}), "manifest's files are not those of its sha256"),
        (lambda d: _edit(d / "e0-s10.json", files=[]), "manifest not readable"),
        (lambda d: _edit(d / "e0-s10.json", files={"../x": {"sha256": "", "bytes": 0}}), "'../x' is not a file of the checkpoint"),
        (lambda d: _edit(d / "e0-s10.json", file="../e0-s10"), "manifest is of ../e0-s10"),
        (_swap, "__0_0.distcp: sha256"),
    ],
    ids=[
        "truncated", "flipped", "metadata-flipped", "no-shard", "no-manifest", "not-renamed", "a-link", "files-cut",
        "files-a-list", "a-file-elsewhere", "another-directory", "swapped",
    ],
)  # fmt: skip
def test_one_damaged_shard_and_the_checkpoint_before_is_taken(tmp_path: Path, damage: object, reason: str) -> None:
    for step in (5, 10):
        _commit_shards(tmp_path, step)
    assert callable(damage)
    damage(tmp_path)
    scan = codec.plain(checkpoint_scan.find_newest(tmp_path, [(0, 0)]))
    assert scan["newest"]["name"] == "e0-s5"
    assert [checkpoint["name"] for checkpoint in scan["skipped"]] == ["e0-s10"]
    assert reason in scan["skipped"][0]["reason"]


def test_a_directory_that_ranks_were_writing_when_they_were_killed_is_half_written(tmp_path: Path) -> None:
    _commit_shards(tmp_path, 5)
    (tmp_path / ".e0-s10.tmp").mkdir()
    (tmp_path / ".e0-s10.tmp" / "__0_0.distcp").write_bytes(b"wei")
    scan = codec.plain(checkpoint_scan.find_newest(tmp_path, [(0, 0)]))
    assert scan["newest"]["name"] == "e0-s5"
    assert scan["skipped"] == [{"name": "e0-s10", "reason": "half-written: no e0-s10.json"}]


def test_a_temporary_file_of_a_killed_commit_is_a_half_written_checkpoint(tmp_path: Path) -> None:
    _commit(tmp_path, 0, 5)
    (tmp_path / ".e0-s10.pt.123").write_bytes(b"wei")
    (tmp_path / "fence.json").write_text("{}")
    scan = codec.plain(checkpoint_scan.find_newest(tmp_path, [(0, 0)]))
    assert scan["newest"]["name"] == "e0-s5" and [checkpoint["name"] for checkpoint in scan["skipped"]] == ["e0-s10"]


def test_without_any_there_is_none(tmp_path: Path) -> None:
    assert codec.plain(checkpoint_scan.find_newest(tmp_path, [])) == {"newest": None, "skipped": []}


def test_a_directory_that_is_away_holds_no_fewer_checkpoints_than_before(tmp_path: Path) -> None:
    """To begin at step 0 then would lose everything that was committed."""
    with pytest.raises(FileNotFoundError):
        checkpoint_scan.find_newest(tmp_path / "absent", [])


def test_a_share_that_goes_away_during_the_scan_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    _commit(shared, 0, 5)

    def away(path: Path) -> bytes:
        shared.rename(tmp_path / "away")
        raise FileNotFoundError(2, "No such file or directory", str(path))

    monkeypatch.setattr(plain_files, "read_file", away)
    with pytest.raises(FileNotFoundError):
        checkpoint_scan.find_newest(shared, [])


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_a_file_that_cannot_be_read_is_damaged_only_at_the_last_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    _commit(tmp_path, 0, 5)
    _commit(tmp_path, 0, 10)
    read = plain_files.read_file

    def failing(path: Path) -> bytes:
        if path.name == "e0-s10.json":
            raise OSError(number, os.strerror(number))
        return read(path)

    monkeypatch.setattr(plain_files, "read_file", failing)
    with pytest.raises(OSError, match=os.strerror(number)):
        checkpoint_scan.find_newest(tmp_path, [], unreadable_is_damaged=False)
    result = codec.plain(checkpoint_scan.find_newest(tmp_path, []))
    assert result["newest"]["name"] == "e0-s5" and "not readable" in result["skipped"][0]["reason"]


def test_only_a_fresh_run_makes_its_directory(tmp_path: Path) -> None:
    """Under a mount point whose share is away a new directory would be on this machine's own disk."""
    with pytest.raises(FileNotFoundError):
        checkpoint_scan.write_fence(tmp_path / "c", 1, fresh=False)
    assert not (tmp_path / "c").exists()


def test_the_heart_beats_while_large_files_are_read(tmp_path: Path) -> None:
    _commit(tmp_path, 0, 5, bytes(20 << 20))
    beats: list[int] = []
    checkpoint_scan.find_newest(tmp_path, [], lambda: beats.append(1))
    assert len(beats) == 3


def test_a_fence_only_moves_forward(tmp_path: Path) -> None:
    for epoch in (0, 2, 2):
        checkpoint_scan.write_fence(tmp_path / "c", epoch)
    with pytest.raises(ValueError, match="at epoch 2"):
        checkpoint_scan.write_fence(tmp_path / "c", 1)
    assert json.loads((tmp_path / "c" / manifest.FENCE).read_text()) == {"epoch": 2}
