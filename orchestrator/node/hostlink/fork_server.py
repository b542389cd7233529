"""The fork server of a keeper: a connection to its host gets a link server forked from the keeper, which starts faster.

It listens on a socket in the keeper's directory. A client sends its stdin, stdout and stderr, the hash of the archive that
it would run, the bed's directory, and other directories that may be accessed. The fork sends ``WELCOME``; without it the
client starts a link server itself. The socket ends with the keeper.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
import struct
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ..files import label
from ..oslayer import forks, processes
from ..oslayer.event_loop import Loop

SOCKET = "door"
WELCOME = b"+"
#: Until the keeper imports the modules of link servers: its first seconds belong to its nodes.
WARM_UP_S = 3.0
_MAX_BYTES = 1 << 16
_STREAMS = 3
_BACKLOG = 16


class ForkServer:
    """Accepts clients after ``open``. If the socket cannot be made, clients start link servers themselves."""

    def __init__(self, loop: Loop, workdir: Path, archive: str) -> None:
        self._loop = loop
        self._workdir = workdir
        self._archive = archive
        self._children: set[int] = set()

    def open(self) -> None:
        path = self._workdir / label.KEEPER_DIR / SOCKET
        listener = socket.socket(socket.AF_UNIX)
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:  # the path may be too long for a socket
            print(f"no fork server: {error}", flush=True)
            listener.close()
            return
        self._loop.add_reader(listener.fileno(), lambda: self._accept(listener))
        self._loop.call_later(WARM_UP_S, _import_modules)

    def reap(self) -> None:
        for pid in list(self._children):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)

    def _accept(self, listener: socket.socket) -> None:
        try:
            client, _ = listener.accept()
        except OSError:  # the client has closed the connection
            return
        if _peer_uid(client) != os.geteuid():
            client.close()
            return
        client.setblocking(False)
        self._loop.add_reader(client.fileno(), lambda: self._serve(client))

    def _serve(self, client: socket.socket) -> None:
        """Fork a link server for a client of the same bed and archive; close the connection of any other."""
        self._loop.remove_reader(client.fileno())
        streams: list[int] = []
        try:
            request, streams, _, _ = socket.recv_fds(client, _MAX_BYTES, _STREAMS)
            archive, hostdir, *roots = os.fsdecode(request).split("\0")
            if (archive, hostdir, len(streams)) == (self._archive, str(self._workdir), _STREAMS):
                body = partial(_run_link_server, client, streams, hostdir, roots)
                self._children.add(forks.fork(self._loop, {client.fileno(), *streams}, body))
        except (OSError, ValueError):
            pass
        finally:
            client.close()
            for fd in streams:
                os.close(fd)


def _run_link_server(client: socket.socket, streams: Sequence[int], hostdir: str, roots: Sequence[str]) -> int:
    """The body of the fork: without the tag of a bed's process, on the streams of the client, until they end."""
    os.setsid()
    processes.set_own_tag("")
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    client.setblocking(True)
    client.send(WELCOME)
    from . import link_server

    return link_server.main(hostdir, roots)


def _import_modules() -> None:
    for name in (".link_server", ".host_operations"):
        importlib.import_module(name, __package__)


def _peer_uid(client: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)
