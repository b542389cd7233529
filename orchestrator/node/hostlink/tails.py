"""Which files of a host are followed, how much of each has gone out, and which bytes go next: events before bulk."""

from __future__ import annotations

import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..files import plain_files
from ..oslayer import inotify
from . import file_trees
from .file_trees import Tree

#: Most bytes of a file in one frame: so long may an event have to wait for bulk.
CHUNK = 256 << 10
#: The end of a file that is compared with what the other side has.
TAIL = 4096
#: Written anew rather than appended to: any change sends the whole file.
REPLACED = (".json", ".xml", ".txt")


@dataclass(slots=True, kw_only=True)
class Tail:
    """One file, and how far it was sent. ``stamp``: (inode, modification time) as last seen. ``fresh``: where to begin
    is not known yet.

    ``last``: the end of what was sent of bulk. ``doubt``: a modification time with which it is as long as it was.
    ``problem``: why it cannot be read.
    """

    name: str
    path: str
    tree: Tree
    event: bool
    offset: int = 0
    size: int = 0
    stamp: tuple[int, int] = (0, 0)
    last: bytes = b""
    doubt: int = 0
    fresh: bool = True
    sent: bool = False
    ready: bool = False
    capped: bool = False
    problem: str = ""


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
        self._closed: dict[str, str] = {}
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
            self._begin(tail)
            tail.fresh = True
            self._see(tail.tree, tail.path, name, event=tail.event)

    def look(self, *, sure: bool = False) -> None:
        """See what is there in all trees: for the slow poll, and where inotify is silent (network file systems).

        ``sure``: nobody writes any more, so what was changed and is as long as before was written anew.
        """
        self._closed = {}
        for tree in self._trees.values():
            top = os.path.join(self._root, tree.path)
            if os.path.realpath(top) != top:
                self._closed[tree.path] = "a link, which is not followed"
                continue
            self._watcher.watch(top, inotify.MODIFY | inotify.CREATE | inotify.MOVED_TO)
            for path, name in file_trees.files(top, tree, self._closed):
                self._see(tree, path, name, event=file_trees.is_event(tree, name), sure=sure)

    def woken(self) -> None:
        """See what inotify has reported."""
        found, lost = self._watcher.changed()
        if lost:
            self.look()
        by_top = {os.path.join(self._root, tree.path): tree for tree in self._trees.values()}
        for directory, file in found:
            tree = by_top.get(directory)
            if tree and file and file_trees.followed(file):
                name = f"{tree.path}/{file}"
                self._see(tree, os.path.join(directory, file), name, event=file_trees.is_event(tree, name))

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
        return any(tail and _due(tail) and (tail.offset < size or not tail.sent) for tail, size in found)

    def capped(self, below: str) -> bool:
        return any(tail.capped for name, tail in self._tails.items() if name.startswith(below))

    def unread(self, below: str) -> dict[str, str]:
        """What is there below a path and cannot be read, each with its reason."""
        inside = below.rstrip("/") + "/" if below else ""
        files = {
            name: tail.problem for name, tail in self._tails.items() if tail.problem and file_trees.there(tail.path)
        }
        found = {**self._closed, **files}
        return {name: why for name, why in sorted(found.items()) if name == below or name.startswith(inside)}

    def caps(self) -> list[Tree]:
        """The trees whose cap was reached since the last call."""
        found, self._caps = self._caps, []
        return found

    def take(self, *, events: bool, room: int = CHUNK) -> tuple[dict[str, Any], bytes] | None:
        """The next bytes of the files that are events, or of those that are bulk; None where nothing is to be sent.

        ``room``: how many at most.
        """
        queue = self._events if events else self._rest
        while tail := queue.take():
            frame = self._read(tail, min(room, CHUNK))
            if frame:
                return frame
        return None

    def close(self) -> None:
        self._watcher.close()

    def _see(self, tree: Tree, path: str, name: str, *, event: bool, sure: bool = False) -> None:
        try:
            status = os.lstat(path)
        except OSError as error:
            if error.errno not in file_trees.GONE:
                self._closed[name] = file_trees.why(error)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        tail = self._tails.get(name)
        if tail is None:
            tail = self._tails[name] = Tail(name=name, path=path, tree=tree, event=event)
        if tail.fresh:
            self._first(tail, status)
        elif _other(tail, status) or (_changed(tail, status) and (sure or tail.doubt == status.st_mtime_ns)):
            self._begin(tail)
        elif _changed(tail, status):  # or an append is seen in its middle: the next look tells
            tail.doubt = status.st_mtime_ns
            return
        tail.stamp, tail.size = (status.st_ino, status.st_mtime_ns), status.st_size
        if tail.size > tail.offset or not tail.sent:
            self._again(tail)

    def _first(self, tail: Tail, status: os.stat_result) -> None:
        """Where to begin with a file: behind what the other side has, if that is what is here."""
        size, digest = self._have.pop(tail.name, (-1, ""))
        whole = size == status.st_size or not tail.name.endswith(REPLACED)
        if 0 <= size <= status.st_size and whole and end_hash(tail.path, size) == digest:
            tail.offset, tail.sent = size, True
            self._count(tail, size)
        tail.fresh = False

    def _begin(self, tail: Tail) -> None:
        """From its beginning, whatever of it was sent."""
        self._count(tail, -tail.offset)
        tail.offset, tail.sent, tail.capped, tail.last = 0, False, False, b""

    def _again(self, tail: Tail) -> None:
        (self._events if tail.event else self._rest).add(tail)

    def _read(self, tail: Tail, room: int) -> tuple[dict[str, Any], bytes] | None:
        room = room if tail.event else min(room, tail.tree.cap - self._bulk.get(tail.tree.path, 0))
        if room <= 0:
            self._cap(tail)
            return None
        try:
            data, status = _range(tail.path, tail.offset - len(tail.last), room + len(tail.last))
        except OSError as error:
            tail.problem = file_trees.why(error)  # nobody waits for it; every look tries it again
            if error.errno in file_trees.GONE:
                self._tails.pop(tail.name, None)
            return None
        tail.problem = ""
        known, data, size = data[: len(tail.last)], data[len(tail.last) :], status.st_size
        if known != tail.last:  # another file goes on behind what was sent of this one
            self._begin(tail)
            self._again(tail)
            return None
        if not data and tail.sent:
            return None
        header = {"file": tail.name, "node": tail.tree.node, "at": tail.offset}
        tail.offset, tail.sent = tail.offset + len(data), True
        tail.size = max(tail.size, size)
        self._count(tail, len(data))
        if _appended(tail):
            tail.last, tail.stamp = (known + data)[-TAIL:], (status.st_ino, status.st_mtime_ns)
        if tail.offset >= size:
            header["end"] = True
        else:
            self._again(tail)
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


def _range(path: str, offset: int, room: int) -> tuple[bytes, os.stat_result]:
    """(bytes from an offset, what the file is after they were read)."""
    fd = plain_files.opened(path)
    try:
        return os.pread(fd, room, offset), os.fstat(fd)
    finally:
        os.close(fd)


def _other(tail: Tail, status: os.stat_result) -> bool:
    """Is this another file than the one that was sent, or one that was written anew?"""
    inode, changed = tail.stamp
    anew = tail.name.endswith(REPLACED) and changed != status.st_mtime_ns
    return status.st_ino != inode or status.st_size < tail.offset or anew


def _changed(tail: Tail, status: os.stat_result) -> bool:
    """Was bulk that is sent as far as it goes changed, without growing?"""
    sent = _appended(tail) and tail.sent and tail.offset == status.st_size
    return sent and status.st_mtime_ns != tail.stamp[1]


def _appended(tail: Tail) -> bool:
    """Is it bulk that grows, as far as anybody knows? Events always do."""
    return not tail.event and not tail.name.endswith(REPLACED)


def _due(tail: Tail) -> bool:
    return tail.ready and not tail.problem
