"""Forks from a warm process: with one thread only, with no descriptor of the parent, without a return to its code."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

from . import processes
from .event_loop import Loop

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
#: The exit code of a fork that failed before its body ran.
FORK_FAILED = 70


def fork(loop: Loop, keep: Collection[int], body: Callable[[], int]) -> int:
    """Fork a child that runs ``body`` and exits with its result; its pid. ``keep``: descriptors it needs besides 0 to 2.

    Raises RuntimeError if this process has more than one thread: a lock that another thread holds would stay locked.
    """
    count = processes.count_threads()
    if count != 1:
        raise RuntimeError(f"cannot fork: this process has {count} threads")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = FORK_FAILED
    try:
        loop.close_in_child()
        _close_others(keep)
        code = body()
    except SystemExit as request:
        code = _exit_code(request)
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        code = 1
    finally:
        _flush()
        os._exit(code)


def become_subreaper() -> None:
    """Make this process the parent of its orphaned descendants, in place of init."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """End this process when ``parent`` ends, also if it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(FORK_FAILED)


def redirect_output(log: Path) -> None:
    """Read stdin from /dev/null; append stdout and stderr to a file, line-buffered."""
    log.parent.mkdir(parents=True, exist_ok=True)
    devnull = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((devnull, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    for fd in (devnull, file):
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _close_others(keep: Collection[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in keep:
            with contextlib.suppress(OSError):
                os.close(fd)


def _exit_code(request: SystemExit) -> int:
    if request.code is None or isinstance(request.code, int):
        return request.code or 0
    print(request.code, file=sys.stderr)
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
