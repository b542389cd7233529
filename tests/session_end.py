"""Pytest plugin: Ctrl-C, SIGTERM and a lost terminal end a run in order, and nothing that a process of pytest started outlives it."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from . import reaper, undo

#: For all programs that tests start: whatever the shell ignores or blocks, as for jobs in its background. Python ignores two
#: itself, and with SIGHUP ignored (nohup), the run and its programs shall outlive their terminal.
_KEPT = {signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ, signal.SIGKILL, signal.SIGSTOP}
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_WORKER_S = 120.0


def reset_signals() -> None:
    for number in signal.valid_signals() - _KEPT:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])


class SessionEnd:
    """``directory``: of what this process of pytest has to undo. The controller of xdist knows its workers."""

    def __init__(self, session: pytest.Session) -> None:
        self._session = session
        self._is_worker = hasattr(session.config, "workerinput")
        self._is_interrupted = False
        self._workers: list[Any] = []
        self._basetemp = Path(session.config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
        self.directory = self._basetemp / f"process-{os.getpid()}"

    def begin(self) -> None:
        self.directory.mkdir()
        for number in _ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, self._interrupt)
        if self._is_worker:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        os.environ.pop(undo.VARIABLE, None)
        self._start_reaper()
        os.environ[undo.VARIABLE] = str(self.directory)

    def _start_reaper(self) -> None:
        lock, pidfd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY), os.pidfd_open(os.getpid())
        fcntl.flock(lock, fcntl.LOCK_EX)
        argv = [sys.executable, "-IS", reaper.__file__, f"{pidfd}", f"{lock}", str(self.directory)]
        with open(os.devnull, "r+b") as null:
            subprocess.run(argv, pass_fds=(lock, pidfd), stdin=null, stdout=null, stderr=null, check=True)
        os.close(lock)
        os.close(pidfd)

    def _interrupt(self, number: int, _frame: FrameType | None) -> None:
        """Stop also where a test catches it. A worker is told twice, by the terminal and by its controller."""
        self._session.shouldstop = f"interrupted by {signal.Signals(number).name}"
        if self._is_interrupted and (self._is_worker or number != signal.SIGINT):
            return
        self._is_interrupted = True
        raise KeyboardInterrupt

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        self._workers.append(node)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """The worker that replaces a dead one begins when nothing of that is left."""
        if error not in (None, "keyboard-interrupt"):
            self._await_reapers(f"popen-{node.gateway.id}")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """xdist kills workers after ten seconds, and some need longer to take down what they brought up."""
        working = [worker for worker in self._workers if not worker.channel.isclosed()]
        for worker in working if self._is_interrupted else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.gateway._rinfo().pid, signal.SIGTERM)
        for worker in working:
            with contextlib.suppress(EOFError, worker.channel.RemoteError, worker.channel.TimeoutError):
                worker.channel.waitclose(_WORKER_S)

    def pytest_unconfigure(self) -> None:
        self._await_reapers("popen-*")
        reaper.clean(self.directory)

    def _await_reapers(self, workers: str) -> None:
        for directory in self._basetemp.glob(f"{workers}/process-*"):
            reaper.wait(directory)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    plugin = SessionEnd(session)
    plugin.begin()
    session.config.pluginmanager.register(plugin)


reset_signals()
