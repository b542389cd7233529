"""Safe access to files that a trial may have written: plain files only, read with a size limit, replaced in one step."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

#: The largest file that is read as a whole.
MAX_BYTES = 16 << 20
#: Errors of file systems without symbolic or hard links, such as vfat, exFAT and some of CIFS.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)


def publish(temporary: Path, path: Path) -> None:
    """Give a file its name, unless another process was first. Without hard links two that race may both be the first."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if not path.exists():
            os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def open_file(path: str | Path) -> int:
    """Open a file for reading; its descriptor. Raises OSError for links, pipes, devices and directories."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return fd


def read_file(path: str | Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a file. Raises OSError if it is not a plain file or is larger than ``limit`` bytes."""
    with open(open_file(path), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(errno.EFBIG, f"more than {limit} bytes", str(path))
    return data


def read_tail(path: str | Path, size: int) -> bytes:
    """The last ``size`` bytes of a file. Raises OSError."""
    with open(open_file(path), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size)


def tail_text(path: str | Path, size: int) -> str:
    """The same as text; empty if the file cannot be read."""
    try:
        return read_tail(path, size).decode(errors="replace")
    except OSError:
        return ""


def read_text(path: str) -> str:
    """The text of a file, such as of the kernel's; empty if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if the file is missing, torn, not plain, or holds no object."""
    try:
        content = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def sha256(path: str | Path, beat: Callable[[], None] = lambda: None) -> str:
    """The SHA-256 of a plain file, as hexadecimal digits. ``beat`` is called after each block. Raises OSError."""
    digest = hashlib.sha256()
    with open(open_file(path), "rb") as file:
        while block := file.read(8 << 20):
            digest.update(block)
            beat()
    return digest.hexdigest()


def create_file(path: str | Path) -> int:
    """Create a file for writing, readable by its owner only; its descriptor. An existing file is removed. Raises OSError."""
    Path(path).unlink(missing_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def replace_file(path: str | Path, data: bytes, *, durable: bool = False) -> None:
    """Replace a file in one step: readers see the old content or the new content. Raises OSError.

    ``durable``: the new content is on disk before it has the name; ``sync`` makes the name durable.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with open(create_file(temporary), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = error.filename or str(target)  # a full disk names no file
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Replace a JSON file in one step. Raises OSError."""
    replace_file(path, json.dumps(content).encode())


def resolve_below(path: str, roots: Iterable[str]) -> str:
    """Resolve the links in a path. Raises PermissionError if the result lies outside every directory of ``roots``."""
    resolved = os.path.realpath(path)
    for root in roots:
        base = os.path.realpath(root)
        if resolved == base or resolved.startswith(base.rstrip("/") + "/"):
            return resolved
    raise PermissionError(f"{path} is outside of the bed's directories")


def sync(path: Path) -> None:
    """Force the content of a file, or the names in a directory, to the disk."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
