"""Finds a lab's processes by the mark in their environment, enters their namespaces, and ends them by pid."""

from __future__ import annotations

import os
import select
import signal
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from . import layout

_CLEAN = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C"}


def marked(lab: layout.Lab) -> Iterator[tuple[int, str]]:
    """(pid, what) of every process of this lab that this machine sees: ``what`` is a host's name or the switch."""
    wanted = f"{layout.MARK}={lab.root}:".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        what = _what(int(entry), wanted)
        if what:
            yield int(entry), what


def _what(pid: int, wanted: bytes) -> str:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return ""
    for variable in environment.split(b"\0"):
        if variable.startswith(wanted):
            return variable.removeprefix(wanted).decode()
    return ""


def first(lab: layout.Lab) -> dict[str, int]:
    """The pid of the first process of each host that has power, and of the switch's."""
    return {what: pid for pid, what in marked(lab) if what == layout.SWITCH or _is_init(pid)}


def _is_init(pid: int) -> bool:
    """It is number 1 where it lives."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    numbers = next((line.split()[1:] for line in lines if line.startswith("NSpid:")), [])
    return len(numbers) > 1 and numbers[-1] == "1"


def environment(lab: layout.Lab, what: str) -> dict[str, str]:
    return {**_CLEAN, layout.MARK: lab.mark(what)}


def end(lab: layout.Lab, pids: Sequence[int], timeout: float = 60.0) -> None:
    """SIGKILL, and wait until they are gone. With a namespace's first process all others of it die. Raises OSError."""
    wanted = f"{layout.MARK}={lab.root}:".encode()
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _what(pid, wanted):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
                if not select.select([descriptor], [], [], timeout)[0]:
                    raise TimeoutError(f"process {pid} is still there {timeout} s after SIGKILL")
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def inside(pid: int, argv: Sequence[str], *, net_only: bool = False, stdin: str = "", timeout: float = 60) -> str:
    """What a command says that is run in the namespaces of a process. Raises RuntimeError with what it said instead."""
    spaces = ["--net"] if net_only else ["--mount", "--uts", "--ipc", "--net", "--pid"]
    return run(["nsenter", "-t", str(pid), *spaces, "--", *argv], stdin=stdin, timeout=timeout)


def run(argv: Sequence[str], *, stdin: str = "", timeout: float = 60) -> str:
    done = subprocess.run(
        argv, capture_output=True, text=True, input=stdin, timeout=timeout, check=False, env=_CLEAN, cwd="/"
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise RuntimeError(f"{' '.join(argv)}: {output}")
    return done.stdout
