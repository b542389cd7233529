"""The journal: the only writer of a run's history on disk; it repairs a torn tail and drops duplicates."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Self

from ..core.documents import decoder
from ..model import codec, vaulted
from ..model.errors import InfrastructureError
from ..model.event import Clock, Event, History
from ..system import plain_files
from . import paths


class JournalError(InfrastructureError):
    """The journal cannot be written: no command may be issued without a record."""


def read(path: Path) -> History:
    """The complete lines of a history. Raises InfrastructureError for a line that is not an event."""
    return History(tuple(event for event, _ in _events(path)) if path.exists() else ())


class Journal:
    """The only writer of a run's history. Open it as a context manager; a second writer is refused."""

    def __init__(self, path: Path, secrets: Sequence[str] = ()) -> None:
        """Lock the file, repair its tail and read it. ``secrets``: values that are not written.

        Raises InfrastructureError when another writer holds the lock.
        """
        self.path = path
        self._secrets = tuple(secrets)
        self._fd = self._locked(path)
        try:
            self.events, whole = [], 0
            for event, length in _events(path):
                self.events.append(event)
                whole += length
            if not whole:
                plain_files.sync(path.parent)
            self.torn_bytes = os.fstat(self._fd).st_size - whole
            if self.torn_bytes:
                os.ftruncate(self._fd, whole)
        except BaseException:
            os.close(self._fd)
            raise
        self._identities = {event.source.identity for event in self.events}
        self._own = max((e.source.n for e in self.events if e.source.writer == "ctl"), default=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @property
    def history(self) -> History:
        return History(tuple(self.events))

    def append(self, event: Event) -> Event | None:
        """Write ``event`` with its ``seq`` and ``t``; None if an event with this identity is already recorded.

        The controller's own events have the number 0 and are numbered here. Raises JournalError.
        """
        if event.source.writer == "ctl":
            event = replace(event, source=replace(event.source, n=self._own + 1))
        if event.source.identity in self._identities:
            return None
        recorded = replace(event, seq=len(self.events) + 1, t=self._seconds(event))
        self._write(recorded)
        self._identities.add(recorded.source.identity)
        self.events.append(recorded)
        if recorded.source.writer == "ctl":
            self._own = recorded.source.n
        return recorded

    def sync(self) -> None:
        """Force the written lines to the disk."""
        try:
            os.fsync(self._fd)
        except OSError as error:
            raise self._unwritable(error) from error

    def _seconds(self, event: Event) -> float:
        """Seconds since the run began: by the writer's clock on the controller's boot, else since the last event."""
        if not self.events:
            return 0.0
        start = self.events[0].at
        if event.at.boot == start.boot:
            return round(event.at.mono - start.mono, 6)
        return self.events[-1].t

    def _write(self, event: Event) -> None:
        content = codec.plain(event)
        content["value"] = vaulted.hide(content["value"], self._secrets)
        text = json.dumps(content, separators=(",", ":"), ensure_ascii=False)
        line = f"{text}\n".encode(errors="replace")
        try:
            written = os.write(self._fd, line)
            while written < len(line):
                written += os.write(self._fd, line[written:])
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"{self.path}: the journal cannot be written: {error.strerror}",
            hint=f"free space or restore the directory, then: ccbed resume {self.path.parent}",
        )

    @staticmethod
    def _locked(path: Path) -> int:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise InfrastructureError(
                f"{path}: another orchestrator is writing this history", hint=f"ccbed watch {path.parent}"
            ) from None
        return fd


def _events(path: Path) -> Iterator[tuple[Event, int]]:
    """Each event and the bytes of its line. The torn tail is left out."""
    for number, line in enumerate(_whole(paths.lines(path)), start=1):
        try:
            yield decoder.event(line), len(line)
        except decoder.DocumentError as error:
            raise InfrastructureError(
                f"{path}:{number}: not an event of a history ({error})",
                hint="the file was changed after it was written; restore it from the bundle's copy",
            ) from None


def _whole(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The lines but a torn last one: bytes after the last newline, or a last line that is not a JSON object."""
    last = next(lines, b"")
    for line in lines:
        yield last
        last = line
    with suppress(decoder.DocumentError):
        if last.endswith(b"\n"):
            decoder.parse(last)
            yield last


@cache
def boot() -> str:
    """The boot id of this machine: CLOCK_MONOTONIC can be compared within one boot only."""
    from ..system import host_facts

    return host_facts.boot_id()


def now() -> Clock:
    return Clock(boot=boot(), mono=time.monotonic(), wall=time.time())
