"""Programs of the user inside a node (``ccbed exec``) and preflight checks: own process group, output into files."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...model.events.commands import CommandFailed, Exec, ExecDone
from .. import preflight_checks
from ..files.inbox import Respond, required
from ..oslayer import forks
from ..oslayer.event_loop import Loop


class ExecPrograms:
    """The programs that run now. They belong to no gang, so gang.stop does not end them."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[subprocess.Popen[bytes] | None, Respond]] = {}
        self._outs: dict[str, int] = {}

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self._running)

    def start(self, order: Exec, respond: Respond) -> None:
        """Run a program, or a check of ``preflight_checks`` in its place; respond with its exit code when it ends."""
        out = Path(order.out)
        out.mkdir(parents=True, exist_ok=True)
        if order.check is not None:
            self._running[self._fork_check(order.check, out)] = (None, respond)
            return
        argv = required(order.argv, "argv")
        try:
            process = _start_program(argv, order, out)
        except OSError as error:
            reason = f"{argv[0]}: cannot be run: {error.strerror}"
            respond("fail", CommandFailed(reason=reason, errno=error.errno))
            return
        self._running[process.pid] = (process, respond)
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
        """A child was reaped: respond if it was one of these programs; whether it was."""
        process, respond = self._running.pop(pid, (None, None))
        if respond is None:
            return False
        if process is not None:
            process.returncode = code
        respond("ok", ExecDone(code=code))
        return True


def _start_program(argv: Sequence[str], order: Exec, out: Path) -> subprocess.Popen[bytes]:
    with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            list(argv),
            env={**os.environ, **(order.env or {})},
            cwd=order.cwd,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            umask=0o077 if order.umask is None else order.umask,
        )
