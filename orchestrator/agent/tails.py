"""Which files of a host are followed, how much of each has gone out, and which bytes go next: events before bulk."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from . import inotify, plain

#: Most bytes of a file in one frame: so long may an event have to wait for bulk.
CHUNK = 256 << 10
#: The end of a file that is compared with what the other side has.
TAIL = 4096
#: What is in a node's directory and is no output of it; hidden names are temporary files.
SKIPPED = frozenset({"heartbeat", "lock", "inbox", "done", "__pycache__"})
#: Written anew rather than appended to: any change sends the whole file.
REPLACED = (".json", ".xml", ".txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory to follow (``path`` is relative). ``deep``: with what is below. ``cap``: bytes of bulk at most.

    Its own *.jsonl files are events: they are watched, and go first. Everything else is bulk, found by looking.
    """

    path: str
    node: str
    deep: bool = False
    cap: int = 1 << 40


@dataclass(slots=True, kw_only=True)
class Tail:
    """One file, and how far it was sent. ``stamp``: (inode, modification time) as last seen. ``fresh``: where to begin
    is not known yet.
    """

    name: str
    path: str
    tree: Tree
    event: bool
    offset: int = 0
    size: int = 0
    stamp: tuple[int, int] = (0, 0)
    fresh: bool = True
    sent: bool = False
    ready: bool = False
    capped: bool = False


@dataclass(slots=True)
class _Queue:
    """Files with something to send, in turns."""

    tails: deque[Tail] = field(default_factory=deque)

    def add(self, tail: Tail) -> None:
        if not tail.ready and not tail.capped:
            tail.ready = True
            self.tails.append(tail)

    def take(self) -> Tail | None:
        if not self.tails:
            return None
        tail = self.tails.popleft()
        tail.ready = False
        return tail


