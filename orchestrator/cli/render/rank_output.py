"""The output of ranks: printed while they run, and copied into a directory of the user as under torchrun."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from ...model.frozen import dataclass, field
from .terminal import Terminal

ALL, NONE = "all", "none"
POLL_S = 0.1
#: Bytes that are read at once, and of a log before the other ranks have their turn.
_BLOCK, _TURN = 1 << 20, 4 << 20
#: A terminal that is so many bytes behind skips lines, up to so many bytes before the end.
_BEHIND, _KEPT = 8 << 20, 1 << 16
#: The line that ccbed writes at the beginning of a log.
_HEAD = b"ccbed: run "
_LOG = re.compile(r"i\d+-e(?P<epoch>\d+)/rank-(?P<rank>\d+)\.log")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line \S+ in ')
#: Outside of these frames the rank's process belongs to ccbed; frames of the watcher lie between those of the user.
_RUNTIME = re.compile(r"payloads/\w+/orchestrator/(?:rank/runtime|workloads)/|\.pyz/")
_OWN = re.compile(r"payloads/\w+/orchestrator/|\.pyz/")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|<frozen|<string>")


@dataclass(kw_only=True)
class _Log:
    """A log that grows. ``offset``: of the bytes that are printed; ``prefix``: of each line."""

    path: Path
    prefix: str
    stacks: StackFilter
    offset: int = 0
    rest: bytes = b""


@dataclass(kw_only=True)
class Tee:
    """Prints new lines of ranks on the terminal. ``which``: ``all``, ``none`` or the number of a rank.

    ``nodes``: the directory of the nodes on this machine; logs of other machines are read after the run.
    ``hide`` replaces secrets; ``lock``: held while a line is printed.
    """

    terminal: Terminal
    nodes: Path
    which: str
    hide: Callable[[str], str]
    lock: threading.RLock
    _logs: dict[Path, _Log] = field(default_factory=dict)
    _run: str = ""
    _thread: threading.Thread | None = None
    _ended: threading.Event = field(default_factory=threading.Event)

    def begin(self, run: str) -> None:
        """Print the output of this run from now on."""
        with self.lock:
            self._run = run
        if self.which != NONE and self._thread is None:
            self._thread = threading.Thread(target=self._poll, name="tee", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._print(is_last=True)

    def _find_logs(self) -> None:
        for path in sorted(self.nodes.glob(f"*/runs/{self._run}/i*-e*/rank-*.log")) if self._run else ():
            match = _LOG.fullmatch("/".join(path.parts[-2:]))
            if match and self.which in (ALL, match["rank"]) and path not in self._logs:
                node = path.relative_to(self.nodes).parts[0]
                prefix = f"[{node}/{match['rank']}] " if self.which == ALL else ""
                stacks = StackFilter(rank=match["rank"], log=f"nodes/{node}/{'/'.join(path.parts[-2:])}")
                self._logs[path] = _Log(path=path, prefix=prefix, stacks=stacks)

    def _poll(self) -> None:
        while not self._ended.wait(POLL_S):
            self._print()

    def _print(self, *, is_last: bool = False) -> None:
        with self.lock, self.terminal.surviving():
            self._find_logs()
            for log in self._logs.values():
                for lines in _new_lines(log, is_last=is_last, skips=self.terminal.live):
                    self.terminal.lines(log.prefix + self.hide(line) for line in lines)


def _new_lines(log: _Log, *, is_last: bool, skips: bool) -> Iterator[list[str]]:
    """The lines since the last call, some at a time, so that memory does not grow with the output."""
    try:
        with log.path.open("rb") as file:
            if skips and os.fstat(file.fileno()).st_size - log.offset > _BEHIND:
                yield [_skip(log, file)]
            file.seek(log.offset)
            until = log.offset + _TURN
            while (is_last or log.offset < until) and (added := file.read(_BLOCK)):
                log.offset += len(added)
                *lines, log.rest = (log.rest + added).split(b"\n")
                yield [line for text in lines for line in _shown(log, text)]
    except OSError:
        pass  # the node is gone, or was started again
    if is_last:
        last, log.rest = log.rest, b""
        yield [*(_shown(log, last) if last else ()), *log.stacks.flush()]


def _shown(log: _Log, line: bytes) -> list[str]:
    return [] if line.startswith(_HEAD) else log.stacks.feed(line.decode(errors="replace"))


def _skip(log: _Log, file: BinaryIO) -> str:
    """Leave out all lines up to the last ones, and say how many."""
    until = os.fstat(file.fileno()).st_size - _KEPT
    file.seek(log.offset)
    left_out = 0
    while log.offset < until and (block := file.read(min(_BLOCK, until - log.offset))):
        left_out += block.count(b"\n")
        log.offset += len(block)
    log.offset += len(file.readline(_BLOCK))
    log.rest = b""
    return f"ccbed: {left_out + 1:,} lines are not shown: they come too fast for the terminal; see {log.stacks.log} of the bundle"


def copy_logs(run: Path, directory: Path, note: Callable[[str], None]) -> None:
    """Copy the logs of a run to ``DIRECTORY/<run>/attempt_<n>/<rank>/output.log``. What fails is a note: the run has ended."""
    try:
        _copy_logs(run, directory)
    except OSError as error:
        note(f"--log-dir: the output was not copied: {error}; it is in {run / 'nodes'}")


def _copy_logs(run: Path, directory: Path) -> None:
    for path in sorted((run / "nodes").glob("*/i*-e*/rank-*.log")):
        match = _LOG.fullmatch("/".join(path.parts[-2:]))
        if match and path.is_file() and not path.is_symlink():
            target = directory / run.name / f"attempt_{match['epoch']}" / match["rank"]
            target.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / "output.log")


# --- stacks that ``faulthandler`` writes into the log of a rank, shortened for the terminal to the frames of the user's program ---


@dataclass(kw_only=True)
class StackFilter:
    """Passes lines of a log on, except frames of ccbed and threads without code of the user.

    ``log``: where all stacks are. A stack that did not change is passed on once.
    """

    rank: str
    log: str
    _thread: list[str] = field(default_factory=list)
    _printed: set[tuple[str, ...]] = field(default_factory=set)

    def feed(self, line: str) -> list[str]:
        if _THREAD.match(line):
            ready = self.flush()
            self._thread = [line]
            return ready
        if self._thread and line.startswith("  "):
            self._thread.append(line)
            return []
        if self._thread:
            return [*self.flush(), *filter(None, [line])]
        return [line]

    def flush(self) -> list[str]:
        """The shortened stack of the thread that was read last; nothing if it has no code of the user."""
        thread, self._thread = self._thread, []
        frames = tuple(_user_frames(thread[1:]))
        if not frames or frames in self._printed:
            return []
        self._printed.add(frames)
        return [f"stack of rank {self.rank}, innermost call first (all stacks: {self.log} in the bundle):", *frames]


def _user_frames(lines: list[str]) -> list[str]:
    """The frames from the innermost call to the user's outermost one; none if the thread runs no code of the user."""
    files = [match["file"] if (match := _FRAME.match(line)) else "" for line in lines]
    end = next((index for index, file in enumerate(files) if _RUNTIME.search(file)), len(files))
    kept = [(line, file) for line, file in zip(lines[:end], files[:end], strict=True) if not _OWN.search(file)]
    is_main = end < len(files)
    has_user = any(file and not _LIBRARY.search(file) for _, file in kept)
    return [line for line, _ in kept] if is_main or has_user else []
