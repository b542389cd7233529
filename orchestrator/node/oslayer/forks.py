"""Forking from a warm process: one thread only, nothing of the parent's left open, never a return into its code."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Collection
from pathlib import Path

from ...model.gang import GangSpec
from . import processes
from .event_loop import Loop

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
LAST_PORT = 65535
#: The exit code of a fork that failed before its own code took over.
BROKEN = 70


def fork(loop: Loop, keep: Collection[int], body: Callable[[], int]) -> int:
    """Fork a child that runs ``body`` and leaves with its result; its pid. ``keep``: descriptors it needs besides 0 to 2.

    Raises RuntimeError where this process has more than one thread: a lock held by another would stay locked.
    """
    count = processes.threads()
    if count != 1:
        raise RuntimeError(f"will not fork with {count} threads")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = BROKEN
    try:
        loop.leave()
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


def subreaper() -> None:
    """Orphans below this process become its children instead of init's."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """End this process when ``parent`` ends, also where it has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(BROKEN)


def redirect(log: Path) -> None:
    """stdin from nowhere; stdout and stderr, line by line, to the end of a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    nowhere = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((nowhere, 0), (file, 1), (file, 2)):
        os.dup2(source, target)
    for fd in (nowhere, file):
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def rank_body(
    gang: GangSpec, rank: int, parent: int, *, events_path: str, release_fd: int, node: str, incarnation: str
) -> int:
    """What a forked rank does: cut loose, write to its own log, load the payload, become the rank."""
    os.setpgid(0, 0)
    die_with(parent)
    redirect(Path(gang.out) / f"rank-{rank}.log")
    os.umask(gang.umask)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    _load_from(gang.payload)
    main = importlib.import_module("orchestrator.rank.runtime.main")
    return int(
        main.main(
            gang,
            rank,
            events_path=events_path,
            release_fd=release_fd,
            node=node,
            incarnation=incarnation,
        )
        or 0
    )


def store_body(address: str, port: int, retries: int, parent: int, report_fd: int) -> int:
    """What the epoch's store process does: host the TCPStore, report its port, wait for its end."""
    os.setpgid(0, 0)
    die_with(parent)
    distributed = importlib.import_module("torch.distributed")
    taken: list[int] = []
    while True:
        try:
            store = distributed.TCPStore(address, port, None, True, wait_for_workers=False)
            break
        except RuntimeError as error:
            busy = "EADDRINUSE" in str(error)
            taken += [port] if busy else []
            if not busy or len(taken) > retries or port >= LAST_PORT:
                reason = f"ports {taken[0]} to {port} of {address} are taken" if busy else str(error)
                _report(report_fd, {"reason": reason, "retries": taken})
                return 1
            port += 1
    _report(report_fd, {"port": store.port, "retries": taken})
    while True:
        signal.pause()


def _report(fd: int, content: dict[str, object]) -> None:
    os.write(fd, json.dumps(content).encode())
    os.close(fd)


def _load_from(payload: str) -> None:
    """Let the packages of the payload be found before those of the archive, and its ``user`` directory on sys.path."""
    package = sys.modules["orchestrator"]
    package.__path__.insert(0, os.path.join(payload, "orchestrator"))
    sys.path.insert(0, payload)


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
