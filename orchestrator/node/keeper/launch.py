"""Starts the keeper of a bed on this host unless it runs already, and ends a keeper of another version."""

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
from ..oslayer import process_tag, processes

#: Importing torch from a cold disk takes long.
READY_S = 180.0


def ensure_keeper(
    workdir: Path,
    bed: str,
    archive: Path,
    digest: str,
    python: str,
    more: Sequence[str] = (),
    env: Mapping[str, str] = {},
    named: str = "",
) -> bool:
    """Ensure that a keeper runs this archive; whether it had to be started. ``more``: its options. Raises RuntimeError.

    ``named``: the interpreter as the specs of its nodes name it; a keeper that was started for another one is ended.
    """
    with _exclusive(workdir / label.KEEPER_DIR / "prepare.lock"):
        if _is_running(workdir / label.KEEPER_DIR, digest, named):
            return False
        _start(workdir, bed, archive, digest, python, (*more, "--python", named), env)
        return True


def _is_running(directory: Path, digest: str, named: str) -> bool:
    """Does a keeper run this archive in this interpreter? Any other one, or one that hangs in its start, is ended."""
    present = label.live_label(directory, label.KEEPER_LABEL)
    if present and (present["agent"], present.get("python", "")) == (digest, named):
        return True
    end_keeper(directory)
    return False


def end_keeper(directory: Path) -> int:
    """Kill the keeper of a directory; its pid, 0 if there was none."""
    pid = label.lock_holder(directory)
    keeper = processes.find(pid) if pid else None
    if not keeper:
        return 0
    processes.kill([keeper])
    while processes.is_alive(keeper.pid, keeper.start):
        time.sleep(0.002)
    return keeper.pid


def _start(
    workdir: Path, bed: str, archive: Path, digest: str, python: str, more: Sequence[str], env: Mapping[str, str]
) -> None:
    read, write = os.pipe()
    arguments = ["--workdir", str(workdir), "--bed", bed, "--archive", digest, "--ready", str(write), *more]
    bed_tag = process_tag.bed_tag(bed, str(workdir))
    padded_tag = process_tag.pad(process_tag.node_tag(bed_tag, label.KEEPER_DIR, "starting"))
    try:
        launcher = subprocess.Popen(
            [python, str(archive), "keeper", *arguments],
            env={**env, **os.environ, process_tag.VARIABLE: padded_tag},
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(write)
        output, _ = launcher.communicate()
        ready = bool(select.select([read], [], [], READY_S)[0] and os.read(read, 64))
    finally:
        os.close(read)
    if not ready:
        text = output.decode(errors="replace") + _log_tail(workdir / label.KEEPER_DIR / "keeper.log")
        raise RuntimeError("\n".join(["the keeper did not start", *text.splitlines()[-15:]]))


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that excludes other processes."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _log_tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-4000:]
    except OSError:
        return ""
