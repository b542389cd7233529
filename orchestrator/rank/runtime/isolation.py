"""Keeps a rank of a reference run, and all that it starts, from the user's files.

It enters the view of the run, in which all writes are private, or may write in the run's own directories only (Landlock, Linux
5.13, no root; modes, times and owners of other files are not guarded then).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...model import gang as gang_model

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _BENEATH, _NO_NEW_PRIVILEGES = 1, 1, 38
#: To write a file, and to remove and make entries of a directory (linux/landlock.h); by version: to move them, and to cut files.
_WRITE, _MOVE, _CUT = 1 << 1 | sum(1 << bit for bit in range(4, 13)), 1 << 13, 1 << 14
#: Devices, shared memory, and the rank's own settings are no files of the user.
_SYSTEM = ("/dev", "/proc", "/sys")


class NotIsolated(Exception):
    """The rank could write the user's files, so its script is not started."""

    kind = "isolation"


def enter(gang: gang_model.GangSpec, events_path: str) -> None:
    """Let this process write only what belongs to the reference run. Raises NotIsolated."""
    isolation = gang.isolation
    if isolation is None:
        return
    if isolation.view:
        _join(isolation.view)
        return
    temporary = gang_model.temporary_directory(os.getpid())
    try:
        for path in (*isolation.writable, temporary):
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        _restrict((*_SYSTEM, *isolation.writable, temporary, gang.out, str(Path(events_path).parent)))
    except OSError as error:
        raise NotIsolated(
            f"this kernel cannot keep a reference run from the user's files (Landlock: {error}); --no-twin runs without it"
        ) from None
    tempfile.tempdir = None


def _join(view: gang_model.View) -> None:
    """Enter the namespaces of the view, with the names of hosts that this node has. Raises NotIsolated."""
    libc, cwd, hosts = ctypes.CDLL(None, use_errno=True), Path.cwd(), _hosts()
    for kind in ("user", "mnt"):
        target, own = f"/proc/{view.pid}/ns/{kind}", f"/proc/self/ns/{kind}"
        with contextlib.suppress(FileNotFoundError):
            if Path(target).readlink() != Path(own).readlink():
                fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
                libc.setns(fd, 0)
                os.close(fd)
    if not Path(view.marker).exists():
        raise NotIsolated(
            f"process {view.pid}, which holds the view of the reference run, is gone; ccbed resume starts another"
        )
    os.chdir(cwd)
    if hosts != _hosts():
        Path("/etc/hosts").write_bytes(hosts)


def _hosts() -> bytes:
    path = Path("/etc/hosts")
    return path.read_bytes() if path.is_file() else b""


def _restrict(writable: Iterable[str]) -> None:
    version = _call(_CREATE_RULESET, None, 0, _VERSION)
    handled = _WRITE | (_MOVE if version >= 2 else 0) | (_CUT if version >= 3 else 0)
    ruleset = _call(_CREATE_RULESET, struct.pack("Q", handled), 8, 0)
    for path in writable:
        with contextlib.suppress(FileNotFoundError), _opened(path) as fd:
            _call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", handled, fd), 0)
    ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call(_RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _call(number: int, *arguments: int | bytes | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
