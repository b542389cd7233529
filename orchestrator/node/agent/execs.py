"""Programs run inside a node on the user's behalf (`ccbed exec`), and checks of preflight: own group, output into files."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .. import preflight_checks
from ..oslayer import forks
from ..oslayer.event_loop import Loop

Answer = Callable[[str, Mapping[str, Any]], None]


class Execs:
    """The programs that run now. They are no part of a gang: gang.stop leaves them alone."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[int, tuple[subprocess.Popen[bytes] | None, Answer]] = {}
        self._outs: dict[str, int] = {}

    @property
    def groups(self) -> tuple[int, ...]:
        return tuple(self._running)

    def start(self, value: Mapping[str, Any], answer: Answer) -> None:
        """{argv, env, out, cwd, umask}: stdout and stderr go to files in ``out``; answers {code} when the program ends.

        {check: {op, args}, out}: an operation of ``checks`` instead of a program.
        """
        out = Path(value["out"])
        out.mkdir(parents=True, exist_ok=True)
        if "check" in value:
            self._running[self._check(value["check"], out)] = (None, answer)
            return
        try:
            process = _started(value, out)
        except OSError as error:
            reason = f"{value['argv'][0]}: cannot be run: {error.strerror}"
            answer("fail", {"reason": reason, "errno": error.errno})
            return
        self._running[process.pid] = (process, answer)
        self._outs[str(out)] = process.pid

    def _check(self, asked: Mapping[str, Any], out: Path) -> int:
        """A check (``{op, args}``) by a fork of this process: no interpreter has to start for it. Its pid."""

        def body() -> int:
            os.setsid()
            for name, fd in (("stdout", 1), ("stderr", 2)):
                file = os.open(out / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                os.dup2(file, fd)
                os.close(file)
            return preflight_checks.main(str(asked["op"]), asked["args"])

        return forks.fork(self._loop, (), body)

    def stop(self, out: str) -> None:
        """Kill what writes into ``out``, with all of its process group, if it still runs."""
        pid = self._outs.pop(out, None)
        if pid in self._running:
            os.killpg(pid, signal.SIGKILL)

    def exited(self, pid: int, code: int) -> bool:
        """A child was reaped: answer if it was one of these."""
        process, answer = self._running.pop(pid, (None, None))
        if answer is None:
            return False
        if process is not None:
            process.returncode = code
        answer("ok", {"code": code})
        return True


def _started(value: Mapping[str, Any], out: Path) -> subprocess.Popen[bytes]:
    with (out / "stdout").open("wb") as stdout, (out / "stderr").open("wb") as stderr:
        return subprocess.Popen(
            list(value["argv"]),
            env={**os.environ, **value.get("env", {})},
            cwd=value.get("cwd"),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            umask=int(value.get("umask", 0o077)),
        )
