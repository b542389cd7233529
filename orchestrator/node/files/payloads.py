"""Payloads: the code that ranks import, stored on a host under the hash of its content."""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from ...system import plain_files

#: The hash of the ranks' code, beside that code. Equal hashes: an agent that has imported this code need not import it again.
RANK_HASH = "orchestrator/rank.sha256"
#: The files of workloads that agents import: those of scripts and of dp-ring. A user's plugin cannot have their names.
WORKLOADS = ("__init__.py", "script.py", "train_dp.py")


@functools.cache
def read_code(package: Path, folder: str) -> Mapping[str, bytes]:
    """Path in a payload -> content of each Python file below a folder of the package, which is read once."""
    skipped = len(f"{package}/")
    paths = (f"{top}/{name}" for top, _, names in os.walk(package / folder) for name in names if name.endswith(".py"))
    return {f"orchestrator/{path[skipped:]}": Path(path).read_bytes() for path in paths}


@functools.cache
def rank_code(package: Path) -> Mapping[str, bytes]:
    """Path in a payload -> content: the ranks' code with ``WORKLOADS``, and its hash.

    ``package``: this package's directory.
    """
    workloads = read_code(package, "workloads")
    names = (f"orchestrator/workloads/{name}" for name in WORKLOADS)
    code = {**read_code(package, "rank"), **{name: workloads[name] for name in names}}
    return {**code, RANK_HASH: content_hash(code).encode()}


def put_payload(directory: Path, content: Mapping[str, bytes]) -> Path:
    """Store a payload byte-compiled under the hash of its content; its path. A payload that exists is not written again."""
    for name in content:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"payload: {name!r} leaves its directory")
    path = directory / payload_hash(content)
    if path.is_dir():
        os.utime(path)  # its age counts from its last use
        return path
    temporary = directory / f".{path.name}.{secrets.token_hex(4)}"
    try:
        for name, data in content.items():
            _write(temporary / name, data, path / name)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    try:
        os.rename(temporary, path)
    except OSError:  # another process stored the same payload
        shutil.rmtree(temporary)
    return path


def content_hash(content: Mapping[str, bytes]) -> str:
    """The SHA-256 over names and contents, sorted by name."""
    total = hashlib.sha256()
    for name, data in sorted(content.items()):
        total.update(f"{name}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


def payload_hash(content: Mapping[str, bytes]) -> str:
    return content_hash(content)[:16]


def _write(path: Path, data: bytes, final: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(plain_files.create_file(path), "wb") as file:
        file.write(data)
    if path.suffix == ".py":
        import py_compile  # 3 modules; most payloads exist

        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), dfile=str(final), doraise=False, quiet=2, invalidation_mode=mode)
