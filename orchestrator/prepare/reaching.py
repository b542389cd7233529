"""A command on a host: over one SSH connection with its host key checked, or on this machine. For looking only."""

from __future__ import annotations

import contextlib
import shlex
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..model.bed import HostSpec

CONNECT_S = 8.0
#: What a host says is cut off here.
LARGEST = 1024 * 1024


class UnreachableError(Exception):
    """The host is not reached; in SSH's words, which core/advice.py knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a command."""

    code: int
    output: str
    errors: str


class Reach(Protocol):
    """A way to a host."""

    def run(self, argv: list[str], text: str, limit_s: float) -> Answer:
        """``argv`` there, with ``text`` as its standard input. Raises UnreachableError when the way breaks."""
        ...


@contextlib.contextmanager
def reach(host: HostSpec) -> Iterator[Reach]:
    """Raises UnreachableError."""
    if host.connection == "local":
        yield _Local()
        return
    client = _connect(host)
    try:
        yield _Ssh(client)
    finally:
        client.close()


class _Local:
    def run(self, argv: list[str], text: str, limit_s: float) -> Answer:
        try:
            done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=limit_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnreachableError(str(error)) from None
        return Answer(code=done.returncode, output=done.stdout, errors=done.stderr)


class _Ssh:
    def __init__(self, client: Any) -> None:
        self._client = client

    def run(self, argv: list[str], text: str, limit_s: float) -> Answer:
        import paramiko

        try:
            stdin, stdout, stderr = self._client.exec_command(shlex.join(argv), timeout=limit_s)
            stdin.write(text)
            stdin.channel.shutdown_write()
            output, errors = stdout.read(LARGEST), stderr.read(LARGEST)
            code = stdout.channel.recv_exit_status()
        except TimeoutError:
            raise UnreachableError(f"no answer within {limit_s:.0f} s: timed out") from None
        except (OSError, paramiko.SSHException) as error:
            raise UnreachableError(f"Connection closed: {error}") from None
        return Answer(code=code, output=output.decode(errors="replace"), errors=errors.decode(errors="replace"))


def _connect(host: HostSpec) -> Any:
    """Raises UnreachableError."""
    import paramiko

    client = paramiko.SSHClient()
    _host_keys(client, host)
    try:
        client.connect(
            host.address,
            port=host.port,
            username=host.user or None,
            key_filename=host.key,
            allow_agent=host.key is None,
            look_for_keys=host.key is None,
            timeout=CONNECT_S,
            banner_timeout=CONNECT_S,
            auth_timeout=CONNECT_S,
        )
    except paramiko.BadHostKeyException:
        client.close()
        raise UnreachableError("REMOTE HOST IDENTIFICATION HAS CHANGED") from None
    except (OSError, paramiko.SSHException, ValueError) as error:
        client.close()
        raise UnreachableError(_words(error, host)) from None
    return client


def _host_keys(client: Any, host: HostSpec) -> None:
    """The user's known hosts, or those that the inventory names; a new one only where first contact is allowed."""
    import paramiko

    with contextlib.suppress(OSError):
        client.load_system_host_keys("/etc/ssh/ssh_known_hosts")
    own = Path(host.known_hosts or "~/.ssh/known_hosts").expanduser()
    with contextlib.suppress(OSError):
        client.load_system_host_keys(str(own))
    client.set_missing_host_key_policy(paramiko.AutoAddPolicy() if host.first_contact else paramiko.RejectPolicy())


def _words(error: Exception, host: HostSpec) -> str:
    if isinstance(error, FileNotFoundError) and host.key:
        return f"no such identity: {host.key}"
    if isinstance(error, TimeoutError | socket.timeout):
        return "timed out"
    reasons = getattr(error, "errors", None)
    if isinstance(reasons, dict) and reasons:
        error = next(iter(reasons.values()))
    return str(error) or type(error).__name__
