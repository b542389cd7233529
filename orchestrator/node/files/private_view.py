"""The files of this machine in a mount namespace of its own: whatever is written there is seen there only (overlayfs).

A process holds the namespace until its stdin is closed. As root it needs Linux 4.0, else user namespaces and Linux 5.11.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..oslayer import namespaces

READY = "ready"
#: Mounted as they are: they hold devices, processes and sockets. Shared memory below /dev is new.
_SYSTEM = ("/dev", "/proc", "/sys", "/run")
_RDONLY, _REMOUNT, _BIND, _REC, _PRIVATE, _DETACH = 1, 32, 4096, 16384, 1 << 18, 2


def hold() -> None:
    """Make the view that a line of stdin describes, report ``READY`` or the problem, and wait for the end of stdin."""
    try:
        _make(**json.loads(sys.stdin.readline()))
    except OSError as error:
        print(error, flush=True)
        return
    print(READY, flush=True)
    sys.stdin.read()


def _make(*, scratch: str, marker: str, keep: list[str], moved: Mapping[str, str], hidden: list[str]) -> None:
    """``scratch``: where the changes lie; ``marker``: a file that only the view has; ``keep``: directories that are shared with
    all; ``moved``: directory -> its copy, which is seen in its place; ``hidden``: files and directories that are not seen.
    """
    is_root = os.geteuid() == 0
    _unshare(is_root)
    namespaces.mount("none", "/", None, _REC | _PRIVATE)
    view = _View(Path(scratch), _mount_points(), is_root)
    view.place("/")
    namespaces.mount("tmpfs", view.at("/dev/shm"), "tmpfs", 0, "mode=1777")
    for path, copy in moved.items():
        view.fill_links(path, copy)
        view.bind(copy, path)
    for path in keep:
        view.bind(path, path)
    os.chdir(view.root)
    namespaces.call("pivot_root", b".", b".")
    namespaces.call("umount2", b".", _DETACH)
    os.chdir("/")
    Path(marker).touch()
    for entry in map(Path, hidden):
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink(missing_ok=True)


class _View:
    """A tree of mounts below ``root`` that becomes the root directory. ``mounts``: mount points of this machine."""

    def __init__(self, scratch: Path, mounts: set[str], is_root: bool) -> None:
        self.root, self._scratch, self._mounts, self._is_root = scratch / "root", scratch, mounts, is_root
        self._count = 0
        self.root.mkdir()
        namespaces.mount("tmpfs", str(self.root), "tmpfs", 0, "mode=755")

    def at(self, path: str) -> str:
        return f"{self.root}{path}"

    def bind(self, source: str, path: str) -> None:
        Path(self.at(path)).mkdir(parents=True, exist_ok=True)
        namespaces.mount(source, self.at(path), None, _BIND | _REC)

    def fill_links(self, path: str, copy: str) -> None:
        """Mount the directories that a copy of ``path`` only links to: there the links would lead to themselves."""
        for link in [entry for entry in Path(copy).rglob("*") if entry.is_symlink()]:
            original = f"{path}/{link.relative_to(copy)}"
            if os.path.realpath(link) == original and Path(original).is_dir():
                link.unlink()
                link.mkdir()
                namespaces.mount(self.at(original), str(link), None, _BIND | _REC)

    def place(self, path: str) -> None:
        """A directory with all below it. Without root, overlayfs takes only a directory without mounts below it."""
        below = sorted(point for point in self._mounts if point.startswith(f"{path.rstrip('/')}/"))
        if path in _SYSTEM:
            self.bind(path, path)
        elif self._is_root or not below:
            self._overlay(path)
            for point in sorted({*below, *_SYSTEM}) if path == "/" else ():
                if not point.startswith(tuple(f"{name}/" for name in _SYSTEM)):
                    self._place_mount(point)
        else:
            for entry in _entries(path):
                self._place_entry(entry)

    def _place_mount(self, point: str) -> None:
        """A mount point: a directory of the system, another directory, or a file such as a container's /etc/hosts."""
        if point in _SYSTEM:
            self.bind(point, point)
        elif Path(point).is_dir():
            self._overlay(point)
        elif Path(point).is_file():
            self._bind_file(point)

    def _bind_file(self, path: str) -> None:
        namespaces.mount(path, self.at(path), None, _BIND)
        _make_read_only(self.at(path))

    def _place_entry(self, entry: os.DirEntry[str]) -> None:
        target = Path(self.at(entry.path))
        target.parent.mkdir(parents=True, exist_ok=True)
        if entry.is_symlink():
            target.symlink_to(os.readlink(entry.path))
        elif entry.is_dir():
            self.place(entry.path)
        elif entry.is_file():
            target.touch()
            self._bind_file(entry.path)

    def _overlay(self, path: str) -> None:
        """Mount a layer over the path, read-only if overlayfs does not take it beside others. Raises OSError if overlayfs takes nothing."""
        changes = self._scratch / str(self._count + 1)
        upper, work = changes / "upper", changes / "work"
        for directory in (upper, work):
            directory.mkdir(parents=True, exist_ok=True)
        upper.chmod(stat.S_IMODE(os.stat(path).st_mode))
        Path(self.at(path)).mkdir(parents=True, exist_ok=True)
        dirs = {"lowerdir": path, "upperdir": str(upper), "workdir": str(work)}
        options = ",".join(f"{name}={_escaped(directory)}" for name, directory in dirs.items())
        try:
            namespaces.mount("overlay", self.at(path), "overlay", 0, options + ("" if self._is_root else ",userxattr"))
        except OSError:
            if not self._count:
                raise
            namespaces.mount(path, self.at(path), None, _BIND)
            _make_read_only(self.at(path))
        self._count += 1


def _unshare(is_root: bool) -> None:
    """Enter a new mount namespace, and a user namespace if the user is not root; the user stays the same in it."""
    user, group = os.getuid(), os.getgid()
    namespaces.unshare(namespaces.CLONE_NEWNS | (0 if is_root else namespaces.CLONE_NEWUSER))
    if not is_root:
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            Path("/proc/self", name).write_text(text)


def _mount_points() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return {re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), line.split()[4]) for line in lines}


def _entries(path: str) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a directory; none of one that this user may not read."""
    try:
        with os.scandir(path) as entries:
            yield from entries
    except PermissionError:
        return


def _make_read_only(path: str) -> None:
    namespaces.mount("none", path, None, _BIND | _REMOUNT | _RDONLY)


def _escaped(path: str) -> str:
    return re.sub(r"([\\:,])", r"\\\1", path)


def request(**about: Any) -> str:
    """The line that ``hold`` reads."""
    return json.dumps(about) + "\n"
