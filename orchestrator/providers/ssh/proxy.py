"""A proxy program, as ssh's ProxyCommand: it reads and writes the other end of a socket."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile

#: How long a program may take to end after SIGTERM.
END_S = 1.0
#: How long a program may take to end after its output has ended.
LAST_WORDS_S = 0.5


class ProxyError(OSError):
    """The program has ended; the text is its last output."""


class Proxy:
    """Runs until ``close``, or until its socket is closed. It has a session of its own, so Ctrl-C does not reach it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.sock, program_end = socket.socketpair()
        with program_end:
            self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=program_end.fileno(),
                stdout=program_end.fileno(),
                stderr=self._stderr,
                start_new_session=True,
            )

    def error(self) -> ProxyError | None:
        """Why the program has ended; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(LAST_WORDS_S)
            self._stderr.seek(0)
            lines = self._stderr.read(4096).decode(errors="replace").strip().splitlines()
            return ProxyError("; ".join(line.strip() for line in lines[-3:]) or f"it ended with code {code}")
        return None

    def close(self) -> None:
        self.sock.close()
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stderr.close()
