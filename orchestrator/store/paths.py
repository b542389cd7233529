"""Read and write files safely: no link of an untrusted bundle is followed, sizes are limited, writes are atomic."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from ..core.documents import decoder
from ..model.errors import EXIT_UNKNOWN, CcbedError, UsageError
from ..system import plain_files

T = TypeVar("T")
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")

#: Bytes of a JSON document or another text that is read whole, and of a table of chunks.
LIMIT = 64 * 1024 * 1024
FILE = 256 * 1024 * 1024
#: MiB of a file that is read line by line, and the variable that sets another number.
LINES_MIB, LINES_VARIABLE = 4096, "CCBED_RECORD_MIB"
#: Directories within directories, and files of a bundle.
LEVELS = 32
FILES = 200_000
#: The directories of a script's copy, of its outputs (``{out}``), and of what a reference run changes elsewhere, in the
#: directory of its run. They are no evidence.
WORK, OUT, VIEW = "work", "out", "view"


_TEMPORARY = re.compile(r"\..+\.(?:\d+|[0-9a-f]{8})")


class TornBundleError(CcbedError):
    """Evidence is missing, changed or unreadable: it allows no conclusion."""

    exit_code = EXIT_UNKNOWN

    def __init__(
        self, *problems: str, hint: str = "nothing can be concluded from it; take the bundle from where it was made"
    ):
        super().__init__(*problems, hint=hint)


def walk(root: Path) -> Iterator[str]:
    """The relative paths of all regular files, sorted; of a bundle without those of its work directory.

    Raises TornBundleError for a link, a special file, an unprintable name, and for too many files or levels.
    """
    files = list(itertools.islice(_walk(root, ""), FILES + 1))
    if len(files) > FILES:
        raise TornBundleError(f"{root}: more than {FILES:,} files")
    yield from sorted(files)


def _walk(root: Path, prefix: str) -> Iterator[str]:
    if prefix.count("/") > LEVELS:
        raise TornBundleError(f"{root}: directories nested more than {LEVELS} levels deep")
    with os.scandir(root / prefix) as entries:
        for entry in entries:
            path = f"{prefix}{entry.name}"
            if _UNPRINTABLE.search(entry.name):
                raise TornBundleError(f"{root}: {path!r}: an unprintable name is not allowed in a bundle")
            if path in (WORK, OUT, VIEW) and (root / "trial.json").exists():
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(root, f"{path}/")
            elif entry.is_file(follow_symlinks=False):
                yield path
            else:
                raise TornBundleError(f"{root / path}: a link or special file is not allowed in a bundle")


def inside(root: Path, path: str) -> Path:
    """``root / path`` for a plain relative path. Raises TornBundleError for any other, and for a link on the way."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or not pure.parts or ".." in pure.parts or "\0" in path:
        raise TornBundleError(f"{root}: {path!r} is not a path inside the bundle")
    joined = str(root)  # a Path for each part would take longer than the kernel
    for part in pure.parts:
        joined = os.path.join(joined, part)  # noqa: PTH118
        if os.path.islink(joined):  # noqa: PTH114
            raise TornBundleError(f"{joined}: a link is not allowed in a bundle")
    return Path(joined)


def text(root: Path, path: str, limit: int = LIMIT) -> str:
    """Raises TornBundleError when the file is missing, too large or unreadable."""
    return data(root, path, limit).decode(errors="replace")


def data(root: Path, path: str, limit: int = LIMIT) -> bytes:
    """The bytes of a file of the bundle. Raises TornBundleError."""
    file = inside(root, path)
    try:
        return read(file, limit)
    except OSError as error:
        raise TornBundleError(f"{file}: {error.strerror}") from None


def size(root: Path, path: str, limit: int = FILE) -> int:
    """Bytes of a file of the bundle. Raises TornBundleError for one that is missing or larger than ``limit``."""
    file = inside(root, path)
    try:
        size_bytes = file.stat().st_size
    except OSError as error:
        raise TornBundleError(f"{file}: {error.strerror}") from None
    if size_bytes > limit:
        raise TornBundleError(f"{file}: {size_bytes:,} bytes, more than the {limit:,} that such a file has")
    return size_bytes


