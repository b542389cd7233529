"""Outlives a process of pytest, and ends and removes what is left of all that it started, if it was killed.

    python -IS tests/reaper.py PIDFD LOCK DIRECTORY

``DIRECTORY`` stands in the environment of all that the process started (``tests/undo.py``): nothing else is ended. The descriptor
``LOCK`` locks it until all is done.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from orchestrator.node.oslayer import processes  # noqa: E402
from tests.undo import VARIABLE  # noqa: E402

#: How long a program may take to notice by itself that its parent is gone, and what is undone may take.
GRACE_S, UNDO_S = 3.0, 120.0
_DOWN = """
import sys
from pathlib import Path
from orchestrator.cli import main
from orchestrator.cli.inputs import terminal_session
main.run(("down", sys.argv[2], "--force"), terminal_session.Session(state=Path(sys.argv[1])))
"""


def clean(directory: Path) -> None:
    """End beds as a user does, undo what is written down, latest first, then kill what is left, and remove it."""
    for state, bed in sorted(_beds(directory)):
        _run([sys.executable, "-c", _DOWN, str(state), bed])
    entries = [json.loads(file.read_text()) for file in sorted(directory.glob("*.json"), reverse=True)]
    for entry in entries:
        if "argv" in entry:
            _run(entry["argv"])
    _end(directory)
    for entry in entries:
        if "directory" in entry:
            _remove(Path(entry["directory"]))
    shutil.rmtree(directory, ignore_errors=True)


def wait(directory: Path, limit_s: float = UNDO_S) -> None:
    """Until the reaper of another process has done its work."""
    with contextlib.suppress(FileNotFoundError):
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        end = time.monotonic() + limit_s
        while not _is_free(lock) and time.monotonic() < end:
            time.sleep(0.02)
        os.close(lock)


def started(directory: Path) -> list[processes.Process]:
    """The living processes that have the directory in their environment, and their descendants."""
    mark = f"{VARIABLE}={directory}".encode()
    roots = [process for process in processes.scan(since=1 << 62) if mark in _read(process.pid, "environ")]
    below = [process for root in roots for process in processes.descendants(root.pid)]
    others = {process.pid: process for process in (*roots, *below) if process.pid != os.getpid()}
    return list(others.values())


def _beds(directory: Path) -> Iterator[tuple[Path, str]]:
    """State directory and name of each bed whose keeper still runs on this machine."""
    for process in started(directory):
        words = [word.decode(errors="replace") for word in _read(process.pid, "cmdline")]
        if "keeper" in words and {"--bed", "--workdir"} <= set(words):
            bed, workdir = (words[words.index(option) + 1] for option in ("--bed", "--workdir"))
            for file in directory.parent.rglob(f"beds/{bed}.json"):
                if workdir in file.read_text():
                    yield file.parents[1], bed


def _end(directory: Path) -> None:
    """All are stopped before they are killed: one that sees the end of another may start something new."""
    end = time.monotonic() + GRACE_S
    while started(directory) and time.monotonic() < end:
        time.sleep(0.05)
    while time.monotonic() < end + UNDO_S and (left := started(directory)):
        stopped: set[int] = set()
        while new := [process for process in left if process.pid not in stopped]:
            stopped |= {process.pid for process in new}
            processes.send_signal(new, signal.SIGSTOP)
            left = started(directory)
        processes.kill(left)
        time.sleep(0.01)


def _remove(directory: Path) -> None:
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in sorted((mount for mount in mounts if Path(mount).is_relative_to(directory)), reverse=True):
        _run(["umount", "--lazy", mount])
    shutil.rmtree(directory, ignore_errors=True)


def _run(argv: list[str]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            argv, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=UNDO_S, check=False,
        )  # fmt: skip


def _read(pid: int, name: str) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes().split(b"\0")
    return []


def _is_free(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def main(pidfd: int, directory: Path) -> None:
    """In the background: nobody's child, and in no session of a terminal. Workers of xdist end after their controller."""
    if os.fork():
        return
    os.setsid()
    select.select([pidfd], [], [])
    for worker in directory.parent.glob("popen-*/process-*"):
        wait(worker)
    clean(directory)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[3]))
