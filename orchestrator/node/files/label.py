"""Labels, locks and heartbeats: files that say what a process is and prove that it still lives; and whether a run may be driven.

A label is a JSON file. It is valid only while its process holds the lock in the same directory. Nodes send a heartbeat several times a
second only while an orchestrator may drive a run on the bed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...system import host_facts, plain_files
from ..oslayer import processes

#: Files in a node's directory: its label; written once its agent takes commands; its ranks by pid and start time.
NODE_LABEL, READY, RANKS = "node.json", "ready.json", "ranks.json"
#: How many processes of a node are reserve ranks, which work for no run.
RESERVES = "reserves.json"
#: The keeper's directory in the bed's directory, and its label in there.
KEEPER_DIR, KEEPER_LABEL = "keeper", "keeper.json"
#: The name under which the external keeper writes events and holds leases, and of its directory in the bed's.
OUTSIDE = "outside"
#: The keeper signs its events with this key, which lasts as long as the bed.
KEY = "events.key"
LOCK = "lock"
#: How the keeper was started: ``scope`` of its systemd unit, empty without one; ``problem``: why it has none.
UNIT = "unit.json"
#: The orchestrator that drives a run on the bed holds this file (flock). Its content names the run.
RUN_LOCK = "run.lock"
#: What preparation leaves in a bed's directory.
STAMP = "prepared.json"
#: What was done on the host, a JSON object per line (``cli/inputs/audited.py``); it outlives the bed.
ACTS = "audit.jsonl"
#: A heartbeat is one short line.
MAX_HEARTBEAT = 256

#: struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("hhqqi4x")


def take_lock(directory: Path) -> int:
    """Take the lock of a directory for the life of this process; its descriptor. Raises BlockingIOError if it is held.

    It is a POSIX record lock: it ends with the process, forks do not inherit it, and the kernel names its holder.
    The descriptor must stay open, and the holder must not open the file a second time.
    """
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise BlockingIOError(f"{directory / LOCK} is held by another process") from error
    return fd


def lock_holder(directory: Path) -> int:
    """The pid that holds the lock of a directory; 0 if no process does. The holder itself must not call this."""
    try:
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        request = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, request))
        return 0 if kind == fcntl.F_UNLCK else int(pid)
    finally:
        os.close(fd)


def live_label(directory: Path, name: str = NODE_LABEL) -> dict[str, Any]:
    """The label in a directory if lock, pid, start time and boot id show that its process lives; else empty."""
    content = plain_files.read_json(directory / name)
    pid, start = _integer(content, "pid"), _integer(content, "start")
    if not pid or content.get("boot") != host_facts.boot_id() or lock_holder(directory) != pid:
        return {}
    return content if processes.is_alive(pid, start) else {}


def driven_run(workdir: Path) -> str:
    """The run that an orchestrator drives on the bed now; empty if there is none."""
    try:
        with open(plain_files.open_file(workdir / RUN_LOCK), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(plain_files.read_json(workdir / RUN_LOCK).get("run", ""))
    except OSError:
        pass
    return ""


def is_foreign(keeper: Mapping[str, Any], owner: str, owner_id: str) -> bool:
    """Does a keeper's label name another owner? Labels of older versions have no owner id: their names are compared."""
    if keeper.get("owner_id") and owner_id:
        return bool(keeper["owner_id"] != owner_id)
    return bool(keeper.get("owner", owner) != owner)


def read_heartbeat(path: Path) -> tuple[str, int] | None:
    """(incarnation, count) as a node's agent wrote them; None if there is no heartbeat."""
    try:
        incarnation, count = plain_files.read_file(path, MAX_HEARTBEAT).decode().split()
        return incarnation, int(count)
    except (OSError, ValueError):
        return None


def count_reserves(directory: Path, incarnation: str) -> int:
    """Return how many processes of this incarnation of a node are reserve ranks."""
    content = plain_files.read_json(directory / RESERVES)
    return _integer(content, "count") if content.get("incarnation") == incarnation else 0


def _integer(content: Mapping[str, Any], name: str) -> int:
    value = content.get(name)
    return value if isinstance(value, int) else 0


#: A run is taken to be driven for so long before that is checked again, in seconds.
CHECK_S = 5.0


class RunDriver:
    """Reads the lock file of the bed, without its lock: a probe of many agents could keep an orchestrator from taking it."""

    def __init__(self, workdir: Path) -> None:
        self.path = workdir / RUN_LOCK
        self._version: tuple[int, int] | None = None
        self._until = 0.0

    def may_drive(self) -> bool:
        """False if the process that wrote the file last has ended, or no process ever wrote it; True if that is not known."""
        now = time.monotonic()
        try:
            status = self.path.stat()
        except OSError:
            return True
        version = (status.st_mtime_ns, status.st_size)
        if version != self._version:
            self._version, self._until = version, now + CHECK_S
        if self._until and now >= self._until:
            self._until = now + CHECK_S if self._is_alive() else 0.0
        return self._until > 0.0

    def _is_alive(self) -> bool:
        """Only an orchestrator of this host writes its pid alone; the helper of a distant one may be in another pid namespace.

        A file with content that names no pid is not known; an empty one was never written.
        """
        if self._version and not self._version[1]:
            return False
        holder = plain_files.read_json(self.path)
        pid = holder.get("pid")
        return "helper" in holder or not isinstance(pid, int) or processes.find(pid) is not None
