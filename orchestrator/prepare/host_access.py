"""A command on a host: over one SSH connection with its host key checked, or on this machine. For looking only."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ..model.bed import HostSpec

if TYPE_CHECKING:
    from ..providers.ssh import ssh_connection

#: What a host says is cut off here.
LARGEST = 1024 * 1024
READ_S = 5.0
_MOST = 64


class UnreachableError(Exception):
    """The host is not reached; one sentence, with what to do about it."""


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
    connection = _connect(host)
    try:
        yield _Ssh(connection)
    finally:
        connection.close()


def read(hosts: Sequence[HostSpec], path: str) -> tuple[dict[str, str], dict[str, str]]:
    """(hosts that are not reached, and why; the text of a file on the others, empty where there is none to be read).

    In the words of whoever works with them afterwards, and sooner than Ansible.
    """

    def one(host: HostSpec) -> tuple[str, str]:
        try:
            with reach(host) as way:
                return "", way.run(["cat", path], "", READ_S).output
        except UnreachableError as error:
            return str(error), ""

    with ThreadPoolExecutor(max_workers=min(len(hosts), _MOST)) as pool:
        results = {host.name: result for host, result in zip(hosts, pool.map(one, hosts), strict=True)}
    return {name: reason for name, (reason, _) in results.items() if reason}, {
        name: text for name, (_, text) in results.items()
    }


class _Local:
    def run(self, argv: list[str], text: str, limit_s: float) -> Answer:
        try:
            done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=limit_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise UnreachableError(str(error)) from None
        return Answer(code=done.returncode, output=done.stdout, errors=done.stderr)


class _Ssh:
    def __init__(self, connection: ssh_connection.Connection) -> None:
        self._connection = connection

    def run(self, argv: list[str], text: str, limit_s: float) -> Answer:
        from ..providers.ssh.connection_errors import HostError

        try:
            done = self._connection.run(argv, text.encode(), limit_s)
        except HostError as error:
            raise UnreachableError(str(error)) from None
        output, errors = (stream[:LARGEST].decode(errors="replace") for stream in (done.out, done.err))
        return Answer(code=done.code, output=output, errors=errors)


def _connect(host: HostSpec) -> ssh_connection.Connection:
    """Raises UnreachableError."""
    from ..providers.ssh import ssh_connection
    from ..providers.ssh.connection_errors import HostError

    try:
        return ssh_connection.connect(host)
    except HostError as error:
        raise UnreachableError(str(error)) from None
