"""Programs that a fault or its healing runs: started apart from their starter, waited for by the loop, never longer than allowed."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from typing import IO, Any

from ..oslayer import process_tag as marks
from ..oslayer.event_loop import Loop

#: Of what a program has said, so much is kept as evidence, in characters.
SAID = 500

#: (evidence, problem): the problem is empty where the program left with exit code 0.
Finished = Callable[[dict[str, Any], str], None]
Work = Callable[[Callable[[], None]], None]


def start(loop: Loop, argv: Sequence[str], limit_s: float, then: Finished) -> None:
    """Run a program in a session of its own and without our mark: what it starts for good is not ours to end."""
    said = tempfile.TemporaryFile()  # noqa: SIM115 it is closed when the program has ended
    environment = {name: value for name, value in os.environ.items() if name != marks.NAME}
    try:
        program = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True, env=environment
        )
    except OSError as error:
        said.close()
        then({_shown(argv): "cannot be run"}, f"{argv[0]}: {error.strerror or error}")
        return
    _await(loop, program, said, limit_s, then)


def _await(loop: Loop, program: subprocess.Popen[bytes], said: IO[bytes], limit_s: float, then: Finished) -> None:
    """Call when it has ended, or when its time is over and it was killed."""
    fd = os.pidfd_open(program.pid)
    late: list[bool] = []

    def overdue() -> None:
        late.append(True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)

    timer = loop.later(limit_s, overdue)

    def ended() -> None:
        timer.cancel()
        loop.forget(fd)
        os.close(fd)
        code = program.wait()
        text = _tail(said)
        argv = program.args if isinstance(program.args, list) else [str(program.args)]
        told = f"exit code {code}: {text}" if text else f"exit code {code}"
        then({_shown(argv): told}, _problem(str(argv[0]), code, text, limit_s if late else None))

    loop.watch(fd, ended)


def _shown(argv: Sequence[str]) -> str:
    """A command line for people."""
    return shlex.join([os.path.basename(argv[0]), *argv[1:]])


def _problem(name: str, code: int, said: str, limit_s: float | None) -> str:
    if limit_s is not None:
        return f"{name} did not end within {limit_s:g} s"
    return f"{name} left with exit code {code}: {said or 'it said nothing'}" if code else ""


def _tail(said: IO[bytes]) -> str:
    with said:
        size = said.seek(0, os.SEEK_END)
        said.seek(max(0, size - 4 * SAID))
        return said.read().decode(errors="replace").strip()[-SAID:]


class Line:
    """Works that wait for each other, by name: a healing never overtakes the injection that it undoes."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Work]] = {}

    def add(self, name: str, work: Work) -> None:
        """``work`` is handed what it must call when it is done."""
        if name in self._waiting:
            self._waiting[name].append(work)
            return
        self._waiting[name] = deque()
        try:
            work(lambda: self._next(name))
        except BaseException:
            self._next(name)
            raise

    def _next(self, name: str) -> None:
        if self._waiting[name]:
            self._waiting[name].popleft()(lambda: self._next(name))
        else:
            del self._waiting[name]
