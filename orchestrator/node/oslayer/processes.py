"""Processes as /proc shows them: whose they are, whether they live, and how they are ended (by pid and start time)."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from . import process_tag as marks

#: States in which a process is no longer one: zombie, dead.
GONE = "ZXx"
STOPPED = "T"
#: In the kernel, not to be interrupted.
WAITING = "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process. ``start`` is field 22 of /proc/<pid>/stat (clock ticks since boot): with the pid it is an identity."""

    pid: int
    ppid: int
    session: int
    start: int
    state: str
    mark: str = ""


def parse_stat(text: bytes) -> Process:
    """A Process from the content of /proc/<pid>/stat; the command's name in it may hold spaces and brackets."""
    head, _, tail = text.rpartition(b")")
    fields = tail.split()
    return Process(
        pid=int(head.split(b" ", 1)[0]),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        session=int(fields[3]),
        start=int(fields[19]),
    )


def find(pid: int) -> Process | None:
    """The process with that pid, gone or not; None where there is none. Its mark is not read."""
    text = _read(f"/proc/{pid}/stat", 1024)
    return parse_stat(text) if text else None


def alive(pid: int, start: int) -> bool:
    """Does this very process (not a later one with its pid) still run?"""
    found = find(pid)
    return found is not None and found.start == start and found.state not in GONE


def inner(pid: int) -> int:
    """The pid of a process in its own pid namespace; 0 where it is gone."""
    for line in _read(f"/proc/{pid}/status", 4096).splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return 0


def start_of(pid: int) -> int:
    """The start time of a process; 0 where it is gone."""
    found = find(pid)
    return found.start if found else 0


def scan(since: int = 0) -> list[Process]:
    """All processes that are alive. The mark is read for those that started at ``since`` or later."""
    return [_marked(one) if one.start >= since else one for one in _all() if one.state not in GONE]


def sessions(leaders: Iterable[tuple[int, int]]) -> set[int]:
    """The pids of (pid, start time) that still are who they were, zombies included: their sessions are theirs.

    A leader that is reaped counts no more: its number may be another's by now.
    """
    return {pid for pid, start in leaders if start_of(pid) == start}


def select(
    processes: Iterable[Process], prefix: str, own_sessions: Collection[int] = (), spare: Collection[int] = ()
) -> list[Process]:
    """Those that belong to a node: by the beginning of their mark, by session, or by descent from one of these.

    ``spare``: pids to leave out, with this process's own.
    """
    everyone, roots = list(processes), set(own_sessions)
    own = {one.pid for one in everyone if one.mark.startswith(prefix) or {one.pid, one.session} & roots}
    grown = True
    while grown:
        more = {one.pid for one in everyone if one.ppid in own and one.ppid > 1} - own
        own |= more
        grown = bool(more)
    return [one for one in everyone if one.pid in own and one.pid not in spare and one.pid != os.getpid()]


def descendants(pid: int) -> list[Process]:
    """The living processes below ``pid``, without the whole of /proc being read where the kernel lists children."""
    path = f"/proc/{pid}/task/{pid}/children"
    if not os.path.exists(path):
        return _descendants_by_scan(pid)
    found: list[Process] = []
    pending = [pid]
    while pending:
        for child in _children(pending.pop()):
            process = find(child)
            pending.append(child)
            if process and process.state not in GONE:
                found.append(process)
    return found


def send(processes: Iterable[Process], number: int) -> list[int]:
    """Send a signal to exactly these processes; the pids that it reached."""
    return [one.pid for one in processes if _send(one, number)]


def kill(processes: Iterable[Process]) -> list[int]:
    return send(processes, signal.SIGKILL)


def threads() -> int:
    """How many threads this process has, by the kernel's count."""
    return len(os.listdir("/proc/self/task"))


def memory(pid: int) -> tuple[float, float]:
    """(own, shared) resident MiB of a process: pages that nobody else maps, and pages that others map as well."""
    fields = dict(_rollup(pid))
    own = fields.get("Private_Clean", 0) + fields.get("Private_Dirty", 0)
    return own / 1024, max(0, fields.get("Rss", 0) - own) / 1024


def _rollup(pid: int) -> Iterator[tuple[str, int]]:
    for line in _read(f"/proc/{pid}/smaps_rollup", 4096).decode().splitlines()[1:]:
        name, _, rest = line.partition(":")
        yield name, int(rest.split()[0])


def _send(process: Process, number: int) -> bool:
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if start_of(process.pid) != process.start:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _all() -> Iterator[Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            text = _read(f"/proc/{name}/stat", 1024)
            if text:
                yield parse_stat(text)


def _marked(process: Process) -> Process:
    value = marks.of_environment(_read(f"/proc/{process.pid}/environ", 1 << 20))
    if not value:
        return process
    return Process(
        pid=process.pid,
        ppid=process.ppid,
        session=process.session,
        start=process.start,
        state=process.state,
        mark=value,
    )


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(one) for task in tasks for one in _read(f"/proc/{pid}/task/{task}/children", 1 << 16).split()]


def _descendants_by_scan(pid: int) -> list[Process]:
    everyone = scan(since=1 << 62)
    chosen = {pid}
    grown = True
    while grown:
        more = {one.pid for one in everyone if one.ppid in chosen} - chosen
        chosen |= more
        grown = bool(more)
    return [one for one in everyone if one.pid in chosen and one.pid != pid]


def _read(path: str, limit: int) -> bytes:
    """The content of a file of /proc; empty where it is gone or not ours to read."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        parts = []
        while part := os.read(fd, limit):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return b""
    finally:
        os.close(fd)
