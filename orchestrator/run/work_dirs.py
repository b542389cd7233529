"""The files that a run and its twin have for themselves: copies of a script's project, and a private view of this machine's files.

Copies share blocks where the file system can (reflinks). What ranks write in a view, only they see.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from ..model.errors import UsageError
from ..model.gang import View
from ..node.files import private_view
from ..store import paths

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


def keep_snapshot(root: Path, target: Path, left_out: Collection[Path] = ()) -> str:
    """Copy a small project as it is before a run in place, for a twin that may follow. Returns why it was not copied."""
    try:
        _Copy(root, target, left_out, limit=SNAPSHOT, entries=SNAPSHOT_ENTRIES).run()
    except UsageError:
        return f"{root} has more than {SNAPSHOT_ENTRIES:,} files or {SNAPSHOT // 1024**2} MiB, which are not copied by default"
    except OSError as error:
        return f"{root} cannot be copied: {error.strerror}"
    return ""


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
        """Return where a link of the copy leads: inside of the project to the copy, else to the original."""
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
                    f"{self._root}: more than {LIMIT // 1024**3} GiB would be copied, so that the run and its reference run share no file",
                    hint="--no-reference, which runs the script in place; or --root DIR, and keep data outside of it",
                )
            shutil.copyfile(source, target)
        shutil.copystat(source, target)

    def _share(self, source: Path, target: Path) -> bool:
        """Return whether the file system shares the blocks."""
        with source.open("rb") as reader, target.open("wb") as writer:
            try:
                fcntl.ioctl(writer, FICLONE, reader.fileno())
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
                self._can_share = False
        return self._can_share


_PROGRAM = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r});"
    " from orchestrator.node.files import private_view; private_view.hold()"
)
#: Keep a reference run off the services that a job reports to, as their libraries document them. ``--env`` replaces them one by one.
OFFLINE = {
    "WANDB_MODE": "offline",
    "MLFLOW_TRACKING_URI": "mlruns",  # a directory of the copy
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "local",
    "HF_HUB_OFFLINE": "1",
}


def open_view(
    stack: ExitStack, directory: Path, *, keep: Sequence[str], moved: Mapping[str, str], hidden: Sequence[str]
) -> View | None:
    """Make a view that ends with ``stack``; None where this machine allows none. See ``node/files/private_view.py``."""
    marker = f"/.ccbed-view-{directory.name}"
    for parent in (directory / paths.VIEW, Path(tempfile.gettempdir()), Path("/dev/shm")):
        with ExitStack() as attempt, suppress(OSError):
            parent.mkdir(exist_ok=True)
            scratch = tempfile.mkdtemp(prefix="ccbed-view-", dir=parent)
            attempt.callback(_remove, Path(scratch))
            holder = subprocess.Popen(
                [sys.executable, "-I", "-c", _PROGRAM],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            )  # fmt: skip
            attempt.callback(holder.communicate)
            assert holder.stdin is not None and holder.stdout is not None
            about = private_view.request(scratch=scratch, marker=marker, keep=keep, moved=moved, hidden=hidden)
            holder.stdin.write(about)
            holder.stdin.flush()
            if holder.stdout.readline().strip() == private_view.READY:
                stack.push(attempt.pop_all())
                return View(pid=holder.pid, marker=marker)
    return None


def _remove(scratch: Path) -> None:
    """overlayfs leaves a directory that its owner may not enter."""

    def allow(_function: Any, path: str, _error: object) -> None:
        with suppress(OSError):
            Path(path).chmod(0o700)

    shutil.rmtree(scratch, onerror=allow)
    shutil.rmtree(scratch, ignore_errors=True)
    if scratch.parent.name == paths.VIEW:
        with suppress(OSError):
            scratch.parent.rmdir()
