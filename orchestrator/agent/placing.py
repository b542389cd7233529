"""Files put in place whole: written beside, then renamed; directories of them under the hash of their content."""

from __future__ import annotations

import os
import py_compile
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath


def below(path: str, roots: Iterable[str]) -> str:
    """The path without links, if it lies below one of the roots. Raises PermissionError where it does not."""
    real = os.path.realpath(path)
    for root in roots:
        base = os.path.realpath(root)
        if real == base or real.startswith(base.rstrip("/") + "/"):
            return real
    raise PermissionError(f"{path} is outside of the bed's directories")


def write(path: str, content: bytes) -> None:
    """Replace a file in one step; its directories are made, for nobody else to look into."""
    directory, name = os.path.split(path)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def put(path: Path, content: Mapping[str, bytes]) -> None:
    """Place a directory of files, Python byte-compiled, unless it is there: its name says what is in it."""
    for name in content:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"payload: {name!r} leaves its directory")
    if path.is_dir():
        return
    temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        for name, data in content.items():
            _compiled(temporary / name, data, path / name)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    try:
        os.rename(temporary, path)
    except OSError:  # somebody else put the same
        shutil.rmtree(temporary)


def _compiled(path: Path, data: bytes, final: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.write_bytes(data)
    if path.suffix == ".py":
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), dfile=str(final), doraise=False, quiet=2, invalidation_mode=mode)
