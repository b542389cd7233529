"""The link server of one connection to a host: answers requests, mirrors what nodes write, ends with its connection.

Requests arrive on stdin, frames leave on stdout (see ``frames``). A request has an ``id`` and a name in ``do``; its response
has the same id and ``ok`` or ``error``. Frames without an id: ``hello``; ``file`` (bytes ``at`` an offset; at 0 the file
begins anew; ``end``: no more bytes now; ``sum``: the controller acknowledges it by ``got``); ``beats`` of nodes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...system import host_facts
from ..files import label
from . import frames
from .frames import SendWindow
from .request_handler import Operations, RequestHandler
from .tails import Tails, Tree

POLL_S = 0.25
LOAD_S = 0.5
BEAT_S = 0.1
#: The controller receives at least an empty ``beats`` at this interval.
SIGN_S = 0.5
#: A live orchestrator sends a request every few seconds. A connection that was cut never reports its end.
SILENCE_S = 30.0
_BLOCK = 1 << 18


class LazyOperations(Mapping[str, Callable[..., Any]]):
    """The operations of this host, imported at the first use."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        operation: Callable[..., Any] = self.load()[name]
        return operation

    def __iter__(self) -> Iterator[str]:
        return iter(self.load())

    def __len__(self) -> int:
        return len(self.load())

    def load(self) -> Operations:
        operations: Operations = importlib.import_module(".host_operations", __package__).OPS
        return operations


