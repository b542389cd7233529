"""A label says what a process is: a JSON file that is valid only while that process holds the lock beside it."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..oslayer import processes
from . import plain_files

NODE = "node.json"
KEEPER = "keeper.json"
LOCK = "lock"
#: Held (flock) by the orchestrator that drives a run on the bed; its content names the run.
RUN_LOCK = "run.lock"
#: A heartbeat is one short line.
BEAT = 256

#: struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid.
_FLOCK = struct.Struct("hhqqi4x")


def take(directory: Path) -> int:
    """Take the lock of a directory for the life of this process; its descriptor.

    A POSIX record lock: it dies with the process, no fork inherits it, and the kernel tells who holds it. The
    descriptor must stay open, and the file must not be opened a second time by the holder. Raises BlockingIOError.
    """
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise BlockingIOError(f"{directory / LOCK} is held by another process") from error
    return fd


def holder(directory: Path) -> int:
    """The pid that holds the lock of a directory; 0 where nobody does. Not for the holder itself."""
    try:
        fd = os.open(directory / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
        return 0 if kind == fcntl.F_UNLCK else int(pid)
    finally:
        os.close(fd)


def write(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step, so that readers see the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(plain_files.made(temporary), "w") as file:
        file.write(json.dumps(content))
    os.replace(temporary, path)


def read(path: Path) -> dict[str, Any]:
    """The content of a JSON file; empty where there is none, it is torn, or something else has its name."""
    try:
        content = json.loads(plain_files.read(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def living(directory: Path, name: str = NODE) -> dict[str, Any]:
    """The label in a directory if it is valid (lock, pid, start time and boot), else empty."""
    content = read(directory / name)
    pid, start = _number(content, "pid"), _number(content, "start")
    if not pid or content.get("boot") != boot_id() or holder(directory) != pid:
        return {}
    return content if processes.alive(pid, start) else {}


def driven(workdir: Path) -> str:
    """The run that an orchestrator drives on the bed now; empty where none does."""
    try:
        with open(plain_files.opened(workdir / RUN_LOCK), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return str(read(workdir / RUN_LOCK).get("run", ""))
    except OSError:
        pass
    return ""


def foreign(keeper: Mapping[str, Any], owner: str, owner_id: str) -> bool:
    """Is a keeper's label another owner's? By their ids; by what people call them where it is from before there were any."""
    if keeper.get("owner_id") and owner_id:
        return bool(keeper["owner_id"] != owner_id)
    return bool(keeper.get("owner", owner) != owner)


def heartbeat(path: Path) -> tuple[str, int] | None:
    """(incarnation, count) as a node's agent wrote them; None where it did not."""
    try:
        incarnation, count = plain_files.read(path, BEAT).decode().split()
        return incarnation, int(count)
    except (OSError, ValueError):
        return None


def _number(content: Mapping[str, Any], name: str) -> int:
    found = content.get(name)
    return found if isinstance(found, int) else 0


def machine_id() -> str:
    """Of this installation, whatever its boots; empty where it has none."""
    try:
        return Path("/etc/machine-id").read_text().strip()
    except OSError:
        return ""


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
