"""Plain files, and nothing else, where a trial may write: no link is followed, no pipe waited for, no device opened."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

#: The largest file that is read whole.
LIMIT = 16 << 20


def opened(path: str | Path) -> int:
    """A descriptor to read from. Raises OSError for what is no plain file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return fd


def read(path: str | Path, limit: int = LIMIT) -> bytes:
    """All of a file. Raises OSError where it is no plain file or larger than ``limit``."""
    with open(opened(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return data


def tail(path: str | Path, size: int) -> bytes:
    """The last bytes of a file. Raises OSError."""
    with open(opened(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def made(path: str | Path) -> int:
    """A new file to write to, in the place of whatever has the name. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
