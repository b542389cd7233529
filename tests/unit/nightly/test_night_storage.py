"""A night on a disk that fills up ends with its rows, its seal and its report; the bundles before are as they were sealed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.model.errors import InfrastructureError
from orchestrator.nightly import night_files, row_states, runner
from orchestrator.nightly.runner import Attempt
from orchestrator.nightly.suite import Cell

from .test_night_runner import FakeTrials, begin, cells, states

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 10 MiB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=10m", "tmpfs", str(mounted)]
    if os.getuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root mounts a file system")
    yield mounted
    subprocess.run(["umount", str(mounted)], check=True)


class FillingTrials(FakeTrials):
    """Each run writes 2 MiB, and then fills the disk to its last byte if ``is_greedy``."""

    is_greedy = False

    def launch(self, cell: Cell, repeat: int, open_run: str, again: str = "") -> Attempt:
        attempt = super().launch(cell, repeat, open_run, again)
        try:
            (self.directory / "runs" / attempt.run / "data").write_bytes(b"x" * 2 * MIB)
        except OSError as error:
            if self.is_greedy:
                fill(self.directory.parent / "other")
            raise InfrastructureError(f"{attempt.run}: {error.strerror}") from None
        return attempt


def fill(file: Path) -> None:
    with file.open("ab", buffering=0) as out:
        for size in (65536, 1):
            try:
                while out.write(b"x" * size):
                    pass
            except OSError:
                pass


@pytest.mark.parametrize("is_greedy", [False, True])
def test_a_full_disk_ends_the_night_and_names_the_cells_that_did_not_run(disk: Path, is_greedy: bool) -> None:
    directory, night = begin(disk, *cells("a", "b"), *cells("c", repeats=4), *cells("d", "e"))
    trials = FillingTrials(directory=directory)
    trials.is_greedy = is_greedy
    night_runner = runner.Runner(directory=directory, night=night, trials=trials, now=trials.now)
    result = night_runner.run()
    assert states(result) == [
        ("c", "passed"), ("a", "passed"), ("c", "error"), ("b", "error"), ("d", "error"), ("c", "error"), ("e", "error"),
    ]  # fmt: skip
    missing = [row.reason for row in result if row.reason.startswith("not run: ")]
    assert missing == [f"not run: {directory}/runs: No space left on device"] * 4
    assert row_states.exit_code(result) == 4
    assert night_files.is_closed(directory)
    assert night_files.verify(directory) == ()
    assert len(trials.launched) == 3, "nothing is started on a full disk"
    (directory / "report").write_bytes(b"x" * MIB)


def test_no_night_begins_on_a_full_disk(disk: Path) -> None:
    (disk / "other").write_bytes(b"x" * 7 * MIB)
    with pytest.raises(InfrastructureError, match="no night can begin here: No space left on device"):
        begin(disk, *cells("a"))
    assert night_files.nights(disk) == ()
    assert sorted(path.name for path in disk.iterdir()) == ["other"]


def test_a_row_that_cannot_be_written_leaves_the_night_open_and_a_later_process_ends_it(disk: Path) -> None:
    directory, night = begin(disk, *cells("a"))
    trials = FakeTrials(directory=directory)
    night_files.release(directory)
    with night_files.Journal(directory) as journal:
        journal.append(row_states.of_node("n0", "was dead"))
        fill(disk / "other")
        with pytest.raises(InfrastructureError, match=r"a row cannot be written: No space left on device") as caught:
            journal.append(row_states.of_node("n1", "was dead" * 10_000))
    assert caught.value.hint.endswith(f"ccbed nightly --resume {directory}")
    (disk / "other").unlink()
    result = runner.Runner(directory=directory, night=night, trials=trials, now=trials.now).run()
    assert result[0] == row_states.of_node("n0", "was dead")
    assert result[-1].cell == "a"
    assert night_files.verify(directory) == ()
