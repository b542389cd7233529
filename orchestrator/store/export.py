"""Export a bundle as an archive."""

from __future__ import annotations

import tarfile
from pathlib import Path

from ..model.errors import UsageError
from . import paths


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


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member
