"""Programs of the user inside a node (``ccbed exec``) and preflight checks: own process group, output into files."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.events import Exec, ExecDone
from .. import preflight_checks
from ..files.inbox import Answer
from ..oslayer import forks
from ..oslayer.event_loop import Loop


class ExecPrograms:
    """The programs that run now. They belong to no gang, so gang.stop does not end them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[subprocess.Popen[bytes] | None, Answer]] = {}
        self._outs: dict[str, int] = {}

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self._running)

    def start(self, order: Exec, answer: Answer) -> None:
        """Run a program, write its output to files in ``out``, answer when it ends; or run an operation of ``preflight_checks``."""
        out = Path(order.out)
        out.mkdir(parents=True, exist_ok=True)
        if order.check is not None:
            self._running[self._fork_check(order.check, out)] = (None, answer)
            return
        try:
            process = _start_program(order, out)
        except OSError as error:
            reason = f"{(order.argv or ('',))[0]}: cannot be run: {error.strerror}"
            answer("fail", {"reason": reason, "errno": error.errno})
            return
        self._running[process.pid] = (process, answer)
        self._outs[str(out)] = process.pid

    def _fork_check(self, check: Mapping[str, Any], out: Path) -> int:
        """Run a check (``{op, args}``) in a fork of this process, so that no interpreter has to start; its pid."""

        def body() -> int:
            os.setsid()
            for name, fd in (("stdout", 1), ("stderr", 2)):
                file = os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(file, fd)
                os.close(file)
            return preflight_checks.main(str(check["op"]), check["args"])

        return forks.fork(self._loop, (), body)

    def stop(self, out: str) -> None:
        """Kill the program that writes into ``out``, with its process group, if it still runs."""
        pid = self._outs.pop(out, None)
        if pid in self._running:
            os.killpg(pid, signal.SIGKILL)

    def exited(self, pid: int, code: int) -> bool:
        """A child was reaped: answer if it was one of these programs; whether it was."""
        process, answer = self._running.pop(pid, (None, None))
        if answer is None:
            return False
        if process is not None:
            process.returncode = code
        answer("ok", codec.plain(ExecDone(code=code)))
        return True


def _start_program(order: Exec, out: Path) -> subprocess.Popen[bytes]:
    with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            list(order.argv or ()),
            env={**os.environ, **(order.env or {})},
            cwd=order.cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            umask=0o077 if order.umask is None else order.umask,
        )
