"""``ccbed judge`` on records without a bed, and the wheel ``ccbed-watch`` that makes them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import threading
import zipfile
import zlib
from pathlib import Path

import pytest

from orchestrator.model import codec, watch
from orchestrator.rank.watcher import command, record
from orchestrator.store import recorded_files

from ..test_cli import Desk, ccbed
from ..watched_jobs import Job, right, wrong

__all__ = ["ccbed"]

WATCHER = Path(command.__file__).parent


def write(job: Job, directory: Path) -> Path:
    """The records as the watcher writes them."""
    names = {kind: name for name, kind in watch.KINDS.items()}
    for file in job.files:
        lines = [json.dumps({"k": names[type(line)], **codec.plain(line)}) for line in file.lines]
        path = directory / Path(file.path).name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
    return directory


def test_a_right_resumption_is_exit_0_and_names_the_step(ccbed: Desk, tmp_path: Path) -> None:
    assert ccbed("judge", str(write(right(), tmp_path / "records"))) == 0, ccbed.out + ccbed.err
    assert "resumed-from (step 15 on 2 ranks)" in ccbed.out and "restart 1: 2 ranks, 15 steps" in ccbed.out


def test_a_wrong_resumption_is_exit_1_and_names_the_row(ccbed: Desk, tmp_path: Path) -> None:
    assert ccbed("judge", "--json", str(write(wrong("optimizer", ranks=[1]), tmp_path / "records"))) == 1
    document = json.loads(ccbed.out)
    verdicts = {verdict["check"]: verdict for verdict in document["verdicts"]}
    assert verdicts["resume-complete"]["evidence"]["rows"]["attempt 1"]["optimizer"]["result"] == "fail"
    assert document["outcome"] == "fail"


def test_a_rank_without_a_record_is_exit_2(ccbed: Desk, tmp_path: Path) -> None:
    records = write(right(), tmp_path / "records")
    for file in records.glob("watch-r1-*"):
        file.unlink()
    assert ccbed("judge", str(records)) == 2
    assert "rank 1 has no record" in ccbed.out


def test_a_record_that_is_cut_off_makes_every_verdict_unknown_and_is_named(ccbed: Desk, tmp_path: Path) -> None:
    records = write(right(), tmp_path / "records")
    file = min(records.glob("watch-r1-*"))
    file.write_bytes(file.read_bytes()[:-5])
    lines = file.read_bytes().count(b"\n")
    assert ccbed("judge", str(records)) == 2
    assert f"{file.name}:{lines + 1}: the record is cut off" in ccbed.err
    assert "fail without what is missing" in ccbed.out or "pass without what is missing" in ccbed.out
    assert "pass    " not in ccbed.out and "fail    " not in ccbed.out


def test_a_damaged_line_is_named_and_nothing_is_judged(ccbed: Desk, tmp_path: Path) -> None:
    records = write(right(), tmp_path / "records")
    file = min(records.glob("watch-r1-*"))
    lines = file.read_text().splitlines()
    file.write_text("".join(f"{line}\n" for line in [*lines[:7], "garbage", *lines[8:]]))
    assert ccbed("judge", str(records)) == 2
    assert f"{file.name}:8: not a record of the watcher" in ccbed.err and "nothing was judged" in ccbed.err
    assert "verdicts" not in ccbed.out


def test_a_directory_without_records_is_exit_3(ccbed: Desk, tmp_path: Path) -> None:
    assert ccbed("judge", str(tmp_path)) == 3
    assert "no watch-r*.jsonl" in ccbed.err and "ccbed-watch" in ccbed.err


def test_the_command_gets_the_watcher_first_on_its_path(tmp_path: Path) -> None:
    show = "import os, json; print(json.dumps({k: os.environ.get(k) for k in ('CCBED_WATCH', 'PYTHONPATH', 'CCBED_WATCH_EVERY')}))"
    argv = [sys.executable, str(WATCHER / "command.py"), "--dir", "r", "--every", "4", "--", sys.executable, "-c", show]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PYTHONPATH": "/a/b"}, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == {
        "CCBED_WATCH": str(tmp_path / "r"), "PYTHONPATH": f"{WATCHER / 'site'}:/a/b", "CCBED_WATCH_EVERY": "4",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "code", "text"),
    [
        ([], 2, "no command"),
        (["--every", "0", "true"], 2, "--every: must be"),
        (["no-such-program"], 127, "No such file"),
    ],
)
def test_wrong_usage_is_explained(tmp_path: Path, argv: list[str], code: int, text: str) -> None:
    done = subprocess.run(
        [sys.executable, str(WATCHER / "command.py"), *argv], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr


def test_the_wheel_has_the_watcher_and_its_program(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=WATCHER, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"ccbed_watch/__init__.py", "ccbed_watch/install.py", "ccbed_watch/site/sitecustomize.py"} <= names
    others = [name for name in names if not name.startswith(("ccbed_watch/", "ccbed_watch-"))]
    assert others == ["ccbed_events.py"]


def _summed(file: Path) -> None:
    """Give the lines of a record their sums, as the watcher writes them."""
    total, lines = 0, []
    for line in file.read_bytes().splitlines():
        total = zlib.crc32(line, total)
        lines.append(b'%s,"sum":"%08x"}\n' % (line[:-1], total))
    file.write_bytes(b"".join(lines))


@pytest.mark.parametrize("edit", ["nothing", "value", "removed", "swapped"])
def test_a_line_that_was_changed_or_removed_makes_every_verdict_unknown(ccbed: Desk, tmp_path: Path, edit: str) -> None:
    records = write(right(), tmp_path / "records")
    for file in records.glob("watch-r*"):
        _summed(file)
    file = min(records.glob("watch-r0-*"))
    lines = file.read_text().splitlines(keepends=True)
    commit = next(i for i, line in enumerate(lines) if '"committed"' in line)
    edited = {
        "nothing": lines,
        "value": [*lines[:commit], lines[commit].replace("/ckpt/5.pt", "/ckpt/6.pt"), *lines[commit + 1 :]],
        "removed": [*lines[:commit], *lines[commit + 1 :]],
        "swapped": [*lines[:commit], lines[commit + 1], lines[commit], *lines[commit + 2 :]],
    }
    file.write_text("".join(edited[edit]))
    assert ccbed("judge", str(records)) == (0 if edit == "nothing" else 2)
    assert ("this line was changed, or a line before it is missing" in ccbed.err) == (edit != "nothing")


def test_the_sums_of_lines_from_several_threads_and_of_a_program_that_is_executed_again_hold(tmp_path: Path) -> None:
    for _ in range(2):  # the second one appends, as after ``exec``
        recorder = record.Recorder(str(tmp_path))
        recorder.line("begin", format=1, rank=0, pid=os.getpid())
        writers = [
            threading.Thread(target=lambda r=recorder: [r.line("rng", n=n) for n in range(50)]) for _ in range(4)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert recorder.path.read_bytes().count(b"\n") == 2 * (1 + 4 * 50)
    assert recorded_files.WatchDirectory(tmp_path).incomplete() == ()


def test_a_line_that_a_signal_handler_writes_within_another_keeps_the_sums(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, write_bytes = record.Recorder(str(tmp_path)), os.write
    recorder.line("begin", format=1, rank=0, pid=os.getpid())

    def interrupted(fd: int, data: bytes) -> int:
        if b'"rng"' in data:
            recorder.line("held", hold="h")
        return write_bytes(fd, data)

    monkeypatch.setattr(os, "write", interrupted)
    recorder.line("rng", n=1)
    monkeypatch.undo()
    assert [json.loads(line)["k"] for line in recorder.path.read_text().splitlines()] == ["begin", "rng", "held"]
    assert recorded_files.WatchDirectory(tmp_path).incomplete() == ()


# --- what the records of an incident lack -------------------------------------------------------------------------------------


def test_the_last_start_alone_does_not_show_what_it_resumed_from(ccbed: Desk, tmp_path: Path) -> None:
    job = right()
    for file in [file for file in job.files if file.attempt]:
        loads = tuple(
            dataclasses.replace(x, contents={"optimizer.exp_avg": "0"}) if isinstance(x, watch.Load) else x
            for x in file.lines
        )
        job.files[job.files.index(file)] = dataclasses.replace(file, lines=loads)
    job.files = [file for file in job.files if file.attempt]
    assert ccbed("judge", str(write(job, tmp_path / "records"))) == 2
    assert "began with the optimizer of /ckpt/15.pt" in ccbed.out


def test_the_end_of_a_record_that_was_lost_with_its_host_hides_what_was_saved(ccbed: Desk, tmp_path: Path) -> None:
    job = Job().attempt(0, 0, 18).attempt(1, 10, 30, ends=True)  # fails: 15 was saved
    first = job.files[0]
    end = next(i for i, line in enumerate(first.lines) if isinstance(line, watch.Step) and line.n == 13)
    job.files[0] = dataclasses.replace(first, lines=first.lines[:end])
    assert ccbed("judge", str(write(job, tmp_path / "records"))) == 2
    assert "ends after step 12, those of others after step 18" in ccbed.out


@pytest.mark.parametrize("hours", [1, -1])
def test_hosts_whose_clocks_differ_are_judged_as_they_ran(ccbed: Desk, tmp_path: Path, hours: int) -> None:
    job = right()
    for index, file in enumerate(job.files):
        boot, wall = f"boot {file.rank}", 3600.0 * hours * file.rank
        lines = (
            dataclasses.replace(x, boot=boot, wall=x.wall + wall, attempt=0, restart=file.attempt)
            if isinstance(x, watch.Begin)
            else x
            for x in file.lines
        )
        job.files[index] = dataclasses.replace(file, lines=tuple(lines))
    assert ccbed("judge", str(write(job, tmp_path / "records"))) == 0, ccbed.out
    assert "resumed-from (step 15 on 2 ranks)" in ccbed.out
