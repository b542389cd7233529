"""The program that stands for a way to a host, as ssh's ProxyCommand is: a socket whose other end it reads and writes."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import tempfile

#: How long a program that is told to end may take.
END_S = 1.0
#: How long one whose output has ended may take to end itself.
LAST_WORDS_S = 0.5


class ProxyError(OSError):
    """The program has ended; the text is what it said."""


class Proxy:
    """Runs until ``close``, or until its socket is closed. In a session of its own: Ctrl-C is not for it."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.sock, theirs = socket.socketpair()
        with theirs:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 (closed by close)
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._said,
                start_new_session=True,
            )

    def error(self) -> ProxyError | None:
        """Why it has ended; None where it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(LAST_WORDS_S)
            self._said.seek(0)
            lines = self._said.read(4096).decode(errors="replace").strip().splitlines()
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
        self._said.close()
