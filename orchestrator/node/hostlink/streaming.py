"""The helper of one connection to a host: answers requests, streams what the nodes write, ends with its connection.

Requests come on stdin, frames go out on stdout (see ``frames``). A request has an ``id`` and what to ``do``; its answer
has the same id and ``ok`` or ``error``. Without an id: ``hello``, ``file`` (bytes ``at`` an offset; at 0 the file begins
anew; ``end``: there is no more now; ``sum``: to be said back, by ``got``), ``beats`` of nodes, ``capped`` (a node's bulk
reached its cap).
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

from ..files import label
from . import frames
from .file_trees import Tree
from .requests import Desk, Operations
from .send_window import Window
from .tails import Tails

LOOK_S = 0.25
LOAD_S = 0.5
BEAT_S = 0.1
#: Whoever listens hears at least an empty ``beats`` so often.
SIGN_S = 0.5
#: An orchestrator that lives asks something every second; a connection that was cut never says that it ended.
SILENCE_S = 30.0
#: What preparation leaves in a bed's directory.
STAMP = "prepared.json"
_BLOCK = 1 << 18


class Table(Mapping[str, Callable[..., Any]]):
    """The operations of this host, loaded when the first of them is asked for."""

    def __getitem__(self, name: str) -> Callable[..., Any]:
        found: Callable[..., Any] = self.load()[name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.load())

    def __len__(self) -> int:
        return len(self.load())

    def load(self) -> Operations:
        operations: Operations = importlib.import_module(".host", __package__).OPS
        return operations


class Beats:
    """The heartbeats of nodes: told when they changed, at most every tenth of a second."""

    def __init__(self, hostdir: str) -> None:
        self._hostdir = hostdir
        self._nodes: dict[str, tuple[str, int]] = {}
        self._due = 0.0

    def watch(self, nodes: Sequence[str]) -> None:
        for node in nodes:
            self._nodes.setdefault(node, ("", -1))

    def changed(self, now: float) -> dict[str, tuple[str, int]]:
        if now < self._due:
            return {}
        found = {node: label.heartbeat(Path(self._hostdir, "nodes", node, "heartbeat")) for node in self._nodes}
        new = {node: beat for node, beat in found.items() if beat and beat != self._nodes[node]}
        self._nodes.update(new)
        if new:
            self._due = now + BEAT_S
        return new


class Helper:
    """One thread that selects; requests that may take long have threads of their own."""

    def __init__(self, hostdir: str, roots: Sequence[str], operations: Operations) -> None:
        self._hostdir = hostdir
        self._desk = Desk(hostdir, roots, operations)
        self._tails = Tails(hostdir)
        self._beats = Beats(hostdir)
        self._answers: deque[bytes] = deque()
        self._beating: dict[str, tuple[str, int]] | None = None
        self._window = Window()
        self._waiting: list[tuple[int, Mapping[str, Mapping[str, int]]]] = []
        self._out = memoryview(b"")
        self._sign = 0.0
        self._wake, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self, source: int, sink: int) -> None:
        """Serve until the source ends, the sink is gone, or nobody has asked anything for too long."""
        os.set_blocking(sink, False)
        self._say({"hello": {"pid": os.getpid(), "boot": label.boot_id(), "python": list(sys.version_info[:2])}})
        decoder, look, heard = frames.Decoder(), 0.0, time.monotonic()
        inputs = [fd for fd in (source, self._tails.fd, self._wake) if fd >= 0]
        while True:
            self._fill()
            patience = max(0.0, look - time.monotonic())
            readable, writable, _ = select.select(inputs, [sink] if self._out else [], [], patience)
            now = time.monotonic()
            if source in readable:
                data = os.read(source, _BLOCK)
                if not data:
                    return
                heard = now
                for request, body in decoder.feed(data):
                    self._perform(request, body)
            if self._wake in readable:
                os.read(self._wake, 4096)
            if self._tails.fd in readable:
                self._tails.woken()
            if now >= look:
                look = now + LOOK_S
                self._tails.look()
            if writable:
                self._flush(sink)
            self._tell(now)
            if now - heard > SILENCE_S:
                return

    def close(self) -> None:
        self._tails.close()
        os.close(self._wake)
        os.close(self._waker)

    def _tell(self, now: float) -> None:
        beats = self._beats.changed(now)
        if beats or now > self._sign:
            self._sign = now + SIGN_S
            self._beating = {
                **(self._beating or {}),
                **beats,
            }  # the last of each counts, however slow the connection is
        for tree in self._tails.caps():
            self._say({"capped": tree.node, "tree": tree.path, "limit": tree.cap})

    def _perform(self, request: Mapping[str, Any], body: bytes) -> None:
        do = request.get("do")
        own = {"watch": self._watch, "sync": self._sync, "anew": self._anew, "got": self._got}
        if do in own:
            own[do](request)
        elif do in self._desk.slow:
            threading.Thread(target=self._answer, args=(request, body), daemon=True).start()
        else:
            self._answer(request, body)

    def _answer(self, request: Mapping[str, Any], body: bytes) -> None:
        number, do = request.get("id"), str(request.get("do"))
        try:
            performer = self._desk.quick.get(do) or self._desk.slow.get(do)
            if performer is None:
                raise ValueError(f"a helper does not {do}")
            value, data = performer(request, body)
            frame = frames.encode({"id": number, "ok": value}, data)
        except Exception as error:  # noqa: BLE001
            frame = frames.encode({"id": number, "error": _text(error), "kind": _kind(error)})
        self._answers.append(frame)
        with contextlib.suppress(OSError):  # full: it wakes up anyway
            os.write(self._waker, b".")

    def _watch(self, request: Mapping[str, Any]) -> None:
        """Answered after the events that were there already, so that whoever asked has them."""
        trees = [Tree(**tree) for tree in request["trees"]]
        for tree in trees:
            self._make(tree)
        self._tails.follow(trees, {name: (size, digest) for name, (size, digest) in request.get("have", {}).items()})
        self._beats.watch(request.get("beats", ()))
        self._later(request, {"": self._tails.events()})

    def _make(self, tree: Tree) -> None:
        """What is about to be written below a node can be watched from its beginning, and is not found by looking later."""
        node = os.path.join(self._hostdir, "nodes", tree.node)
        if tree.deep and tree.path.startswith(f"nodes/{tree.node}/") and os.path.isdir(node):
            with contextlib.suppress(OSError):
                os.makedirs(os.path.join(self._hostdir, tree.path), exist_ok=True)

    def _sync(self, request: Mapping[str, Any]) -> None:
        """Answered, for each of some paths, once everything is out that is below them now."""
        paths = [str(path) for path in request.get("paths", ("",))]
        self._tails.look(sure=True)
        self._later(request, {path: self._tails.sizes(path) for path in paths})

    def _anew(self, request: Mapping[str, Any]) -> None:
        have = {str(request["file"]): (int(request["have"][0]), str(request["have"][1]))}
        self._tails.anew(str(request["file"]), have)

    def _got(self, request: Mapping[str, Any]) -> None:
        self._window.got(int(request["sum"]), time.monotonic())

    def _later(self, request: Mapping[str, Any], sizes: Mapping[str, Mapping[str, int]]) -> None:
        """``sizes``: by path, those of the files below it."""
        self._waiting.append((int(request["id"]), sizes))

    def _settle(self) -> None:
        for entry in [one for one in self._waiting if not any(map(self._tails.behind, one[1].values()))]:
            self._waiting.remove(entry)
            number, sizes = entry
            self._say({"id": number, "ok": {below: self._found(below, len(files)) for below, files in sizes.items()}})

    def _found(self, below: str, files: int) -> Mapping[str, Any]:
        there = os.path.exists(os.path.join(self._hostdir, below))
        unread = list(self._tails.unread(below).items())
        return {"files": files, "there": there, "capped": self._tails.capped(below), "unread": unread}

    def _say(self, header: Mapping[str, Any]) -> None:
        self._answers.append(frames.encode(header))

    def _fill(self) -> None:
        """What goes out next: heartbeats, answers, then a piece of events or, after these, of bulk."""
        if self._out:
            return
        if self._beating is not None:
            self._out, self._beating = memoryview(frames.encode({"beats": self._beating})), None
            return
        if not self._answers:
            self._settle()
        if self._answers:
            self._out = memoryview(self._answers.popleft())
        elif frame := self._piece():
            self._out = memoryview(frames.encode(*frame))

    def _piece(self) -> tuple[dict[str, Any], bytes] | None:
        """Of files, no more than is known to arrive soon."""
        for events in (True, False):
            room = self._window.room(events=events)
            frame = self._tails.take(events=events, room=room) if room else None
            if frame:
                header, data = frame
                mark = self._window.sent(len(data), time.monotonic())
                return ({**header, "sum": mark} if mark is not None else header), data
        return None

    def _flush(self, sink: int) -> None:
        try:
            self._out = self._out[os.write(sink, self._out[:_BLOCK]) :]
        except BlockingIOError:
            return


def main(hostdir: str, roots: Sequence[str]) -> int:
    """Serve stdin and stdout. Threads that still work end with the process: what they started is detached."""
    os.umask(0o077)
    operations = Table()
    # Soon nothing is read from the archive any more: whoever ends the bed removes it.
    loading = threading.Timer(LOAD_S, operations.load)
    loading.daemon = True
    loading.start()
    try:
        Helper(hostdir, roots, operations).run(0, 1)
    except (BrokenPipeError, ConnectionError):
        pass
    _tidy(hostdir)
    os._exit(0)


def _tidy(hostdir: str) -> None:
    """Where no bed is, or is no more, the archive that brought this helper leaves with it.

    That the host is prepared (``STAMP``) stays known.
    """
    with contextlib.suppress(OSError):
        if set(os.listdir(hostdir)) <= {"agent", STAMP}:
            shutil.rmtree(os.path.join(hostdir, "agent"), ignore_errors=True)
            os.rmdir(hostdir)


def _kind(error: Exception) -> str:
    return next((kind.__name__ for kind in (OSError, ValueError) if isinstance(error, kind)), "RuntimeError")


def _text(error: Exception) -> str:
    if isinstance(error, KeyError | TypeError):
        return f"{type(error).__name__}: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__
