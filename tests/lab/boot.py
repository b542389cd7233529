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


def arrange(settings: dict[str, Any]) -> None:
    """The lab's root is held open: what is mounted may lie over it. At last it is hidden: a host sees no other's disk."""
    held = os.open(settings["root"], os.O_PATH)
    root = f"/proc/self/fd/{held}"
    mount("tmpfs", "/mnt", "tmpfs")
    mount("tmpfs", "/run", "tmpfs", data="mode=755")
    for folder in (*settings["folders"], "/run/sshd", "/run/lock"):
        Path(folder).mkdir(parents=True, mode=0o755)
    for source, target in settings["binds"]:
        mount(f"{root}/{source}", target, flags=_BIND)
    if Path(settings["root"]).is_dir():
        mount("tmpfs", settings["root"], "tmpfs", data="mode=700,size=4k")
    mount("tmpfs", "/dev/shm", "tmpfs", data="mode=1777")
    os.close(held)
    mount("proc", "/proc", "proc")
    _own_sys()


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
    settings = json.loads(Path(sys.argv[1]).read_text())
    socket.sethostname(settings["hostname"])
    os.umask(0o022)
    arrange(settings)
    os.chdir("/")
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    reap()


if __name__ == "__main__":
    main()
