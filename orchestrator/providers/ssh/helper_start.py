"""The helper's start on a host: one command that brings the agent's archive along where the host lacks it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...model.requirements import HOST_PYTHON, version_text
from .. import archive
from . import connection_errors
from .requests import Channel
from .ssh_connection import Connection

#: Runs on whatever Python there is, so that one that is too old can be named. What it prints is a header, as any frame.
#: Unpacked, what it imports is compiled once: from an archive it would be every time, which is most of a start.
#: Where a keeper of the same archive lives, its door (see ``agent.door``) gives a helper at once; nothing is imported then.
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
#: What a shell answers for a program that is not there.
NOT_FOUND = 127


class Streams(Channel, Protocol):
    """What is needed of a paramiko channel beyond its bytes."""

    def recv_exit_status(self) -> int: ...

    def recv_stderr(self, size: int, /) -> bytes: ...

    def settimeout(self, timeout: float | None, /) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Started:
    """A helper that serves. ``rest``: what it has said after its hello."""

    channel: Channel
    hello: Mapping[str, Any]
    rest: bytes


def command(python: str, hostdir: str, bed: str, roots: Sequence[str], content: bytes) -> list[str]:
    """The argv that starts the helper on a host."""
    oldest = version_text(HOST_PYTHON)
    own = [f"{hostdir}/agent", archive.digest(content), str(len(content)), oldest]
    extra = [part for root in roots for part in ("--root", root)]
    return [python, "-I", "-S", "-c", BOOT, *own, "follow", "--hostdir", hostdir, "--bed", bed, *extra]


def start(connection: Connection, hostdir: str, bed: str, roots: Sequence[str], deadline_s: float) -> Started:
    """Start it and hear its hello. Raises HostError."""
    host, content = connection.host, archive.build()
    channel: Streams = connection.start(command(host.python, hostdir, bed, roots, content), deadline_s)
    channel.settimeout(deadline_s)
    data = b""
    while True:
        message, data = _said(connection, channel, data, deadline_s)
        if "hello" in message:
            channel.settimeout(None)
            return Started(channel=channel, hello=message["hello"], rest=data)
        if "old" in message:
            raise connection_errors.python_old(host, str(message["old"]))
        if "refused" in message:
            raise connection_errors.directory_refused(host, f"{hostdir}/agent", str(message["refused"]))
        if "wanted" in message:
            channel.sendall(content)


def _said(connection: Connection, channel: Streams, data: bytes, deadline_s: float) -> tuple[dict[str, Any], bytes]:
    """(what the helper says next, the bytes after it). What a login shell prints before it is passed over."""
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
            raise _ended(connection, channel)
        data += part


def _ended(connection: Connection, channel: Streams) -> connection_errors.HostError:
    if not connection.alive:
        return connection_errors.HostError(
            connection.host.name, f"the connection to {connection.destination.login} was lost"
        )
    code = channel.recv_exit_status()
    if code == NOT_FOUND:
        return connection_errors.python_missing(connection.host)
    return connection_errors.helper_ended(connection.host, channel.recv_stderr(4096).decode(errors="replace"))
