"""The keeper's door: whoever reaches its host gets a helper that is a fork of the keeper, instead of starting one anew.

A socket in the keeper's directory. Who comes sends its own stdin, stdout and stderr, the hash of the archive that it would
run, the bed's directory, and the roots that may be read besides. The helper itself says ``WELCOME``, so that who hears
nothing may start one after all; the socket ends with it.
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

from ..oslayer import forks
from ..oslayer import process_tag as marks
from ..oslayer.event_loop import Loop

NAME = "door"
WELCOME = b"+"
#: A keeper has better to do in its first seconds than to import what only helpers need.
WARM_S = 3.0
_LIMIT = 1 << 16
_STREAMS = 3
_BACKLOG = 16


class Door:
    """Open from ``open`` on. Where it cannot be made, helpers are started as without it."""

    def __init__(self, loop: Loop, workdir: Path, archive: str) -> None:
        self._loop = loop
        self._workdir = workdir
        self._archive = archive
        self._helpers: set[int] = set()

    def open(self) -> None:
        path = self._workdir / marks.KEEPER / NAME
        listener = socket.socket(socket.AF_UNIX)
        try:
            path.unlink(missing_ok=True)
            listener.bind(str(path))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
        except OSError as error:  # a path may be too long for a socket
            print(f"no door: {error}", flush=True)
            listener.close()
            return
        self._loop.watch(listener.fileno(), lambda: self._come(listener))
        self._loop.later(WARM_S, _warm)

    def reap(self) -> None:
        for pid in list(self._helpers):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._helpers.discard(pid)

    def _come(self, listener: socket.socket) -> None:
        try:
            caller, _ = listener.accept()
        except OSError:  # who knocked is gone
            return
        if _user(caller) != os.geteuid():
            caller.close()
            return
        caller.setblocking(False)
        self._loop.watch(caller.fileno(), lambda: self._asked(caller))

    def _asked(self, caller: socket.socket) -> None:
        """A helper for who speaks of the same bed and the same archive; for anybody else the door just shuts."""
        self._loop.forget(caller.fileno())
        streams: list[int] = []
        try:
            said, streams, _, _ = socket.recv_fds(caller, _LIMIT, _STREAMS)
            archive, hostdir, *roots = os.fsdecode(said).split("\0")
            if (archive, hostdir, len(streams)) == (self._archive, str(self._workdir), _STREAMS):
                body = partial(_help, caller, streams, hostdir, roots)
                self._helpers.add(forks.fork(self._loop, {caller.fileno(), *streams}, body))
        except (OSError, ValueError):
            pass
        finally:
            caller.close()
            for fd in streams:
                os.close(fd)


def _help(caller: socket.socket, streams: Sequence[int], hostdir: str, roots: Sequence[str]) -> int:
    """What the fork does: a process of no bed, on the streams of who called, which ends when they do."""
    os.setsid()
    marks.overwrite("")
    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    caller.setblocking(True)
    caller.send(WELCOME)
    from . import streaming

    return streaming.main(hostdir, roots)


def _warm() -> None:
    for name in (".streaming", ".host"):
        importlib.import_module(name, __package__)


def _user(caller: socket.socket) -> int:
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack("3i", caller.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)
