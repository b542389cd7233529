"""Starts the keeper of a bed on this host unless it runs already, and ends a keeper of another version."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ...system import plain_files
from ..files import label
from ..oslayer import cgroups, processes
from ..oslayer.event_loop import wait_readable

#: Importing torch from a cold disk takes long.
READY_S = 180.0
#: In the keeper's environment at its start these put its memory into huge pages, if the kernel has them. With fewer pages
#: a fork and its exit take a quarter of the time. Programs that the keeper starts must not inherit them.
HUGE_PAGES = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}


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
    directory = workdir / label.KEEPER_DIR
    with exclusive(directory):
        if is_running(directory, digest, named):
            return False
        end_keeper(directory)  # another one, or one that hangs in its start
        arguments = (*keeper_arguments(workdir, bed, digest, named), *more)
        _start(workdir, archive, python, arguments, {**env, processes.TAG_VARIABLE: starting_tag(bed, workdir)})
        return True


def is_running(directory: Path, digest: str, named: str) -> bool:
    """Does a keeper run this archive in this interpreter?"""
    present = label.live_label(directory, label.KEEPER_LABEL)
    return bool(present) and (present["agent"], present.get("python", "")) == (digest, named)


def keeper_arguments(workdir: Path, bed: str, digest: str, named: str) -> tuple[str, ...]:
    return ("--workdir", str(workdir), "--bed", bed, "--archive", digest, "--python", named)


def starting_tag(bed: str, workdir: Path) -> str:
    """The process tag of a keeper that starts, long enough to be replaced by that of any node."""
    bed_tag = processes.bed_tag(bed, str(workdir))
    return processes.pad_tag(processes.node_tag(bed_tag, label.KEEPER_DIR, "starting"))


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


def describe_loss(directory: Path) -> str:
    """Return what to say where a directory's keeper is gone."""
    reason = explain_loss(directory)
    return "the host agent of this bed is gone" + (f" ({reason})" if reason else "")


def explain_loss(directory: Path) -> str:
    """Return why a directory's keeper is gone: killed for memory, by the counter of its cgroup; empty if it lives, or that is not known."""
    cgroup, count = plain_files.read_json(directory / label.KEEPER_LABEL).get("oom_kills") or ("", 0)
    is_gone = not label.live_label(directory, label.KEEPER_LABEL)
    return cgroups.explain_oom((cgroup, count), of=cgroup) if cgroup and is_gone else ""


def _start(workdir: Path, archive: Path, python: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
    read, write = os.pipe()
    oom_kills = cgroups.oom_kills()
    tag = {processes.TAG_VARIABLE: env[processes.TAG_VARIABLE]}
    try:
        launcher = subprocess.Popen(
            [python, str(archive), "keeper", *arguments, "--ready", str(write)],
            env={**env, **os.environ, **tag},
            pass_fds=[write],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        os.close(write)
        output, _ = launcher.communicate()
        ready = bool(wait_readable(read, READY_S) and os.read(read, 64))
    except BaseException:  # Ctrl-C: the start is not awaited any more, and nothing of it stays
        while left := processes.select(processes.scan(), tag[processes.TAG_VARIABLE].strip()):
            processes.kill(left)
            time.sleep(0.002)
        end_keeper(workdir / label.KEEPER_DIR)
        raise
    finally:
        os.close(read)
    if not ready:
        text = output.decode(errors="replace") + plain_files.tail_text(workdir / label.KEEPER_DIR / "keeper.log", 4000)
        reason = cgroups.explain_oom(oom_kills)
        head = f"the host agent did not start{': ' if reason else ''}{reason}"
        raise RuntimeError("\n".join([head, *text.splitlines()[-15:]]))


@contextmanager
def exclusive(directory: Path) -> Iterator[None]:
    """Hold a lock on the start of the keeper of a directory, which excludes other processes."""
    with (directory / "prepare.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
