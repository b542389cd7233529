"""The end of an Ansible that was told to stop: its workers lead sessions of their own and outlive the process group."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

#: How long it has to end by itself.
_GRACE_S = 2.0


def end(folder: str) -> None:
    """End what is left of the Ansible that works in ``folder``, which is in the command line of each of its processes."""
    for number, patience in ((signal.SIGTERM, _GRACE_S), (signal.SIGKILL, _GRACE_S)):
        until = time.monotonic() + patience
        left = processes(folder)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while left and time.monotonic() < until:
            time.sleep(0.05)
            left = processes(folder)
        if not left:
            return


def processes(folder: str) -> list[int]:
    """Those whose command line names ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if folder.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found
