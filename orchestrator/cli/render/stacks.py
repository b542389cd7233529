"""Stacks that ``faulthandler`` writes into the log of a rank, shortened for the terminal to the frames of the user's program."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.* \(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line \S+ in ')
#: Outside of these frames the rank's process belongs to ccbed; frames of the watcher lie between those of the user.
_RUNTIME = re.compile(r"payloads/\w+/orchestrator/(?:rank/runtime|workloads)/|\.pyz/")
_OWN = re.compile(r"payloads/\w+/orchestrator/|\.pyz/")
_LIBRARY = re.compile(r"site-packages/|dist-packages/|/lib/python3|<frozen|<string>")


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
        """Lines that can be printed now."""
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
