"""The first process of a lab's host, in namespaces of its own: mounts what is the host's, says so, then reaps orphans."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_BIND, _REC, _MOVE = 4096, 16384, 8192
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2). Raises OSError."""
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()):
        code = ctypes.get_errno()
        raise OSError(code, f"mount {source}: {os.strerror(code)}", target)


def arrange(told: dict[str, Any]) -> None:
    """Everything that is taken from the lab's root comes first; then the root is hidden: a host sees no other's disk."""
    held = os.open("/", os.O_PATH)
    for source, target in told["binds"]:
        mount(source, target, flags=_BIND)
    mount("tmpfs", "/mnt", "tmpfs")
    Path(told["shared"][1]).mkdir(parents=True)
    mount(told["shared"][0], told["shared"][1], flags=_BIND)
    given = os.open(told["given"][0], os.O_PATH)
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    Path("/run/sshd").mkdir(mode=0o755)
    Path("/run/lock").mkdir(mode=0o1777)
    Path(told["given"][1]).mkdir()
    mount(f"/proc/self/fd/{given}", told["given"][1], flags=_BIND)
    mount("tmpfs", told["hide"], "tmpfs", data="mode=700,size=4k")
    mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    mount("proc", "/proc", "proc")
    _own_sys()
    os.close(given)
    os.close(held)


def _own_sys() -> None:
    """A sysfs of this network namespace, with the control groups of before: an engine needs both."""
    Path("/run/sys").mkdir()
    mount("/sys", "/run/sys", flags=_BIND | _REC)
    mount("sysfs", "/sys", "sysfs")
    mount("/run/sys/fs/cgroup", "/sys/fs/cgroup", flags=_BIND | _REC)
    if _libc.umount2(b"/run/sys", 2):
        raise OSError(ctypes.get_errno(), "umount /run/sys")
    Path("/run/sys").rmdir()


def reap() -> None:
    """For ever: nobody else waits for processes whose parents are gone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        signal.sigtimedwait({signal.SIGCHLD}, 5.0)


def main() -> None:
    """``boot.py FILE``: the pid of this process, as its starter sees it, is said on standard output when all is mounted."""
    pid = Path("/proc/self").readlink()
    told = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(told["hostname"])
    os.umask(0o022)
    arrange(told)
    os.chdir("/")
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    reap()


if __name__ == "__main__":
    main()
