"""Starts the helper on a host: one command, which copies the agent's archive there if the host lacks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ...model.frozen import dataclass
from ...model.requirements import HOST_PYTHON, version_text
from .. import archive
from . import connection_errors
from .host_requests import Channel, PushedChannel
from .ssh_connection import Connection

#: Runs on any Python, so that it can report one that is too old. It prints frame headers.
#: It unpacks the archive, so that modules are compiled once: from an archive they are compiled at every start.
#: If a keeper of the same archive lives, its fork server (``hostlink/fork_server.py``) provides a helper without any import.
BOOT = """
import os, sys
def say(**value):
    import json
    sys.stdout.write(json.dumps(value) + "\\n"); sys.stdout.flush()
directory, digest, size, oldest = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if sys.version_info < tuple(map(int, oldest.split("."))):
    say(old="%d.%d" % sys.version_info[:2]); sys.exit(0)
def helped():
    import _socket
    bed, roots = os.path.dirname(directory), [sys.argv[i + 1] for i, one in enumerate(sys.argv) if one == "--root"]
    door = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    door.settimeout(0.5)
    door.connect(os.path.join(bed, "keeper", "door"))
    streams = b"".join(fd.to_bytes(4, sys.byteorder) for fd in (0, 1, 2))
    asked = os.fsencode("\\0".join([digest, bed] + roots))
    door.sendmsg([asked], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)])
    try:
        welcome = door.recv(1)
    except OSError:
        door.shutdown(_socket.SHUT_RD)
        welcome = door.recv(1)
    return door if welcome else None
try:
    door = helped()
except (OSError, ImportError):
    door = None
if door:
    door.settimeout(None)
    try: door.recv(1)
    except OSError: pass
    sys.exit(0)
path = os.path.join(directory, "agent-" + digest + ".pyz")
try:
    os.umask(0o077)
    os.makedirs(directory, exist_ok=True)
    if not os.path.exists(path):
        say(wanted=size)
        data = b""
        while len(data) < size:
            part = os.read(0, size - len(data))
            if not part: sys.exit(1)
            data += part
        own = path + "." + str(os.getpid())
        try:
            with open(own, "wb") as file: file.write(data)
            os.replace(own, path)
        except OSError:
            if os.path.exists(own): os.unlink(own)
            raise
except OSError as error:
    say(refused=error.strerror or str(error)); sys.exit(0)
library, own = path[:-4], path[:-4] + "." + str(os.getpid())
try:
    if not os.path.isdir(library):
        import zipfile
        zipfile.ZipFile(path).extractall(own)
        os.rename(own, library)
except OSError:
    import shutil
    shutil.rmtree(own, ignore_errors=True)
    library = path
sys.path.insert(0, library)
from orchestrator.node.__main__ import main
sys.exit(main(sys.argv[5:]))
"""
_BLOCK = 1 << 16
#: The exit code of a shell for a missing program.
NOT_FOUND = 127


class Streams(Channel, Protocol):
    """A paramiko channel with its exit status and its stderr."""

    def recv_exit_status(self) -> int: ...

    def recv_stderr(self, size: int, /) -> bytes: ...

    def settimeout(self, timeout: float | None, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Started:
    """A helper that is ready. ``rest``: the bytes that came after its hello."""

    channel: Channel | PushedChannel
    hello: Mapping[str, Any]
    rest: bytes


def command(python: str, hostdir: str, bed: str, roots: Sequence[str], content: bytes) -> list[str]:
    """The argv that starts the helper on a host."""
    oldest = version_text(HOST_PYTHON)
    own = [f"{hostdir}/agent", archive.agent_hash(), str(len(content)), oldest]
    extra = [part for root in roots for part in ("--root", root)]
    return [python, "-I", "-S", "-c", BOOT, *own, "follow", "--hostdir", hostdir, "--bed", bed, *extra]


def start(connection: Connection, hostdir: str, bed: str, roots: Sequence[str], deadline_s: float) -> Started:
    """Start the helper and wait for its hello. Raises HostError."""
    host, content = connection.host, archive.build()
    channel: Streams = connection.start(command(host.python, hostdir, bed, roots, content), deadline_s)
    channel.settimeout(deadline_s)
    data = b""
    while True:
        message, data = _next_message(connection, channel, data, deadline_s)
        if "hello" in message:
            channel.settimeout(None)
            return Started(channel=channel, hello=message["hello"], rest=data)
        if "old" in message:
            raise connection_errors.python_old(host, str(message["old"]))
        if "refused" in message:
            raise connection_errors.directory_refused(host, f"{hostdir}/agent", str(message["refused"]))
        if "wanted" in message:
            channel.sendall(content)


def _next_message(
    connection: Connection, channel: Streams, data: bytes, deadline_s: float
) -> tuple[dict[str, Any], bytes]:
    """(next message of the helper, the bytes after it). Output of a login shell before it is skipped."""
    while True:
        line, newline, rest = data.partition(b"\n")
        if newline:
            data = rest
            if line.startswith(b"{"):
                return dict(json.loads(line)), data
            continue
        try:
            part = channel.recv(_BLOCK)
        except TimeoutError as error:
            raise connection_errors.explain(connection.destination, error, deadline_s) from error
        if not part:
            raise _ended_error(connection, channel)
        data += part


def _ended_error(connection: Connection, channel: Streams) -> connection_errors.HostError:
    if not connection.alive:
        return connection_errors.HostError(f"the connection to {connection.destination.login} was lost")
    code = channel.recv_exit_status()
    if code == NOT_FOUND:
        return connection_errors.python_missing(connection.host)
    output = channel.recv_stderr(4096).decode(errors="replace").strip()[-400:]
    text = f"the helper there did not start: {output or 'it printed nothing'}"
    return connection_errors.HostError(text, reached=True)
