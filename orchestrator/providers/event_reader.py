"""Reads growing event files by byte offset: whole lines only, woken by inotify, resumable from any cursor."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.documents import decoder
from ..model.bed import BedSpec, Machine
from ..model.event import Event
from ..model.provider import Cursors
from ..node.oslayer import event_loop
from ..system import inotify, plain_files
from .bed_commands import BED

#: The most bytes read from one file at once; the next poll reads the rest.
CHUNK = 4 << 20
#: All files are read after this time, in seconds, in case the kernel did not report a change, but not in more than this
#: share of the time: the files of a thousand hosts take longer than a millisecond. After ``LONGEST_SCAN_S`` they are in any case.
SCAN_S, SCAN_SHARE = 0.25, 0.02
LONGEST_SCAN_S = 5.0
#: A poll waits no longer where the kernel reports nothing.
UNWATCHED_S = 0.05
#: Writers that serve runs and the bed.
KEEPERS = ("keeper", "outside")
EVENTS = "events.jsonl"
#: What can be done to every node.
CAPABILITIES = frozenset({"kill", "limit", "pause", "signal", "stop"})


class Follower:
    """Watches files and directories below ``root``; cursors name files relative to it.

    A poll reads the files that inotify has reported, and all of them every ``SCAN_S`` or ``SCAN_SHARE``; without inotify (a user
    has 128 instances) all of them, after ``UNWATCHED_S``.
    """

    def __init__(self, root: Path, run: str, directories: Iterable[Path], files: Iterable[Path]) -> None:
        self._root = root
        self._run = run
        self._directories = tuple(directories)
        self._files = tuple(files)
        self._watcher = inotify.Watcher()
        accepted = [
            *(self._watcher.add_watch(str(path), inotify.MODIFY | inotify.CREATE | inotify.MOVED_TO) for path in self._directories),
            *(self._watcher.add_watch(str(path), inotify.MODIFY) for path in self._files),
        ]  # fmt: skip
        self._is_watched = all(accepted)
        #: Files that may have more lines, and what was returned last.
        self._unread: set[str] = set()
        self._returned: Cursors | None = None
        self._scan_at = 0.0
        self._is_scanning = False

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[list[Event], Cursors]:
        """Events after the cursors, ordered by their writers' clocks; waits for the first."""
        events, after = self._read(cursors)
        if not events and timeout_s > 0:
            event_loop.wait_readable(self._watcher.fd, timeout_s if self._is_watched else min(timeout_s, UNWATCHED_S))
            events, after = self._read(after)
        return in_order(events), after

    def close(self) -> None:
        """Closes in the background: the kernel takes ten milliseconds and more to end the watches."""
        try:
            threading.Thread(target=self._watcher.close, daemon=True, name="ccbed-unwatch").start()
        except RuntimeError:  # no thread can start
            self._watcher.close()

    def _read(self, cursors: Cursors) -> tuple[list[Event], Cursors]:
        after = dict(cursors)
        events: list[Event] = []
        begin = time.monotonic()
        for path in self._changed(cursors):
            name = os.path.relpath(path, self._root)
            lines, after[name] = whole_lines(path, after.get(name, 0))
            events += [event for line in lines for event in decode(line, self._run)]
            if lines:
                self._unread.add(path)
        self._returned = after
        if self._is_scanning:
            took_s = time.monotonic() - begin
            pause_s = min(LONGEST_SCAN_S, max(SCAN_S, took_s / SCAN_SHARE))
            self._scan_at, self._is_scanning = time.monotonic() + pause_s, False
        return events, after

    def _changed(self, cursors: Cursors) -> set[str]:
        """The files that may have lines after the cursors."""
        changes, is_incomplete = self._watcher.read_changes()
        changed = {path for path in ("/".join(change).rstrip("/") for change in changes) if _is_log(path)}
        is_resumed = self._returned is None or cursors != self._returned
        if is_resumed or is_incomplete or not self._is_watched or time.monotonic() >= self._scan_at:
            self._is_scanning = True
            changed.update(self._paths())
        changed, self._unread = changed | self._unread, set()
        return changed

    def _paths(self) -> Iterator[str]:
        yield from map(str, self._files)
        for directory in self._directories:
            with contextlib.suppress(OSError):
                yield from filter(_is_log, (f"{directory}/{name}" for name in os.listdir(directory)))


class BoundProvider:
    """A provider that is bound to a run of a bed, or to the bed, and reads the events of that."""

    def __init__(self) -> None:
        self._bed: BedSpec | None = None
        self._run = BED
        self._follower: Follower | None = None

    def capabilities(self, host: str) -> frozenset[str]:
        return CAPABILITIES

    def machines(self, bed: BedSpec) -> Mapping[str, Machine]:
        return {}

    def _watch(self, bed: BedSpec, run: str) -> None:
        """Begin to mirror what other hosts write for the run."""

    def _bind(self, bed: BedSpec, run: str, keepers: Iterable[str]) -> Cursors:
        """Bind to a run. Events of the keepers are read from now on, the run's own files from their beginning.

        Outside of runs the nodes' own files are read from now on. ``keepers``: their directories below that of the bed.
        """
        self._unbind()
        self._bed, self._run = bed, run
        workdir = Path(bed.workdir)
        nodes = [workdir / "nodes" / node.name for node in bed.all_nodes]
        logs = [path / EVENTS for path in (*map(workdir.joinpath, keepers), *(nodes if run == BED else ()))]
        directories = [] if run == BED else [node / "runs" / run for node in nodes]
        for directory in (*(log.parent for log in logs), *directories):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._watch(bed, run)
        for log in logs:
            log.touch(mode=0o600)
        self._follower = Follower(workdir, run, directories, logs)
        return {str(log.relative_to(workdir)): log.stat().st_size for log in logs}

    def _unbind(self) -> None:
        if self._follower:
            self._follower.close()
        self._follower, self._run = None, BED

    @property
    def _bound(self) -> BedSpec:
        if self._bed is None:
            raise RuntimeError("open() must be called first")
        return self._bed

    def poll(self, cursors: Cursors, timeout_s: float) -> tuple[Sequence[Event], Cursors]:
        if self._follower is None:
            raise RuntimeError("open() must be called before poll()")
        return self._follower.poll(cursors, timeout_s)


def _is_log(path: str) -> bool:
    return path.endswith(".jsonl")


def in_order(events: Iterable[Event]) -> list[Event]:
    """Order by the clocks of the writers. Clocks of different boots cannot be compared, so events of one boot stay together."""
    boots: dict[str, list[Event]] = {}
    for event in events:
        boots.setdefault(event.at.boot, []).append(event)
    return [event for group in boots.values() for event in sorted(group, key=lambda event: event.at.mono)]


def whole_lines(path: str | Path, offset: int) -> tuple[list[bytes], int]:
    """The whole lines of a file from an offset, and the offset after the last of them."""
    try:
        with open(plain_files.open_file(path), "rb") as file:
            if file.seek(0, os.SEEK_END) <= offset:
                return [], offset
            file.seek(offset)
            data = file.read(CHUNK)
    except OSError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), offset + end


def decode(line: bytes, run: str) -> list[Event]:
    """The event of a line; none if it belongs to another run or is no event (a torn write of a killed writer).

    A note of a keeper without a run (a node's exit) belongs to every run; an outcome without one belongs to the bed.
    """
    try:
        content: Any = decoder.parse(line)
        event = decoder.as_event(content)
        answers_bed = event.source.writer in KEEPERS and event.type != "note"
        return [event] if content.get("run", BED if answers_bed else run) == run else []
    except decoder.DocumentError:
        return []
