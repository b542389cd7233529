"""Processes from /proc: find the processes of a node by their tag, check whether they live, signal them by pid and start time.

The process tag is the variable CCBED_NODE in the environment of every process of a node.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import signal
from collections.abc import Collection, Iterable, Iterator

from ...model.frozen import dataclass

#: States of a process that has exited: zombie, dead.
EXITED = "ZXx"
#: PF_EXITING of a thread's flags: it has left user space for good.
EXITING = 0x4
STOPPED = "T"
#: Waiting in the kernel, not interruptible.
UNINTERRUPTIBLE = "D"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process. ``start`` is field 22 of /proc/<pid>/stat (clock ticks since boot): with the pid it is an identity."""

    pid: int
    ppid: int
    session: int
    start: int
    state: str
    tag: str = ""


def parse_stat(text: bytes) -> Process:
    fields = _fields_of_stat(text)
    return Process(
        pid=int(text.split(b" ", 1)[0]),
        state=fields[0].decode(),
        ppid=int(fields[1]),
        session=int(fields[3]),
        start=int(fields[19]),
    )


def _fields_of_stat(text: bytes) -> list[bytes]:
    """The fields from the third on, the state: the second one, the command name, may contain spaces and brackets."""
    return text.rpartition(b")")[2].split()


def find(pid: int) -> Process | None:
    """The process with this pid, also if it has exited; None if there is none. Its tag is not read."""
    text = _read(f"/proc/{pid}/stat", 1024)
    return parse_stat(text) if text else None


def is_alive(pid: int, start: int) -> bool:
    """Does the process with this pid and start time still run?"""
    process = find(pid)
    return process is not None and process.start == start and process.state not in EXITED


def is_exiting(pid: int) -> bool:
    """Have all threads of a process that got SIGKILL left user space for good? It runs no more code, and starts no process.

    A killed process starts no thread, so the count that is read first is the largest. Threads that end meanwhile cut the list
    of threads short: then it is shorter than the count.
    """
    stat = _fields_of_stat(_read(f"/proc/{pid}/stat", 1024))
    threads = _threads(pid)
    return bool(stat) and len(threads) >= int(stat[17]) and all(_is_exiting_thread(pid, thread) for thread in threads)


def cpu_s(pid: int, *, kernel: bool = True) -> float:
    """Return the CPU time that all threads of a process have used, in seconds; 0 if it is gone. ``kernel``: with that of the kernel."""
    fields = _fields_of_stat(_read(f"/proc/{pid}/stat", 1024))
    return (int(fields[11]) + int(fields[12]) * kernel) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def inner_pid(pid: int) -> int:
    """The pid of a process in its own pid namespace; 0 if it has exited."""
    for line in _read(f"/proc/{pid}/status", 4096).splitlines():
        if line.startswith(b"NSpid:"):
            return int(line.split()[-1])
    return 0


def start_time(pid: int) -> int:
    """The start time of a process; 0 if it has exited."""
    process = find(pid)
    return process.start if process else 0


def scan(since: int = 0) -> list[Process]:
    """All living processes. The tag is read for those that started at ``since`` or later."""
    return [
        _with_tag(process) if process.start >= since else process for process in _all() if process.state not in EXITED
    ]


def live_sessions(leaders: Iterable[tuple[int, int]]) -> set[int]:
    """The session ids of those leaders, as (pid, start time), that still exist, zombies included.

    The number of a leader that was reaped may belong to another process by now.
    """
    return {pid for pid, start in leaders if start_time(pid) == start}


def select(
    processes: Iterable[Process], prefix: str, own_sessions: Collection[int] = (), spare: Collection[int] = ()
) -> list[Process]:
    """The processes of a node: by the prefix of their tag, by session, or as descendants of these.

    ``spare``: pids to leave out. This process is always left out.
    """
    candidates, roots = list(processes), set(own_sessions)
    own = {
        process.pid
        for process in candidates
        if process.tag.startswith(prefix) or {process.pid, process.session} & roots
    }
    own = _with_descendants(
        own, [process for process in candidates if process.ppid > 1]
    )  # children of init are orphans
    return [process for process in candidates if process.pid in own and process.pid not in (*spare, os.getpid())]


class ProcessIndex:
    """``select`` for each of many nodes, whose cost does not grow with the processes of the others."""

    def __init__(self, processes: Collection[Process]) -> None:
        self._by_tag: dict[str, list[Process]] = {}
        self._by_id: dict[int, list[Process]] = {}
        self._children: dict[int, list[Process]] = {}
        for process in processes:
            parts = process.tag.split("/", 2)
            if len(parts) == 3:
                self._by_tag.setdefault(f"{parts[0]}/{parts[1]}/", []).append(process)
            for number in {process.pid, process.session}:
                self._by_id.setdefault(number, []).append(process)
            if process.ppid > 1:  # children of init are orphans
                self._children.setdefault(process.ppid, []).append(process)

    def select(self, prefix: str, own_sessions: Collection[int] = ()) -> list[Process]:
        """``prefix``: the tag of a node up to its second slash, which is included."""
        pending = [*self._by_tag.get(prefix, ()), *(p for number in own_sessions for p in self._by_id.get(number, ()))]
        chosen: dict[int, Process] = {}
        while pending:
            process = pending.pop()
            if process.pid not in chosen:
                chosen[process.pid] = process
                pending += self._children.get(process.pid, ())
        chosen.pop(os.getpid(), None)
        return list(chosen.values())


