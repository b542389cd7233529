"""Tails of files for the controller: which files of a host are mirrored, and which bytes go next, events before bulk."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ...model.frozen import dataclass, field
from ...system import inotify, plain_files

#: Most bytes of a file in one frame. An event may have to wait for one frame of bulk.
CHUNK = 256 << 10
#: How many bytes before the end of a file are compared with the mirror.
TAIL = 4096
#: Files that are rewritten rather than appended to: any change sends the whole file.
REPLACED = (".json", ".xml", ".txt")
#: Entries of a node's directory that are not its output. Hidden names are temporary files.
SKIPPED = frozenset({"heartbeat", "lock", "inbox", "done", "__pycache__"})
#: The errors of a path that no longer exists.
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory to mirror; ``path`` is relative. ``deep``: with its subdirectories. ``cap``: the limit of bulk in bytes.

    Its own *.jsonl files are events: they are watched, and go first. Everything else is bulk, which is polled.
    """

    path: str
    node: str
    deep: bool = False
    cap: int = 1 << 40


@dataclass(slots=True, kw_only=True)
class Tail:
    """One file, and how much of it was sent. ``stamp``: its last (inode, modification time).

    ``last``: the last bytes that were sent of bulk. ``doubt``: a modification time that came without a change of size.
    ``fresh``: where to begin is not known yet. ``problem``: why it cannot be read.
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
    """The files with bytes to send, in turns."""

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
    """Tails trees below ``root``. ``poll`` scans them, ``read_inotify`` handles reports, ``take`` returns the next bytes."""

    def __init__(self, root: str) -> None:
        self._root = os.path.realpath(root)
        self._trees: dict[str, Tree] = {}
        self._mirrored: dict[str, tuple[int, str]] = {}
        self._tails: dict[str, Tail] = {}
        self._bulk: dict[str, int] = {}
        self._event_queue, self._bulk_queue = _Queue(), _Queue()
        self._unreadable: dict[str, str] = {}
        self._watcher = inotify.Watcher()

    @property
    def fd(self) -> int:
        return self._watcher.fd

    def follow(self, trees: Iterable[Tree], mirrored: Mapping[str, tuple[int, str]]) -> None:
        """Add trees. ``mirrored``: what the controller has of files, as (size, hash of the end)."""
        self._mirrored.update(mirrored)
        for tree in trees:
            self._trees.setdefault(tree.path, tree)
        self.poll()

    def restart(self, name: str, mirrored: Mapping[str, tuple[int, str]]) -> None:
        """Send a file again, from the end of what the controller has of it, if that matches the file."""
        if tail := self._tails.get(name):
            self._mirrored.pop(name, None)
            self._mirrored.update(mirrored)
            self._rewind(tail)
            tail.fresh = True
            self._update(tail.tree, tail.path, name, event=tail.event)

    def poll(self, *, is_final: bool = False) -> None:
        """Scan all trees: for bulk, and for file systems without inotify, such as network file systems.

        ``is_final``: the writers have ended, so a file that changed without a change of size was rewritten.
        """
        self._unreadable = {}
        for tree in self._trees.values():
            top = os.path.join(self._root, tree.path)
            if os.path.realpath(top) != top:
                self._unreadable[tree.path] = "a link, which is not followed"
                continue
            self._watcher.add_watch(top, inotify.MODIFY | inotify.CREATE | inotify.MOVED_TO)
            for path, name in _list_files(top, tree, self._unreadable):
                self._update(tree, path, name, event=_is_event(tree, name), is_final=is_final)

    def read_inotify(self) -> None:
        """Handle the changes that inotify has reported."""
        changes, is_incomplete = self._watcher.read_changes()
        if is_incomplete:
            self.poll()
        by_top = {os.path.join(self._root, tree.path): tree for tree in self._trees.values()}
        for directory, file in changes:
            tree = by_top.get(directory)
            if tree and file and _is_mirrored(file):
                name = f"{tree.path}/{file}"
                self._update(tree, os.path.join(directory, file), name, event=_is_event(tree, name))

    def sizes(self, below: str) -> dict[str, int]:
        """The files below a path, with their last known sizes."""
        inside = below.rstrip("/") + "/" if below else ""
        return {name: tail.size for name, tail in self._tails.items() if name == below or name.startswith(inside)}

    def events(self) -> dict[str, int]:
        """The files of events, with their last known sizes."""
        return {name: tail.size for name, tail in self._tails.items() if tail.event}

    def is_behind(self, sizes: Mapping[str, int]) -> bool:
        """Is any of these files not sent up to its size yet?"""
        entries = ((self._tails.get(name), size) for name, size in sizes.items())
        return any(
            tail and tail.ready and not tail.problem and (tail.offset < size or not tail.sent) for tail, size in entries
        )

    def capped(self, below: str) -> list[str]:
        """The files of a path that reached the cap of their tree."""
        inside = f"{below}/"
        return [name for name, tail in self._tails.items() if tail.capped and f"{name}/".startswith(inside)]

    def unreadable(self, below: str) -> dict[str, str]:
        """The files and directories below a path that exist and cannot be read, with the reason."""
        inside = below.rstrip("/") + "/" if below else ""
        files = {name: tail.problem for name, tail in self._tails.items() if tail.problem and _exists(tail.path)}
        reasons = {**self._unreadable, **files}
        return {name: reason for name, reason in sorted(reasons.items()) if name == below or name.startswith(inside)}

    def take(self, *, events: bool, limit: int = CHUNK) -> tuple[dict[str, Any], bytes] | None:
        """The next frame of events, or of bulk, with at most ``limit`` bytes; None if nothing is to be sent."""
        queue = self._event_queue if events else self._bulk_queue
        while tail := queue.take():
            frame = self._read(tail, min(limit, CHUNK))
            if frame:
                return frame
        return None

    def close(self) -> None:
        self._watcher.close()

    def _update(self, tree: Tree, path: str, name: str, *, event: bool, is_final: bool = False) -> None:
        try:
            status = os.lstat(path)
        except OSError as error:
            if error.errno not in ABSENT:
                self._unreadable[name] = _reason(error)
            return
        if not stat.S_ISREG(status.st_mode):
            return
        tail = self._tails.get(name)
        if tail is None:
            tail = self._tails[name] = Tail(name=name, path=path, tree=tree, event=event)
        if tail.fresh:
            self._begin(tail, status)
        elif _is_other_file(tail, status) or (
            _is_rewritten(tail, status) and (is_final or tail.doubt == status.st_mtime_ns)
        ):
            self._rewind(tail)
        elif _is_rewritten(tail, status):  # or an append is in progress: the next poll decides
            tail.doubt = status.st_mtime_ns
            return
        tail.stamp, tail.size = (status.st_ino, status.st_mtime_ns), status.st_size
        if tail.size > tail.offset or not tail.sent:
            self._enqueue(tail)

    def _begin(self, tail: Tail, status: os.stat_result) -> None:
        """Begin with a file behind what the controller has, if that matches the file."""
        size, digest = self._mirrored.pop(tail.name, (-1, ""))
        is_whole = size == status.st_size or not tail.name.endswith(REPLACED)
        if 0 <= size <= status.st_size and is_whole and end_hash(tail.path, size) == digest:
            tail.offset, tail.sent = size, True
            self._count_bulk(tail, size)
        tail.fresh = False

    def _rewind(self, tail: Tail) -> None:
        self._count_bulk(tail, -tail.offset)
        tail.offset, tail.sent, tail.capped, tail.last = 0, False, False, b""

    def _enqueue(self, tail: Tail) -> None:
        (self._event_queue if tail.event else self._bulk_queue).add(tail)

    def _read(self, tail: Tail, limit: int) -> tuple[dict[str, Any], bytes] | None:
        limit = limit if tail.event else min(limit, tail.tree.cap - self._bulk.get(tail.tree.path, 0))
        if limit <= 0:
            tail.capped = True
            return None
        try:
            data, status = _read_range(tail.path, tail.offset - len(tail.last), limit + len(tail.last))
        except OSError as error:
            tail.problem = _reason(error)  # every poll tries it again
            if error.errno in ABSENT:
                self._tails.pop(tail.name, None)
            return None
        tail.problem = ""
        known, data, size = data[: len(tail.last)], data[len(tail.last) :], status.st_size
        if known != tail.last:  # another file has taken the name
            self._rewind(tail)
            self._enqueue(tail)
            return None
        if not data and tail.sent:
            return None
        header = {"file": tail.name, "node": tail.tree.node, "at": tail.offset}
        tail.offset, tail.sent = tail.offset + len(data), True
        tail.size = max(tail.size, size)
        self._count_bulk(tail, len(data))
        if _is_appended(tail):
            tail.last, tail.stamp = (known + data)[-TAIL:], (status.st_ino, status.st_mtime_ns)
        if tail.offset >= size:
            header["end"] = True
        else:
            self._enqueue(tail)
        return header, data

    def _count_bulk(self, tail: Tail, size: int) -> None:
        if not tail.event:
            self._bulk[tail.tree.path] = self._bulk.get(tail.tree.path, 0) + size


def end_hash(path: str, size: int) -> str:
    """A short hash of the last bytes before ``size``; empty if the file cannot be read that far."""
    begin = max(0, size - TAIL)
    try:
        data, _ = _read_range(path, begin, size - begin)
    except OSError:
        return ""
    return hashlib.sha256(data).hexdigest()[:16] if len(data) == size - begin else ""


def _read_range(path: str, offset: int, limit: int) -> tuple[bytes, os.stat_result]:
    """(bytes from an offset, status of the file after they were read)."""
    fd = plain_files.open_file(path)
    try:
        return os.pread(fd, limit, offset), os.fstat(fd)
    finally:
        os.close(fd)


def _is_other_file(tail: Tail, status: os.stat_result) -> bool:
    """Has another file taken the name, or was the file replaced?"""
    inode, changed = tail.stamp
    is_replaced = tail.name.endswith(REPLACED) and changed != status.st_mtime_ns
    return status.st_ino != inode or status.st_size < tail.offset or is_replaced


def _is_rewritten(tail: Tail, status: os.stat_result) -> bool:
    """Was bulk that is sent completely changed without growing?"""
    is_sent = _is_appended(tail) and tail.sent and tail.offset == status.st_size
    return is_sent and status.st_mtime_ns != tail.stamp[1]


def _is_appended(tail: Tail) -> bool:
    """Is it bulk that should only grow? Events always do."""
    return not tail.event and not tail.name.endswith(REPLACED)


def _is_event(tree: Tree, name: str) -> bool:
    return name.endswith(".jsonl") and "/" not in name[len(tree.path) + 1 :]


def _is_mirrored(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED


def _list_files(top: str, tree: Tree, unreadable: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(path, relative name) of the files in a tree, without links. ``unreadable`` receives directories that cannot be read."""
    pending = [(top, tree.path)]
    while pending:
        directory, name = pending.pop()
        try:
            with os.scandir(directory) as entries:
                mirrored = [entry for entry in entries if _is_mirrored(entry.name)]
        except OSError as error:
            if error.errno not in ABSENT:
                unreadable[name] = _reason(error)
            continue
        for entry in mirrored:
            if entry.is_file(follow_symlinks=False):
                yield entry.path, f"{name}/{entry.name}"
            elif tree.deep and entry.is_dir(follow_symlinks=False):
                pending.append((entry.path, f"{name}/{entry.name}"))


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in ABSENT
    return True


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
