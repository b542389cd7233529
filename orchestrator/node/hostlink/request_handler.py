"""Performs the requests of the controller on a host: read and write files, take the driver lock, call host operations."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...system import host_facts, plain_files
from ..files import label, payloads
from ..oslayer import processes
from .tails import CHUNK

Operations = Mapping[str, Callable[..., Any]]
#: A value in plain JSON, and raw bytes that belong to it.
Response = tuple[Any, bytes]
_RETRY_S = 1.0


class DriverLock:
    """The lock of the orchestrator that drives a run on this host, held for the life of its connection."""

    def __init__(self, hostdir: str) -> None:
        self._path = os.path.join(hostdir, label.RUN_LOCK)
        self._fd = -1

    def take(self, content: Mapping[str, Any]) -> None:
        """Take the lock. ``content``: {run, owner, pid, token}. Raises BlockingIOError, which names the holder.

        A holder with the same token is an earlier connection of this orchestrator that has not noticed its end: it is
        killed. A holder that is just ending gets a second to do so.
        """
        self.release()
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        until = time.monotonic() + _RETRY_S
        while not _try_lock(fd):
            holder = plain_files.read_json(Path(self._path))
            if time.monotonic() > until:
                os.close(fd)
                raise BlockingIOError(_busy(holder))
            if holder.get("token") == content.get("token"):
                _kill_holder(holder)
            time.sleep(0.01)
        pid = os.getpid()
        own = {**content, "helper": pid, "start": processes.start_time(pid)}
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps(own).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class RequestHandler:
    """Performs requests by the name in ``do``. Paths must lie below ``hostdir`` or ``roots``."""

    def __init__(self, hostdir: str, roots: Sequence[str], operations: Operations) -> None:
        self._hostdir = hostdir
        self._roots = (hostdir, *roots)
        self._operations = operations
        self._driver_lock = DriverLock(hostdir)
        #: Performed at once, in the order of arrival.
        self.quick: Mapping[str, Callable[[Mapping[str, Any], bytes], Response]] = {
            "ping": self._ping,
            "write": self._write,
            "leave": self._release_lock,
            "has": self._has,
            "list": self._list,
            "read": self._read,
        }
        #: Each performed in a thread of its own, as it may take long.
        self.slow: Mapping[str, Callable[[Mapping[str, Any], bytes], Response]] = {
            "op": self._call_operation,
            "put": self._put_payload,
            "drive": self._take_lock,
        }

    def _ping(self, request: Mapping[str, Any], body: bytes) -> Response:
        clocks = {"mono": time.clock_gettime(time.CLOCK_MONOTONIC), "wall": time.time()}
        return {**clocks, "boot": host_facts.boot_id()}, b""

    def _write(self, request: Mapping[str, Any], body: bytes) -> Response:
        directory, name = os.path.split(str(request["path"]))
        resolved = plain_files.resolve_below(directory, self._roots)
        os.makedirs(resolved, mode=0o700, exist_ok=True)
        plain_files.replace_file(os.path.join(resolved, name), body)
        return None, b""

    def _has(self, request: Mapping[str, Any], body: bytes) -> Response:
        return os.path.exists(plain_files.resolve_below(str(request["path"]), self._roots)), b""

    def _put_payload(self, request: Mapping[str, Any], body: bytes) -> Response:
        """Store a payload whose files come as one body; its path. ``files``: [[name, size], …]."""
        content, offset = {}, 0
        for name, size in request["files"]:
            content[str(name)] = body[offset : offset + size]
            offset += size
        return str(payloads.put_payload(Path(self._hostdir) / "payloads", content)), b""

    def _list(self, request: Mapping[str, Any], body: bytes) -> Response:
        """[[relative name, size, ""], …] of the plain files of a tree; [["", size, ""]] of a file; None if nothing exists.

        For a directory that cannot be read, the third item is the reason.
        """
        top = plain_files.resolve_below(str(request["path"]), self._roots)
        if os.path.isfile(top):
            return [["", os.path.getsize(top), ""]], b""
        if not os.path.isdir(top):
            return None, b""
        errors: list[OSError] = []
        rows: list[list[Any]] = []
        for directory, _, names in os.walk(top, onerror=errors.append):
            paths = (os.path.join(directory, name) for name in names)
            files = (path for path in paths if os.path.isfile(path) and not os.path.islink(path))
            rows += [[os.path.relpath(path, top), os.path.getsize(path), ""] for path in files]
        return [*rows, *([os.path.relpath(error.filename, top), 0, error.strerror] for error in errors)], b""

    def _read(self, request: Mapping[str, Any], body: bytes) -> Response:
        path = plain_files.resolve_below(str(request["path"]), self._roots)
        with open(plain_files.open_file(path), "rb") as file:
            file.seek(int(request.get("at", 0)))
            return None, file.read(min(int(request.get("room", CHUNK)), CHUNK))

    def _take_lock(self, request: Mapping[str, Any], body: bytes) -> Response:
        self._driver_lock.take(request["content"])
        return None, b""

    def _release_lock(self, request: Mapping[str, Any], body: bytes) -> Response:
        self._driver_lock.release()
        return None, b""

    def _call_operation(self, request: Mapping[str, Any], body: bytes) -> Response:
        name = str(request["op"])
        if name not in self._operations:
            raise ValueError(f"Unknown host operation {name}")
        raw = {str(request["raw"]): body} if request.get("raw") else {}
        return self._operations[name](**request["args"], **raw), b""


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _busy(holder: Mapping[str, Any]) -> str:
    owner = f" of {holder['owner']}" if holder.get("owner") else ""
    return f"run {holder.get('run', 'unknown')}{owner} (pid {holder.get('pid', 'unknown')}) drives this bed"


def _kill_holder(holder: Mapping[str, Any]) -> None:
    pid = int(holder.get("helper", 0))
    if pid and processes.is_alive(pid, int(holder.get("start", -1))):
        os.kill(pid, signal.SIGKILL)