class Tails:
    """Follows trees below ``root``. ``look`` finds everything, ``woken`` what inotify tells, ``take`` gives bytes."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._trees: dict[str, Tree] = {}
        self._have: dict[str, tuple[int, str]] = {}
        self._tails: dict[str, Tail] = {}
        self._bulk: dict[str, int] = {}
        self._events, self._rest = _Queue(), _Queue()
        self._caps: list[Tree] = []
        self._watcher = inotify.Watcher()

    @property
    def fd(self) -> int:
        return self._watcher.fd

    def follow(self, trees: Iterable[Tree], have: Mapping[str, tuple[int, str]]) -> None:
        """``have``: what the other side has of files already, as (size, hash of its end)."""
        self._have.update(have)
        for tree in trees:
            self._trees.setdefault(tree.path, tree)
        self.look()

    def anew(self, name: str, have: Mapping[str, tuple[int, str]]) -> None:
        """The other side lost its place in a file: begin where it says that it is, if that fits."""
        if tail := self._tails.get(name):
            self._have.pop(name, None)
            self._have.update(have)
            self._count(tail, -tail.offset)
            tail.offset, tail.sent, tail.fresh = 0, False, True
            self._see(tail.tree, tail.path, name, event=tail.event)

    def look(self) -> None:
        """See what is there in all trees: for the slow poll, and where inotify is silent (network file systems)."""
        for tree in self._trees.values():
            top = os.path.join(self._root, tree.path)
            if os.path.realpath(top) != top:  # a link that leads elsewhere
                continue
            self._watcher.watch(top, inotify.MODIFY | inotify.CREATE | inotify.MOVED_TO)
            for path, name in _files(top, tree):
                self._see(tree, path, name, event=_is_event(tree, name))

    def woken(self) -> None:
        """See what inotify has reported."""
        found, lost = self._watcher.changed()
        if lost:
            self.look()
        by_top = {os.path.join(self._root, tree.path): tree for tree in self._trees.values()}
        for directory, file in found:
            tree = by_top.get(directory)
            if tree and file and _followed(file):
                name = f"{tree.path}/{file}"
                self._see(tree, os.path.join(directory, file), name, event=_is_event(tree, name))

    def sizes(self, below: str) -> dict[str, int]:
        """The files below a path, and the size that each had when it was last seen."""
        inside = below.rstrip("/") + "/" if below else ""
        return {name: tail.size for name, tail in self._tails.items() if name == below or name.startswith(inside)}

    def events(self) -> dict[str, int]:
        """The files of events, and the size that each had when it was last seen."""
        return {name: tail.size for name, tail in self._tails.items() if tail.event}

    def behind(self, sizes: Mapping[str, int]) -> bool:
        """Is any of these files not sent up to that size yet?"""
        found = ((self._tails.get(name), size) for name, size in sizes.items())
        return any(tail and tail.ready and (tail.offset < size or not tail.sent) for tail, size in found)

    def capped(self, below: str) -> bool:
        return any(tail.capped for name, tail in self._tails.items() if name.startswith(below))

    def caps(self) -> list[Tree]:
        """The trees whose cap was reached since the last call."""
        found, self._caps = self._caps, []
        return found

    def take(self, *, events: bool) -> tuple[dict[str, Any], bytes] | None:
        """The next bytes of the files that are events, or of those that are bulk; None where nothing is to be sent."""
        queue = self._events if events else self._rest
        while tail := queue.take():
            frame = self._read(tail)
            if frame:
                return frame
        return None

    def close(self) -> None:
        self._watcher.close()

    def _see(self, tree: Tree, path: str, name: str, *, event: bool) -> None:
        try:
            status = os.lstat(path)
        except OSError:
            return
        if not stat.S_ISREG(status.st_mode):
            return
        tail = self._tails.get(name)
        if tail is None:
            tail = self._tails[name] = Tail(name=name, path=path, tree=tree, event=event)
        if tail.fresh:
            self._first(tail, status)
        elif _other(tail, status):
            self._count(tail, -tail.offset)
            tail.offset, tail.sent = 0, False
        tail.stamp, tail.size = (status.st_ino, status.st_mtime_ns), status.st_size
        if tail.size > tail.offset or not tail.sent:
            (self._events if event else self._rest).add(tail)

    def _first(self, tail: Tail, status: os.stat_result) -> None:
        """Where to begin with a file: behind what the other side has, if that is what is here."""
        size, digest = self._have.pop(tail.name, (-1, ""))
        whole = size == status.st_size or not tail.name.endswith(REPLACED)
        if 0 <= size <= status.st_size and whole and end_hash(tail.path, size) == digest:
            tail.offset, tail.sent = size, True
            self._count(tail, size)
        tail.fresh = False

    def _read(self, tail: Tail) -> tuple[dict[str, Any], bytes] | None:
        room = CHUNK if tail.event else min(CHUNK, tail.tree.cap - self._bulk.get(tail.tree.path, 0))
        if room <= 0:
            self._cap(tail)
            return None
        try:
            data, size = _range(tail.path, tail.offset, room)
        except OSError:
            self._tails.pop(tail.name, None)
            return None
        if not data and tail.sent:
            return None
        header = {"file": tail.name, "node": tail.tree.node, "at": tail.offset}
        tail.offset, tail.sent = tail.offset + len(data), True
        tail.size = max(tail.size, size)
        self._count(tail, len(data))
        if tail.offset >= size:
            header["end"] = True
        else:
            (self._events if tail.event else self._rest).add(tail)
        return header, data

    def _count(self, tail: Tail, size: int) -> None:
        if not tail.event:
            self._bulk[tail.tree.path] = self._bulk.get(tail.tree.path, 0) + size

    def _cap(self, tail: Tail) -> None:
        tail.capped = True
        if not any(other.capped for other in self._tails.values() if other is not tail and other.tree is tail.tree):
            self._caps.append(tail.tree)


def end_hash(path: str, size: int) -> str:
    """A short hash of the last bytes before ``size``; empty where the file cannot be read so far."""
    begin = max(0, size - TAIL)
    try:
        data, _ = _range(path, begin, size - begin)
    except OSError:
        return ""
    return hashlib.sha256(data).hexdigest()[:16] if len(data) == size - begin else ""


def _range(path: str, offset: int, room: int) -> tuple[bytes, int]:
    """(bytes from an offset, size of the file)."""
    fd = plain.opened(path)
    try:
        return os.pread(fd, room, offset), os.fstat(fd).st_size
    finally:
        os.close(fd)


def _other(tail: Tail, status: os.stat_result) -> bool:
    """Is this another file than the one that was sent, or one that was written anew?"""
    inode, changed = tail.stamp
    anew = tail.name.endswith(REPLACED) and changed != status.st_mtime_ns
    return status.st_ino != inode or status.st_size < tail.offset or anew


def _is_event(tree: Tree, name: str) -> bool:
    return name.endswith(".jsonl") and "/" not in name[len(tree.path) + 1 :]


def _followed(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED


def _files(top: str, tree: Tree) -> Iterator[tuple[str, str]]:
    """(path, relative name) of the files in a tree; links are not followed."""
    left = [(top, tree.path)]
    while left:
        directory, name = left.pop()
        try:
            with os.scandir(directory) as entries:
                found = [entry for entry in entries if _followed(entry.name)]
        except OSError:
            continue
        for entry in found:
            if entry.is_file(follow_symlinks=False):
                yield entry.path, f"{name}/{entry.name}"
            elif tree.deep and entry.is_dir(follow_symlinks=False):
                left.append((entry.path, f"{name}/{entry.name}"))
