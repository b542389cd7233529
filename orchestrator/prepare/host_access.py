"""Runs commands on a host that change nothing: over SSH with a checked host key, or on this machine."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Protocol

from ..model.bed import HostSpec
from ..model.frozen import dataclass

if TYPE_CHECKING:
    from ..providers.ssh import ssh_connection

#: The most bytes that are read of a command's output.
OUTPUT_BYTES = 1024 * 1024
READ_S = 5.0
_CONNECTIONS = 64


class UnreachableError(Exception):
    """The host cannot be reached; the message has cause and fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandOutput:
    code: int
    stdout: str
    stderr: str


class HostAccess(Protocol):
    def run(self, argv: list[str], text: str, limit_s: float) -> CommandOutput:
        """Run ``argv`` on the host, with ``text`` as its standard input. Raises UnreachableError."""
        ...


@contextlib.contextmanager
def connect_host(host: HostSpec) -> Iterator[HostAccess]:
    """Raises UnreachableError."""
    if host.connection == "local":
        yield _Local()
        return
    connection = _connect(host)
    try:
        yield _Ssh(connection)
    finally:
        connection.close()


def read(hosts: Sequence[HostSpec], path: str) -> tuple[dict[str, str], dict[str, str]]:
    """(unreachable hosts with the reason; the text of a file on the others, empty if it cannot be read).

    Reports unreachable hosts sooner than Ansible does, and with a fix.
    """

    def read_host(host: HostSpec) -> tuple[str, str]:
        try:
            with connect_host(host) as access:
                return "", access.run(["cat", path], "", READ_S).stdout
        except UnreachableError as error:
            return str(error), ""

    with ThreadPoolExecutor(max_workers=min(len(hosts), _CONNECTIONS)) as pool:
        results = {host.name: result for host, result in zip(hosts, pool.map(read_host, hosts), strict=True)}
    return {name: reason for name, (reason, _) in results.items() if reason}, {
        name: text for name, (_, text) in results.items()
    }


class _Local:
    def run(self, argv: list[str], text: str, limit_s: float) -> CommandOutput:
        try:
            done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=limit_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnreachableError(str(error)) from None
        return CommandOutput(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


class _Ssh:
    def __init__(self, connection: ssh_connection.Connection) -> None:
        self._connection = connection

    def run(self, argv: list[str], text: str, limit_s: float) -> CommandOutput:
        from ..providers.ssh.connection_errors import HostError

        try:
            done = self._connection.run(argv, text.encode(), limit_s)
        except HostError as error:
            raise UnreachableError(str(error)) from None
        stdout, stderr = (stream[:OUTPUT_BYTES].decode(errors="replace") for stream in (done.out, done.err))
        return CommandOutput(code=done.code, stdout=stdout, stderr=stderr)


def _connect(host: HostSpec) -> ssh_connection.Connection:
    """Raises UnreachableError."""
    from ..providers.ssh import ssh_connection
    from ..providers.ssh.connection_errors import HostError

    try:
        return ssh_connection.connect(host)
    except HostError as error:
        raise UnreachableError(str(error)) from None
