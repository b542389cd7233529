"""Checkpoints reach the shared directory whole and fenced, or not at all."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from orchestrator.rank.checkpoint import contents

WHOLE = contents.Whole(data=b"state")
#: As the ranks told it: file -> content.
SHARDS = {"__0_0.distcp": b"first", "__1_0.distcp": b"second", ".metadata": b"where"}


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    (tmp_path / "fence.json").write_text('{"epoch": 0}')
    return tmp_path


def identity(step: int, epoch: int = 0, parent: str | None = None) -> contents.Identity:
    return contents.Identity(epoch=epoch, step=step, world=4, parent=parent)


def shards(shared: Path, name: str, since: float | None = None) -> contents.Shards:
    """What ranks have written of a checkpoint that is not committed yet."""
    directory = contents.unfinished(shared, name)
    directory.mkdir()
    for file, content in SHARDS.items():
        (directory / file).write_bytes(content)
    message = {
        file: {"sha256": hashlib.sha256(entry).hexdigest(), "bytes": len(entry)} for file, entry in SHARDS.items()
    }
    return contents.Shards(files=message, since=since)


def names(shared: Path) -> set[str]:
    return {path.name for path in shared.iterdir()} - {"fence.json"}


def test_a_committed_checkpoint_is_named_hashed_and_tells_its_parent(shared: Path) -> None:
    facts = contents.commit(shared, identity(10, parent="e0-s5"), WHOLE, keep=3)
    assert json.loads((shared / "e0-s10.json").read_text()) == {
        "name": "e0-s10", "file": "e0-s10.pt", "step": 10, "epoch": 0, "bytes": 5, "parent": "e0-s5", "world": 4,
        "sha256": hashlib.sha256(b"state").hexdigest(),
    }  # fmt: skip
    assert facts["write_s"] >= 0
    assert (shared / "e0-s10.pt").read_bytes() == b"state"
    assert names(shared) == {"e0-s10.pt", "e0-s10.json"}


def test_a_later_epochs_fence_refuses_the_commit_and_nothing_of_it_stays(shared: Path) -> None:
    (shared / "fence.json").write_text('{"epoch": 1}')
    with pytest.raises(contents.Refused) as refused:
        contents.commit(shared, identity(5), WHOLE, keep=3)
    assert (refused.value.name, refused.value.fence) == ("e0-s5", 1)
    assert names(shared) == set()


def test_the_fence_is_read_after_the_file_is_in_place(shared: Path) -> None:
    def overtaken() -> None:
        (shared / "fence.json").write_text('{"epoch": 1}')

    with pytest.raises(contents.Refused):
        contents.commit(shared, identity(5), WHOLE, keep=3, before_rename=overtaken)
    assert names(shared) == set()


@pytest.mark.parametrize("content", ["", "{", "{}", "[]"])
def test_an_unreadable_fence_lets_nothing_through(shared: Path, content: str) -> None:
    (shared / "fence.json").write_text(content)
    with pytest.raises(ValueError, match=r"fence\.json"):
        contents.commit(shared, identity(5), WHOLE, keep=3)
    assert names(shared) == set()


def test_at_the_checkpoint_point_only_the_temporary_file_is_there(shared: Path) -> None:
    observed: list[set[str]] = []
    contents.commit(shared, identity(5), WHOLE, keep=3, before_rename=lambda: observed.append(names(shared)))
    assert observed == [{".e0-s5.pt.tmp"}]


def test_a_failure_to_write_leaves_nothing_behind(shared: Path) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        contents.commit(shared, identity(5), WHOLE, keep=3, before_rename=full)
    assert names(shared) == set()


def test_only_the_newest_are_kept(shared: Path) -> None:
    for step in (5, 10, 15, 20):
        contents.commit(shared, identity(step), WHOLE, keep=2)
    assert names(shared) == {"e0-s15.pt", "e0-s15.json", "e0-s20.pt", "e0-s20.json"}


def test_a_later_epoch_counts_as_newer_whatever_its_step(shared: Path) -> None:
    contents.commit(shared, identity(25), WHOLE, keep=2)
    contents.commit(shared, identity(30), WHOLE, keep=2)
    (shared / "fence.json").write_text('{"epoch": 1}')
    contents.commit(shared, identity(26, epoch=1), WHOLE, keep=2)
    assert names(shared) == {"e0-s30.pt", "e0-s30.json", "e1-s26.pt", "e1-s26.json"}


def test_what_a_killed_epoch_left_half_written_goes_with_the_next_commit(shared: Path) -> None:
    (shared / ".e0-s30.pt.tmp").write_bytes(b"half")
    (shared / "fence.json").write_text('{"epoch": 1}')
    contents.commit(shared, identity(26, epoch=1), WHOLE, keep=2)
    assert names(shared) == {"e1-s26.pt", "e1-s26.json"}


def test_files_of_other_names_are_left_alone(shared: Path) -> None:
    (shared / "notes.txt").write_text("mine")
    contents.commit(shared, identity(5), WHOLE, keep=1)
    contents.commit(shared, identity(10), WHOLE, keep=1)
    assert names(shared) == {"notes.txt", "e0-s10.pt", "e0-s10.json"}


# --- a file per rank --------------------------------------------------------------------------------------------------


def test_a_committed_directory_tells_every_file_and_one_hash_of_all(shared: Path) -> None:
    facts = contents.commit(shared, identity(10, parent="e0-s5"), shards(shared, "e0-s10"), keep=3)
    assert names(shared) == {"e0-s10", "e0-s10.json"}
    assert {path.name: path.read_bytes() for path in (shared / "e0-s10").iterdir()} == SHARDS
    document = json.loads((shared / "e0-s10.json").read_text())
    assert (document["file"], document["bytes"], document["parent"]) == ("e0-s10", 16, "e0-s5")
    assert document["files"]["__1_0.distcp"] == {"sha256": hashlib.sha256(b"second").hexdigest(), "bytes": 6}
    lines = "".join(f"{hashlib.sha256(SHARDS[name]).hexdigest()}  {name}\n" for name in sorted(SHARDS))
    assert facts["sha256"] == document["sha256"] == hashlib.sha256(lines.encode()).hexdigest()


def test_the_time_of_a_directory_counts_from_its_first_byte(shared: Path) -> None:
    facts = contents.commit(shared, identity(5), shards(shared, "e0-s5", since=time.monotonic() - 100), keep=3)
    assert 100 <= facts["write_s"] < 110


def test_a_later_epochs_fence_refuses_a_directory_and_nothing_of_it_stays(shared: Path) -> None:
    def overtaken() -> None:
        (shared / "fence.json").write_text('{"epoch": 1}')

    with pytest.raises(contents.Refused):
        contents.commit(shared, identity(5), shards(shared, "e0-s5"), keep=3, before_rename=overtaken)
    assert names(shared) == set()


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_file_that_rank_0_does_not_see_whole_is_not_committed(shared: Path, damage: str) -> None:
    """A directory that is not shared between the hosts, or one whose writes have not arrived."""
    message = shards(shared, "e0-s5")
    file = contents.unfinished(shared, "e0-s5") / "__1_0.distcp"
    file.unlink() if damage == "missing" else file.write_bytes(b"secon")
    with pytest.raises(OSError, match=r"__1_0\.distcp"):
        contents.commit(shared, identity(5), message, keep=3)
    assert names(shared) == set()


def test_at_the_checkpoint_point_only_the_unfinished_directory_is_there(shared: Path) -> None:
    observed: list[set[str]] = []
    message = shards(shared, "e0-s5")
    contents.commit(shared, identity(5), message, keep=3, before_rename=lambda: observed.append(names(shared)))
    assert observed == [{".e0-s5.tmp"}]


def test_whole_directories_go_and_the_one_resumed_from_stays_until_a_newer_one_is_committed(shared: Path) -> None:
    contents.commit(shared, identity(25), shards(shared, "e0-s25"), keep=1)
    shards(shared, "e0-s30")  # its epoch was killed before the commit
    (shared / "fence.json").write_text('{"epoch": 1}')
    observed: list[set[str]] = []
    message = shards(shared, "e1-s30")
    contents.commit(
        shared, identity(30, epoch=1), message, keep=1, before_rename=lambda: observed.append(names(shared))
    )
    assert observed == [{"e0-s25", "e0-s25.json", ".e0-s30.tmp", ".e1-s30.tmp"}]
    assert names(shared) == {"e1-s30", "e1-s30.json"}
