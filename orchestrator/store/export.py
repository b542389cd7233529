"""Export a bundle as an archive, and unpack an archive for verification."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from ..model.errors import UsageError
from . import paths

#: The maximum size of an unpacked archive, bytes.
LIMIT = 4 * 1024**3


def export(directory: Path, target: Path) -> int:
    """Write ``directory`` as ``target`` (.tar.gz); the number of its files. Raises UsageError, TornBundleError."""
    if target.exists():
        raise UsageError(f"{target}: exists already", hint="ccbed bundle export RUN -o ANOTHER.tar.gz")
    listed = tuple(paths.walk(directory))
    temporary = target.with_name(f".{target.name}.part")
    try:
        with tarfile.open(temporary, "w:gz", compresslevel=6) as archive:
            for path in listed:
                archive.add(directory / path, arcname=f"{directory.name}/{path}", recursive=False, filter=_anonymous)
        temporary.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return len(listed)


@contextmanager
def unpacked(archive: Path) -> Iterator[Path]:
    """The bundle in ``archive``, in a directory that is removed afterwards. Raises TornBundleError."""
    with TemporaryDirectory(prefix="ccbed-") as scratch:
        try:
            with tarfile.open(archive) as source:
                _check(archive, source)
                if hasattr(tarfile, "data_filter"):
                    source.extractall(scratch, filter="data")
                else:  # Python 3.11.2, as in Debian 12; _check has refused what the filter would change
                    source.extractall(scratch)  # noqa: S202
        except (tarfile.TarError, OSError, EOFError) as error:
            reason = str(error).partition(":\n")[0]  # tarfile lists every compression that it tried, a line for each
            raise paths.TornBundleError(f"{archive}: not a readable archive ({reason})") from None
        entries = [entry for entry in Path(scratch).iterdir() if entry.is_dir()]
        if len(entries) != 1:
            raise paths.TornBundleError(f"{archive}: holds {len(entries)} directories, not one bundle")
        yield entries[0]


def _check(archive: Path, source: tarfile.TarFile) -> None:
    """Refuse what is no plain file below the archive, and make the files those of this user."""
    size = 0
    for member in source:
        size += member.size
        _anonymous(member).mode = 0o700 if member.isdir() else 0o600
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts:
            raise paths.TornBundleError(f"{archive}: {member.name}: the path leads out of the archive")
        if not (member.isfile() or member.isdir()):
            raise paths.TornBundleError(f"{archive}: {member.name}: a link or special file is not allowed in a bundle")
        if size > LIMIT:
            raise paths.TornBundleError(f"{archive}: more than {LIMIT} bytes when unpacked")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
