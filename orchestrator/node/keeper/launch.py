"""Starts the keeper of a bed on this host, unless the right one runs; ends the wrong one."""

from __future__ import annotations

import fcntl
import os
import select
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..files import label
from ..oslayer import process_tag as marks
from ..oslayer import processes

#: Importing torch from a cold disk takes long.
READY_S = 180.0


def ensure(
    workdir: Path,
    bed: str,
    archive: Path,
    digest: str,
    python: str,
    more: Sequence[str] = (),
    env: Mapping[str, str] = {},
) -> bool:
    """A keeper that runs this archive; whether it had to be started. ``more``: options for it. Raises RuntimeError."""
    with _alone(workdir / marks.KEEPER / "prepare.lock"):
        if _is_there(workdir / marks.KEEPER, digest):
            return False
        _start(workdir, bed, archive, digest, python, more, env)
        return True


def _is_there(directory: Path, digest: str) -> bool:
    """Does a keeper run this archive? One that runs another, or hangs in its start, is ended."""
    present = label.living(directory, label.KEEPER)
    if present and present["agent"] == digest:
        return True
    end(directory)
    return False


def end(directory: Path) -> int:
    """End the keeper of a directory, whatever it is doing; its pid, 0 where there was none."""
    pid = label.holder(directory)
    found = processes.find(pid) if pid else None
    if not found:
        return 0
    processes.kill([found])
    while processes.alive(found.pid, found.start):
        time.sleep(0.002)
    return found.pid


def _start(
    workdir: Path, bed: str, archive: Path, digest: str, python: str, more: Sequence[str], env: Mapping[str, str]
) -> None:
    read, write = os.pipe()
    arguments = ["--workdir", str(workdir), "--bed", bed, "--archive", digest, "--ready", str(write), *more]
    placeholder = marks.padded(marks.mark(marks.tag(bed, str(workdir)), marks.KEEPER, "starting"))
    try:
        launcher = subprocess.Popen(
            [python, str(archive), "keeper", *arguments],
            env={**env, **os.environ, marks.NAME: placeholder},
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(write)
        said, _ = launcher.communicate()
        ready = bool(select.select([read], [], [], READY_S)[0] and os.read(read, 64))
    finally:
        os.close(read)
    if not ready:
        tail = said.decode(errors="replace") + _tail(workdir / marks.KEEPER / "keeper.log")
        raise RuntimeError("\n".join(["the keeper did not start", *tail.splitlines()[-15:]]))


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One at a time, whichever process it is."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""
