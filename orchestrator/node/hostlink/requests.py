"""What the other side of a connection may ask of a host: write and read files, take the wheel, perform its operations."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..files import atomic_write, label, payloads, plain_files
from ..oslayer import processes
from .tails import CHUNK

Operations = Mapping[str, Callable[..., Any]]
#: What is answered: a value in plain JSON, and raw bytes that belong to it.
Answer = tuple[Any, bytes]
_PATIENCE_S = 1.0


class Wheel:
    """The lock of an orchestrator that drives a run on this host, held for as long as its connection lives."""

    def __init__(self, hostdir: str) -> None:
        self._path = os.path.join(hostdir, label.RUN_LOCK)
        self._fd = -1

    def take(self, content: Mapping[str, Any]) -> None:
        """``content``: {run, owner, pid, token}. Raises BlockingIOError that names who has it.

        A holder with the same token is this orchestrator's own former connection, which does not know yet that it is
        dead: it is ended. One that was just now closed or killed is given the time to end by itself.
        """
        self.leave()
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _PATIENCE_S
        while not _locked(fd):
            other = label.read(Path(self._path))
            if time.monotonic() > until:
                os.close(fd)
                raise BlockingIOError(_busy(other))
            if other.get("token") == content.get("token"):
                _end(other)
            time.sleep(0.01)
        pid = os.getpid()
        own = {**content, "helper": pid, "start": processes.start_of(pid)}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(own).encode(), 0)
        self._fd = fd

    def leave(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Desk:
    """Performs requests, each by its name in ``do``; paths must lie below ``roots``."""

    def __init__(self, hostdir: str, roots: Sequence[str], operations: Operations) -> None:
        self._hostdir = hostdir
        self._roots = (hostdir, *roots)
        self._operations = operations
        self._wheel = Wheel(hostdir)
        #: What is done at once, in the order in which it was asked.
        self.quick: Mapping[str, Callable[[Mapping[str, Any], bytes], Answer]] = {
            "ping": self._ping,
            "write": self._write,
            "leave": self._leave,
            "has": self._has,
            "list": self._list,
            "read": self._read,
        }
        #: What may take long, so that a thread of its own does it.
        self.slow: Mapping[str, Callable[[Mapping[str, Any], bytes], Answer]] = {
            "op": self._op,
            "put": self._put,
            "drive": self._drive,
        }

    def _ping(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        return {"mono": time.clock_gettime(time.CLOCK_MONOTONIC), "wall": time.time(), "boot": label.boot_id()}, b""

    def _write(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        path = str(asked["path"])
        directory, name = os.path.split(path)
        atomic_write.write(os.path.join(atomic_write.below(directory, self._roots), name), body)
        return None, b""

    def _has(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        return os.path.exists(atomic_write.below(str(asked["path"]), self._roots)), b""

    def _put(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        """A payload, its files as one body: ``files`` is [[name, size], …]. The path."""
        content, place = {}, 0
        for name, size in asked["files"]:
            content[str(name)] = body[place : place + size]
            place += size
        return str(payloads.put(Path(self._hostdir) / "payloads", content)), b""

    def _list(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        """[[relative name, size, ""], …] of the plain files of a tree; [["", size, ""]] of a file; None where nothing is.

        A directory that cannot be looked into comes with its reason in the place of the empty one.
        """
        top = atomic_write.below(str(asked["path"]), self._roots)
        if os.path.isfile(top):
            return [["", os.path.getsize(top), ""]], b""
        if not os.path.isdir(top):
            return None, b""
        closed: list[OSError] = []
        found: list[list[Any]] = []
        for directory, _, names in os.walk(top, onerror=closed.append):
            paths = (os.path.join(directory, name) for name in names)
            files = (path for path in paths if os.path.isfile(path) and not os.path.islink(path))
            found += [[os.path.relpath(path, top), os.path.getsize(path), ""] for path in files]
        return [*found, *([os.path.relpath(error.filename, top), 0, error.strerror] for error in closed)], b""

    def _read(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        path = atomic_write.below(str(asked["path"]), self._roots)
        with open(plain_files.opened(path), "rb") as file:
            file.seek(int(asked.get("at", 0)))
            return None, file.read(min(int(asked.get("room", CHUNK)), CHUNK))

    def _drive(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        self._wheel.take(asked["content"])
        return None, b""

    def _leave(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        self._wheel.leave()
        return None, b""

    def _op(self, asked: Mapping[str, Any], body: bytes) -> Answer:
        name = str(asked["op"])
        if name not in self._operations:
            raise ValueError(f"this host knows no operation {name}")
        raw = {str(asked["raw"]): body} if asked.get("raw") else {}
        return self._operations[name](**asked["args"], **raw), b""


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(other: Mapping[str, Any]) -> str:
    owner = f" of {other['owner']}" if other.get("owner") else ""
    return f"run {other.get('run', 'unknown')}{owner} (pid {other.get('pid', 'unknown')}) drives this bed"


def _end(other: Mapping[str, Any]) -> None:
    pid = int(other.get("helper", 0))
    if pid and processes.alive(pid, int(other.get("start", -1))):
        os.kill(pid, signal.SIGKILL)