def ends(root: Path, path: str, length: int) -> bytes:
    """The first and the last ``length`` bytes of a file of the bundle, of any size. Raises TornBundleError."""
    if size(root, path, sys.maxsize) <= 2 * length:
        return data(root, path)
    with inside(root, path).open("rb") as source:
        first = source.read(length)
        source.seek(-length, os.SEEK_END)
        return first + source.read(length)


def read(file: Path, limit: int = LIMIT) -> bytes:
    """The bytes of a regular file, without blocking. Raises OSError, also for special files and more than ``limit`` bytes."""
    with _opened(file, limit) as source:
        content = source.read(limit + 1)
        if len(content) > limit:
            raise _too_large(file, f"the {limit:,} bytes that are read")
        return content


def lines(file: Path) -> Iterator[bytes]:
    """The lines of a regular file with their newlines; the last one may lack it. The file is never in memory as a whole.

    Raises OSError, also for special files, a file that is larger than `lines_limit`, and a line of more than ``LIMIT`` bytes.
    """
    limit = lines_limit()
    with _opened(file, limit, f"; {more(limit)}") as source:
        while line := source.readline(LIMIT + 1):
            if len(line) > LIMIT:
                raise _too_large(file, f"the {LIMIT:,} bytes that are read of a line")
            yield line


def whole_lines(root: Path, path: str) -> Iterator[bytes]:
    """The lines of a file of the bundle, without newlines; a last line that was cut off by a kill is left out.

    Raises TornBundleError.
    """
    file = inside(root, path)
    try:
        for line in lines(file):
            if line.endswith(b"\n"):
                yield line[:-1]
    except OSError as error:
        raise TornBundleError(f"{file}: {error.strerror}") from None


def lines_limit() -> int:
    """Bytes of a file that is read line by line. Raises UsageError."""
    text = os.environ.get(LINES_VARIABLE, str(LINES_MIB))
    if not text.isdecimal() or not 0 < int(text) < 1 << 30:
        raise UsageError(f"{LINES_VARIABLE}: must be a number of MiB (got {text})")
    return int(text) << 20


def more(limit: int) -> str:
    """Return what to do where a file is larger than ``limit`` bytes."""
    return f"if you trust it, set the limit to twice as much: {LINES_VARIABLE}={2 * limit >> 20} (MiB)"


def _opened(file: Path, limit: int, remedy: str = "") -> BinaryIO:
    """Raises OSError for a file that is not regular, or larger than ``limit``."""
    source = open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb")  # noqa: SIM115
    try:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(file))
        if status.st_size > limit:
            raise _too_large(file, f"the {limit:,} bytes that are read{remedy}")
    except BaseException:
        source.close()
        raise
    return source


def _too_large(file: Path, limit: str) -> OSError:
    return OSError(errno.EFBIG, f"larger than {limit}", str(file))


def document(root: Path, path: str) -> Any:
    """A JSON document of the bundle. Raises TornBundleError."""
    try:
        return decoder.parse_document(data(root, path))
    except decoder.DocumentError as error:
        raise TornBundleError(f"{root / path}: {error}") from None


def built(cls: type[T] | Any, root: Path, path: str) -> T:
    """A JSON document of the bundle as ``cls``. Raises TornBundleError."""
    result: T = convert(cls, document(root, path), root / path)
    return result


def convert(cls: type[T] | Any, value: Any, file: Path) -> T:
    """A value from ``file`` as ``cls``. Raises TornBundleError."""
    try:
        result: T = decoder.convert(cls, value)
        return result
    except decoder.DocumentError as error:
        raise TornBundleError(f"{file}: {error}") from None


def write(file: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically, readable only by its owner, because inventories contain secrets.

    ``durable``: the content is on the disk before the file is renamed.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    plain_files.replace_file(file, content, durable=durable)


def sweep(directory: Path) -> None:
    """Remove the temporary files of a killed ``write`` in ``directory``."""
    for path in directory.glob(".*"):
        if _TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()


def as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode(errors="replace")


def write_json(file: Path, value: Any) -> None:
    """``value`` as indented JSON, whole or not at all."""
    write(file, as_json(value))


def discard(directory: Path) -> None:
    """Remove a directory that was just made and never used."""
    shutil.rmtree(directory, ignore_errors=True)
