"""Export a bundle, and unpack one for verification: nothing is written of an archive beyond the limits, and a kill leaves nothing."""

from __future__ import annotations

import gzip
import secrets
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ..model.errors import UsageError
from . import paths

_MIB = 1024**2
#: Bytes of all files, of an archive of any size, and of what tells of one file: its name and attributes.
LIMIT, SMALL, HEADER = 4096 * _MIB, 64 * _MIB, _MIB
#: An archive may unpack to so many times its size (records and logs reach 30); the bytes that a file takes in it.
RATIO, _SMALLEST = 100, 32
#: The directory is removed when this process closes the pipe, or is killed.
_REMOVE = 'read _; rm -rf -- "$1"'


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """The bundle in ``archive``, in a directory that is removed afterwards. Raises TornBundleError."""
    with _scratch() as scratch:
        try:
            with _members(archive) as (_, members):  # the whole archive is checked before anything is written
                for _member in members:
                    pass
            scratch.mkdir(mode=0o700)
            with _members(archive) as (source, members):
                # without a filter: Python 3.11.2, as in Debian 12; _checked has refused what it would change
                options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                source.extractall(scratch, members, **options)  # noqa: S202
        except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError, RecursionError) as error:
            raise paths.TornBundleError(f"{archive}: not a readable archive ({error})") from None
        entries = [entry for entry in scratch.iterdir() if entry.is_dir()]
        if len(entries) != 1:
            raise paths.TornBundleError(f"{archive}: holds {len(entries)} directories, not one bundle")
        yield entries[0]


def allowed(size_bytes: int) -> int:
    """Bytes that an archive of this size may unpack to."""
    return min(LIMIT, max(SMALL, RATIO * size_bytes))


@contextmanager
def _scratch() -> Iterator[Path]:
    """The path of a directory to make. A process of its own removes it."""
    directory = Path(tempfile.gettempdir(), f"ccbed-{secrets.token_hex(8)}")
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVE, "ccbed", str(directory)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        yield directory
    finally:
        remover.communicate()


class _Reader:
    """The archive, decompressed up to the byte ``end``, which moves on with its files."""

    def __init__(self, archive: Path, source: BinaryIO) -> None:
        self._archive = archive
        self._source = source
        self.total = 0
        self.end = HEADER

    def read(self, size: int) -> bytes:
        """Raises TornBundleError behind the end: the header of a file is larger than HEADER."""
        content = self._source.read(size)
        self.total += len(content)
        if self.total > self.end:
            raise paths.TornBundleError(f"{self._archive}: the header of a file has more than {HEADER:,} bytes")
        return content


@contextmanager
def _members(archive: Path) -> Iterator[tuple[tarfile.TarFile, Iterator[tarfile.TarInfo]]]:
    """The archive and its members, read as a stream, each checked. ccbed exports .tar.gz; .tar is read too."""
    with archive.open("rb") as file:
        is_gzip = file.peek(2)[:2] == b"\x1f\x8b"
        reader = _Reader(archive, gzip.GzipFile(fileobj=file) if is_gzip else file)  # type: ignore[arg-type]
        with tarfile.open(fileobj=reader, mode="r|", bufsize=1 << 16) as source:  # type: ignore[call-overload]
            yield source, _checked(archive, reader, source)


def _checked(archive: Path, reader: _Reader, source: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """The members, as files of this user. Raises TornBundleError for what no bundle has, and beyond the limits."""
    size = archive.stat().st_size
    limit, files = allowed(size), min(paths.FILES, 10_000 + size // _SMALLEST)
    for count, member in enumerate(source, start=1):
        problem = _problem(member)
        if count > files:
            problem = f"more than {files:,} files in {size:,} bytes"
        elif not problem and reader.total + member.size > limit:
            problem = f"more than {limit:,} bytes when unpacked, {RATIO} times its size and {LIMIT:,} at most"
        if problem:
            raise paths.TornBundleError(f"{archive}: {problem}")
        reader.end = reader.total + member.size + HEADER
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mode = 0o700 if member.isdir() else 0o600
        yield member


def _problem(member: tarfile.TarInfo) -> str:
    name = PurePosixPath(member.name)
    shown = f"{member.name[:100]!r}" if len(member.name) > 100 else member.name
    if name.is_absolute() or ".." in name.parts:
        return f"{shown}: the path leads out of the archive"
    if not (member.isfile() or member.isdir()) or member.issparse():
        return f"{shown}: a link or special file is not allowed in a bundle"
    if len(name.parts) > paths.LEVELS + 2:
        return f"{shown}: directories nested more than {paths.LEVELS} levels deep"
    return ""


def export(directory: Path, target: Path) -> int:
    """Write ``directory`` as ``target`` (.tar.gz); the number of its files. Raises UsageError, TornBundleError."""
    if target.exists():
        raise UsageError(f"{target}: exists already", hint="ccbed bundle export RUN -o ANOTHER.tar.gz")
    listed = tuple(paths.walk(directory))
    try:
        pack(directory, listed, target, of_nobody=_anonymous)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    return len(listed)


def pack(
    directory: Path,
    listed: Iterable[str],
    target: Path,
    of_nobody: Callable[[tarfile.TarInfo], tarfile.TarInfo] | None = None,
) -> None:
    """Write files of a directory as ``target`` (.tar.gz), whole or not at all. ``of_nobody``: removes the owners. Raises OSError."""
    temporary = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=6) as archive:
            for path in listed:
                archive.add(directory / path, arcname=f"{directory.name}/{path}", recursive=False, filter=of_nobody)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
