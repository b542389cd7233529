"""Takes the stacks of ranks: from outside by py-spy, where it is installed, else by the signal that a rank has set aside for this.

A rank gets no other signal. ``rank/watcher/holds/stack_signal.py`` describes the file in memory that a rank with such a signal keeps open.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from ...model.frozen import dataclass
from ..oslayer import processes
from ..oslayer.event_loop import Loop

#: How long a handler and py-spy may take, and the pause between two checks. A handler has finished when no byte was added in a pause.
HANDLER_S, PY_SPY_S, PAUSE_S = 1.0, 5.0, 0.04
LARGEST = 1 << 18
_FILE = re.compile(r"/memfd:ccbed-stacks-(\d+) ")


class NoStack(Exception):
    """The stacks of a rank cannot be taken; the message is the reason."""


@dataclass(slots=True, kw_only=True)
class Request:
    """``output``: where the stacks appear, from byte ``start`` on; ``problem``: why there are none."""

    output: IO[bytes] | None = None
    start: int = 0
    size: int = 0
    py_spy: subprocess.Popen[bytes] | None = None
    problem: str = ""

    def is_running(self, after_s: float) -> bool:
        """May more follow, so long after the request?"""
        if self.output is None or after_s > (PY_SPY_S if self.py_spy else HANDLER_S):
            return False
        if self.py_spy:
            return self.py_spy.poll() is None
        before, self.size = self.size, os.stat(self.output.fileno()).st_size
        return self.size == self.start or self.size != before

    def read(self) -> str:
        """The stacks, as far as they are written; ends the request."""
        if self.py_spy:
            self.py_spy.kill()
            self.py_spy.wait()
        if self.output is None:
            return ""
        with self.output:
            self.output.seek(self.start)
            text = self.output.read(LARGEST).decode(errors="replace")
        self.problem = "" if text else f"{'py-spy' if self.py_spy else 'its handler'} wrote none in time"
        return text


def take(loop: Loop, pids: Mapping[int, int], respond: Callable[[Mapping[int, Request]], None]) -> None:
    """Ask the ranks for their stacks, and respond with the requests once they can be read. ``pids``: by rank."""
    requests = {rank: _request(pid) for rank, pid in pids.items()}
    began = time.monotonic()

    def finish() -> None:
        after_s = time.monotonic() - began
        are_running = [request.is_running(after_s) for request in requests.values()]
        if any(are_running):
            loop.call_later(PAUSE_S, finish)
        else:
            respond(requests)

    finish()


def dump(loop: Loop, ranks: Mapping[int, tuple[int, Path]], respond: Callable[[dict[int, str]], None]) -> None:
    """Append the stacks of ranks to their logs, or why there are none. ``ranks``: rank -> pid and log; ``respond``: with the stacks."""

    def write(requests: Mapping[int, Request]) -> None:
        texts = {rank: request.read() for rank, request in requests.items()}
        for rank, text in texts.items():
            with suppress(OSError), ranks[rank][1].open("a") as log:
                log.write(text or f"no stack: {requests[rank].problem}\n")
        respond(texts)

    take(loop, {rank: pid for rank, (pid, _) in ranks.items()}, write)


def _request(pid: int) -> Request:
    try:
        return _ask_py_spy(program, pid) if (program := shutil.which("py-spy")) else _ask_handler(pid)
    except (OSError, NoStack) as error:
        return Request(problem=str(error))


def _ask_py_spy(program: str, pid: int) -> Request:
    output = tempfile.TemporaryFile()  # noqa: SIM115 Request.read closes it
    argv = [program, "dump", "--nonblocking", "--pid", str(pid)]
    return Request(output=output, py_spy=subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output))


def _ask_handler(pid: int) -> Request:
    """Check that the signal is still the one that the rank has set aside, and that it is delivered at once; then send it."""
    process = processes.find(pid)
    if process is None or process.state in processes.EXITED:
        raise NoStack("it has ended")
    if process.state in ("T", "t"):
        raise NoStack("it is stopped")
    number, path = _find_handler(pid)
    status = Path(f"/proc/{pid}/status").read_text()
    blocked, ignored, caught = (_has(status, mask, number) for mask in ("SigBlk", "SigIgn", "SigCgt"))
    if blocked or ignored or not caught:
        raise NoStack(f"it {'blocks' if blocked else 'does not handle'} signal {number}")
    output = path.open("rb")
    start = output.seek(0, os.SEEK_END)
    processes.send_signal([process], number)
    return Request(output=output, start=start)


def _find_handler(pid: int) -> tuple[int, Path]:
    """The number of the signal that a process has set aside for its stacks, and the file into which they are written."""
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            if match := _FILE.match(os.readlink(path)):
                return int(match[1]), path
    raise NoStack("py-spy is not installed, and the rank has set no signal aside for its stacks")


def _has(status: str, mask: str, number: int) -> bool:
    value = re.search(rf"^{mask}:\s*(\w+)", status, re.MULTILINE)
    return bool(value and int(value[1], 16) >> (number - 1) & 1)
