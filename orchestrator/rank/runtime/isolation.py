"""The directory of the user's project on the node, and how a rank of a reference run is kept from all other files of the user.

It enters the view of the run, in which all writes are private, or may write in the run's own directories only (Landlock, Linux
5.13, no root; modes, times and owners of other files are not guarded then).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...model import gang as gang_model
from ...model.gang import WorkDir

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
            f"this kernel cannot keep a reference run from the user's files (Landlock: {error}); --no-reference runs without it"
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


def prepare_work_dir(work_dir: WorkDir) -> None:
    """Copy the project, unless a rank of this run did. The ranks of all nodes may call it at the same time. Raises OSError."""
    path = Path(work_dir.path)
    if not work_dir.source or path.is_dir():
        return
    temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    temporary.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copytree(work_dir.source, temporary, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True)
    try:
        temporary.rename(path)
    except OSError:  # another rank was faster
        shutil.rmtree(temporary, ignore_errors=True)
        if not path.is_dir():
            raise


def on_node(work_dir: WorkDir | None, path: str) -> str:
    """The path on the node of a path on the controller: below the project it moves with the project."""
    if work_dir is None or not _is_moved(work_dir) or not Path(path).is_relative_to(work_dir.root):
        return path
    return str(Path(work_dir.path, Path(path).relative_to(work_dir.root)))


def current_directory(work_dir: WorkDir | None, cwd: str | None) -> str:
    """The directory of the ranks: that of the user; empty: unchanged, because the node lacks it.

    Ranks of a copy never write where other runs read: outside of the project they work at its top.
    """
    if work_dir and _is_moved(work_dir) and not (cwd and Path(cwd).is_relative_to(work_dir.root)):
        return work_dir.path
    path = on_node(work_dir, cwd) if cwd else ""
    return path if path and Path(path).is_dir() else ""


def _is_moved(work_dir: WorkDir) -> bool:
    return work_dir.root != work_dir.path