def _with_descendants(roots: set[int], candidates: Collection[Process]) -> set[int]:
    """These pids and those of all their descendants among the candidates."""
    chosen = set(roots)
    while children := {process.pid for process in candidates if process.ppid in chosen} - chosen:
        chosen |= children
    return chosen


def descendants(pid: int) -> list[Process]:
    """The living descendants of ``pid``. All of /proc is read only if the kernel does not list children."""
    path = f"/proc/{pid}/task/{pid}/children"
    if not os.path.exists(path):
        return _descendants_by_scan(pid)
    living: list[Process] = []
    pending = [pid]
    while pending:
        for child in _children(pending.pop()):
            process = find(child)
            pending.append(child)
            if process and process.state not in EXITED:
                living.append(process)
    return living


def send_signal(processes: Iterable[Process], number: int) -> list[int]:
    """Send a signal to exactly these processes; the pids that received it."""
    return [process.pid for process in processes if _send(process, number)]


def kill(processes: Iterable[Process]) -> list[int]:
    """Send SIGKILL to exactly these processes; the pids that received it."""
    return send_signal(processes, signal.SIGKILL)


def count_threads() -> int:
    """Return how many threads the kernel counts in this process."""
    return len(os.listdir("/proc/self/task"))


def resident_mib(pid: int) -> tuple[float, float]:
    """(own, shared) resident MiB of a process: pages that only it maps, and pages that other processes map as well."""
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
        if start_time(process.pid) != process.start:
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


def _with_tag(process: Process) -> Process:
    tag = tag_in_environment(_read(f"/proc/{process.pid}/environ", 1 << 20))
    if not tag:
        return process
    return Process(
        pid=process.pid, ppid=process.ppid, session=process.session, start=process.start, state=process.state, tag=tag
    )


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _is_exiting_thread(pid: int, thread: str) -> bool:
    fields = _fields_of_stat(_read(f"/proc/{pid}/task/{thread}/stat", 1024))
    return bool(fields) and bool(int(fields[6]) & EXITING)


def _children(pid: int) -> list[int]:
    return [
        int(child) for task in _threads(pid) for child in _read(f"/proc/{pid}/task/{task}/children", 1 << 16).split()
    ]


def _descendants_by_scan(pid: int) -> list[Process]:
    candidates = scan(since=1 << 62)
    chosen = _with_descendants({pid}, candidates)
    return [process for process in candidates if process.pid in chosen and process.pid != pid]


def _read(path: str, limit: int) -> bytes:
    """The content of a file of /proc; empty if it is missing or not readable."""
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


TAG_VARIABLE = "CCBED_NODE"
#: The keeper's environment reserves this many bytes for the tag of any node that is forked from it.
MAX_TAG_BYTES = 240


def bed_tag(bed: str, workdir: str) -> str:
    """The prefix of all tags of a bed: its name and 8 hex digits of its directory's hash."""
    return f"{bed}-{hashlib.sha256(workdir.encode()).hexdigest()[:8]}"


def node_tag(prefix: str, node: str, incarnation: str) -> str:
    """The tag of a node's processes. Raises ValueError if it is too long."""
    text = f"{prefix}/{node}/{incarnation}"
    if len(text.encode()) > MAX_TAG_BYTES:
        raise ValueError(
            f"the process tag {text} is longer than {MAX_TAG_BYTES} bytes: choose a shorter bed or node name"
        )
    return text


def pad_tag(text: str) -> str:
    """A tag with spaces appended, so that a longer tag can overwrite it in the environment."""
    return text.ljust(MAX_TAG_BYTES)


def set_own_tag(text: str) -> None:
    """Replace the tag of this process in place, so that /proc/<pid>/environ shows the new tag."""
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    address = libc.getenv(TAG_VARIABLE.encode())
    size = len(ctypes.string_at(address)) if address else 0
    if not address or size < len(text.encode()):
        raise RuntimeError(f"{TAG_VARIABLE} in the environment is too short for {text}")
    ctypes.memmove(address, pad_tag(text).encode()[:size], size)
    os.environ[TAG_VARIABLE] = text


def tag_in_environment(environ: bytes) -> str:
    """The tag in the content of a /proc/<pid>/environ; empty if there is none."""
    start = (
        0
        if environ.startswith(TAG_VARIABLE.encode() + b"=")
        else environ.find(b"\0" + TAG_VARIABLE.encode() + b"=") + 1
    )
    if start == 0 and not environ.startswith(TAG_VARIABLE.encode() + b"="):
        return ""
    value = environ[start + len(TAG_VARIABLE) + 1 :].split(b"\0", 1)[0]
    return value.decode(errors="replace").strip()