class Heartbeats:
    """The heartbeats of nodes: changes are reported at most every ``BEAT_S``."""

    def __init__(self, hostdir: str) -> None:
        self._hostdir = hostdir
        self._nodes: dict[str, tuple[str, int]] = {}
        self._due = 0.0

    def watch(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._nodes.setdefault(node, ("", -1))

    def read_changes(self, now: float) -> dict[str, tuple[str, int]]:
        if now < self._due:
            return {}
        beats = {node: label.read_heartbeat(Path(self._hostdir, "nodes", node, "heartbeat")) for node in self._nodes}
        changes = {node: beat for node, beat in beats.items() if beat and beat != self._nodes[node]}
        self._nodes.update(changes)
        if changes:
            self._due = now + BEAT_S
        return changes


class LinkServer:
    """One thread that selects. Requests that may take long have threads of their own."""

    def __init__(self, hostdir: str, roots: Sequence[str], operations: Operations) -> None:
        self._hostdir = hostdir
        self._handler = RequestHandler(hostdir, roots, operations)
        self._tails = Tails(hostdir)
        self._heartbeats = Heartbeats(hostdir)
        self._responses: deque[bytes] = deque()
        self._beats: dict[str, tuple[str, int]] | None = None
        self._window = SendWindow()
        self._waiting: list[tuple[int, Mapping[str, Mapping[str, int]]]] = []
        self._out = memoryview(b"")
        self._next_sign = 0.0
        # File objects: a working thread that ends after ``close`` must not write to another file of the same descriptor.
        wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._wake, self._waker = os.fdopen(wake, "rb", buffering=0), os.fdopen(waker, "wb", buffering=0)

    def run(self, source: int, sink: int) -> None:
        """Serve until the source ends, the sink is closed, or no request arrives for ``SILENCE_S``."""
        os.set_blocking(sink, False)
        self._send({"hello": {"pid": os.getpid(), "boot": host_facts.boot_id(), "python": list(sys.version_info[:2])}})
        decoder, next_poll = frames.Decoder(), 0.0
        last_request = before = time.monotonic()
        wake = self._wake.fileno()
        inputs = [fd for fd in (source, self._tails.fd, wake) if fd >= 0]
        while True:
            self._fill()
            timeout_s = max(0.0, next_poll - time.monotonic())
            readable, writable, _ = select.select(inputs, [sink] if self._out else [], [], timeout_s)
            now = time.monotonic()
            if source in readable:
                data = os.read(source, _BLOCK)
                if not data:
                    return
                last_request = now
                for request, body in decoder.feed(data):
                    self._perform(request, body)
            if wake in readable:
                self._wake.read(4096)
            if self._tails.fd in readable:
                self._tails.read_inotify()
            if now >= next_poll:
                next_poll = now + POLL_S
                self._tails.poll()
            if writable:
                self._flush(sink)
            self._collect_beats(now)
            last_request += max(0.0, now - before - SIGN_S)  # this machine stood still: nobody was silent
            before = now
            if now - last_request > SILENCE_S:
                return

    def close(self) -> None:
        self._tails.close()
        self._wake.close()
        self._waker.close()

    def _collect_beats(self, now: float) -> None:
        """Collect only the last heartbeat of each node, however slow the connection is."""
        changes = self._heartbeats.read_changes(now)
        if changes or now > self._next_sign:
            self._next_sign = now + SIGN_S
            self._beats = {**(self._beats or {}), **changes}

    def _perform(self, request: Mapping[str, Any], body: bytes) -> None:
        do = request.get("do")
        own = {"watch": self._watch, "sync": self._sync, "anew": self._restart, "got": self._acknowledge}
        if do in own:
            own[do](request)
        elif do in self._handler.slow:
            threading.Thread(target=self._respond, args=(request, body), daemon=True).start()
        else:
            self._respond(request, body)

    def _respond(self, request: Mapping[str, Any], body: bytes) -> None:
        number, do = request.get("id"), str(request.get("do"))
        try:
            perform = self._handler.quick.get(do) or self._handler.slow.get(do)
            if perform is None:
                raise ValueError(f"Unknown request {do}")
            value, data = perform(request, body)
            frame = frames.encode({"id": number, "ok": value}, data)
        except Exception as error:  # noqa: BLE001
            frame = frames.encode({"id": number, "error": _error_text(error), "kind": _error_kind(error)})
        self._responses.append(frame)
        with contextlib.suppress(OSError, ValueError):  # closed; a full pipe wakes the loop as well
            self._waker.write(b".")

    def _watch(self, request: Mapping[str, Any]) -> None:
        """Mirror trees. The response follows the events that exist already."""
        trees = [Tree(**tree) for tree in request["trees"]]
        for tree in trees:
            self._make_directory(tree)
        mirrored = {name: (size, digest) for name, (size, digest) in request.get("have", {}).items()}
        self._tails.follow(trees, mirrored)
        self._heartbeats.watch(request.get("beats", ()))
        self._respond_once_sent(request, {"": self._tails.events()})

    def _make_directory(self, tree: Tree) -> None:
        """Make a node's directory before the node writes to it, so that inotify reports its first file."""
        node = os.path.join(self._hostdir, "nodes", tree.node)
        if tree.deep and tree.path.startswith(f"nodes/{tree.node}/") and os.path.isdir(node):
            with contextlib.suppress(OSError):
                os.makedirs(os.path.join(self._hostdir, tree.path), exist_ok=True)

    def _sync(self, request: Mapping[str, Any]) -> None:
        """Respond once all present files below these paths are sent."""
        paths = [str(path) for path in request.get("paths", ("",))]
        self._tails.poll(is_final=True)
        self._respond_once_sent(request, {path: self._tails.sizes(path) for path in paths})

    def _restart(self, request: Mapping[str, Any]) -> None:
        mirrored = {str(request["file"]): (int(request["have"][0]), str(request["have"][1]))}
        self._tails.restart(str(request["file"]), mirrored)

    def _acknowledge(self, request: Mapping[str, Any]) -> None:
        self._window.acknowledge(int(request["sum"]), time.monotonic())

    def _respond_once_sent(self, request: Mapping[str, Any], sizes: Mapping[str, Mapping[str, int]]) -> None:
        """``sizes``: by path, the sizes of the files below it."""
        self._waiting.append((int(request["id"]), sizes))

    def _respond_to_sent(self) -> None:
        for entry in [item for item in self._waiting if not any(map(self._tails.is_behind, item[1].values()))]:
            self._waiting.remove(entry)
            number, sizes = entry
            self._send({"id": number, "ok": {path: self._summary(path, len(files)) for path, files in sizes.items()}})

    def _summary(self, below: str, files: int) -> Mapping[str, Any]:
        return {
            "files": files,
            "there": os.path.exists(os.path.join(self._hostdir, below)),
            "capped": self._tails.capped(below),
            "unread": list(self._tails.unreadable(below).items()),
        }

    def _send(self, header: Mapping[str, Any]) -> None:
        self._responses.append(frames.encode(header))

    def _fill(self) -> None:
        """Choose what is sent next: heartbeats, responses, a piece of events, or a piece of bulk, in this order."""
        if self._out:
            return
        if self._beats is not None:
            self._out, self._beats = memoryview(frames.encode({"beats": self._beats})), None
            return
        if not self._responses:
            self._respond_to_sent()
        if self._responses:
            self._out = memoryview(self._responses.popleft())
        elif frame := self._next_piece():
            self._out = memoryview(frames.encode(*frame))

    def _next_piece(self) -> tuple[dict[str, Any], bytes] | None:
        """The next bytes of a file, within the send window."""
        for events in (True, False):
            limit = self._window.free_bytes(events=events)
            frame = self._tails.take(events=events, limit=limit) if limit else None
            if frame:
                header, data = frame
                position = self._window.count_sent(len(data), time.monotonic())
                return ({**header, "sum": position} if position is not None else header), data
        return None

    def _flush(self, sink: int) -> None:
        try:
            self._out = self._out[os.write(sink, self._out[:_BLOCK]) :]
        except BlockingIOError:
            return


def main(hostdir: str, roots: Sequence[str]) -> int:
    """Serve stdin and stdout, then exit."""
    serve(hostdir, roots, 0, 1)
    _remove_unused_archive(hostdir)
    os._exit(0)


def serve(hostdir: str, roots: Sequence[str], source: int, sink: int) -> None:
    """Serve two descriptors until they end. Working threads end with the process; what they started is detached."""
    os.umask(0o077)
    operations = LazyOperations()
    # Load them soon: whatever ends the bed also removes the archive that they are loaded from.
    loading = threading.Timer(LOAD_S, operations.load)
    loading.daemon = True
    loading.start()
    try:
        LinkServer(hostdir, roots, operations).run(source, sink)
    except (BrokenPipeError, ConnectionError):
        pass


def _remove_unused_archive(hostdir: str) -> None:
    """Remove the archive of this link server if the directory holds no bed. The stamp of the preparation and the record of acts stay."""
    with contextlib.suppress(OSError):
        if set(os.listdir(hostdir)) <= {"agent", label.STAMP, label.ACTS}:
            shutil.rmtree(os.path.join(hostdir, "agent"), ignore_errors=True)
            os.rmdir(hostdir)


def _error_kind(error: Exception) -> str:
    return next((kind.__name__ for kind in (OSError, ValueError) if isinstance(error, kind)), "RuntimeError")


def _error_text(error: Exception) -> str:
    if isinstance(error, KeyError | TypeError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
