"""Copies of a script's project, so that a run and its twin never see each other's files. Reflinks where the file system has them."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..model.errors import UsageError

#: ``ioctl`` that lets a file share the blocks of another until one of them is written (linux/fs.h).
FICLONE = 0x40049409
#: The most that is copied where blocks cannot be shared, in bytes.
LIMIT = 4 * 1024**3
#: The most that is copied for a twin by default, in bytes, and its files.
SNAPSHOT, SNAPSHOT_ENTRIES = 64 * 1024**2, 5_000
#: Directories that are linked, not copied: their content is installed, and no training writes it.
LINKED = (".git", "node_modules")
SKIPPED = ("__pycache__",)
_NO_REFLINK = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.EXDEV)


def copy_project(root: Path, target: Path, left_out: Collection[Path] = ()) -> None:
    """Copy ``root`` to ``target``, which must not exist, with modes, times and links. ``left_out``: paths that are not copied.

    A link that leads out of the project leads to the same file as before.
    Raises UsageError above the limit, and OSError.
    """
    _Copy(root, target, left_out).run()


def keep_snapshot(root: Path, target: Path, left_out: Collection[Path] = ()) -> None:
    """Copy a small project as it is before a run in place, for a twin that may follow. A large one is not copied."""
    copy = _Copy(root, target, left_out, limit=SNAPSHOT, entries=SNAPSHOT_ENTRIES)
    with suppress(UsageError, OSError):
        copy.run()


class _Copy:
    """``_copied``: bytes that were written because blocks could not be shared. ``limit``, ``entries``: the most of them."""

    def __init__(
        self, root: Path, target: Path, left_out: Collection[Path], *, limit: int | None = None, entries: int = 10**9
    ) -> None:
        self._root, self._target, self._left_out = root, target, left_out
        self._limit, self._entries = LIMIT if limit is None else limit, entries
        self._copied = 0
        self._can_share = True

    def run(self) -> None:
        try:
            self._directory(self._root, self._target)
        except BaseException:
            shutil.rmtree(self._target, ignore_errors=True)
            raise

    def _directory(self, source: Path, target: Path) -> None:
        target.mkdir(mode=0o700)
        for entry in sorted(source.iterdir()):
            self._entry(entry, target / entry.name)
        shutil.copymode(source, target)  # its time says when it was made, which prune reads

    def _entry(self, entry: Path, target: Path) -> None:
        self._entries -= 1
        if self._entries < 0:
            raise UsageError(f"{self._root}: has too many files")
        if entry.name in SKIPPED or entry in self._left_out or entry == self._target:
            return
        if entry.is_symlink():
            target.symlink_to(self._link(entry, target))
        elif entry.is_dir():
            if entry.name in LINKED or (entry / "pyvenv.cfg").exists():
                target.symlink_to(entry)
            else:
                self._directory(entry, target)
        elif entry.is_file():
            self._file(entry, target)

    def _link(self, entry: Path, target: Path) -> str:
        """Where a link of the copy leads: inside of the project to the copy, else to the original."""
        link = entry.readlink()
        leads_to = Path(os.path.normpath(entry.parent / link))
        if not leads_to.is_relative_to(self._root):
            return str(leads_to)
        return str(self._target / leads_to.relative_to(self._root) if link.is_absolute() else link)

    def _file(self, source: Path, target: Path) -> None:
        if not (self._can_share and self._share(source, target)):
            self._copied += source.stat().st_size
            if self._copied > self._limit:
                raise UsageError(
                    f"{self._root}: more than {LIMIT // 1024**3} GiB would be copied, so that the run and its twin share no file",
                    hint="--no-twin, which runs the script in place; or --root DIR, and keep data outside of it",
                )
            shutil.copyfile(source, target)
        shutil.copystat(source, target)

    def _share(self, source: Path, target: Path) -> bool:
        """Whether the file system shares the blocks."""
        with source.open("rb") as reader, target.open("wb") as writer:
            try:
                fcntl.ioctl(writer, FICLONE, reader.fileno())
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
                self._can_share = False
        return self._can_share
