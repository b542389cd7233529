"""Files of nodes on this machine: copies with a size limit, payloads addressed by content."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from ..model.errors import UsageError
from ..model.provider import Fetched, Provider
from ..node.files.payloads import payload_hash, put_payload
from ..system import plain_files

__all__ = ["fetch", "payload_hash", "put_payload"]

#: How many unreadable files a reason names.
NAMED = 3
#: The variable that sets how many MiB are brought from one node.
LIMIT_MIB = "CCBED_NODE_FILES_MIB"
#: Where fewer bytes than these may be brought, of a log the first ones alone are.
SMALL_LOG = 4096
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def node_limit() -> int:
    """Bytes that are brought from one node at most; a file that is cut is recorded as such. Raises UsageError."""
    text = os.environ.get(LIMIT_MIB, "256")
    if not text.isdecimal() or not 0 < int(text) < 1 << 20:
        raise UsageError(f"{LIMIT_MIB}: must be a number of MiB (got {text})")
    return int(text) << 20


def fetch(roots: Sequence[Path], path: str, to: Path, limit: int) -> Fetched:
    """Copy a file or a tree, ``limit`` bytes at most in all. Paths are relative to the first root, or below one of them.

    Raises OSError if this machine has no space for the copy: that is no fault of the node.
    """
    source = Path(os.path.realpath(roots[0] / path))
    if not any(source.is_relative_to(os.path.realpath(root)) for root in roots):
        return Fetched(path=path, size=0, reason="outside of the node's directory")
    if not source.exists():
        return Fetched(path=path, size=0, reason="not there")
    size, capped = 0, []
    problems: list[str] = []
    for file in _files(source, problems):
        target = to / file.relative_to(source) if source.is_dir() else to
        try:
            copied, cut = _copy(file, target, limit - size)
        except OSError as error:
            if error.errno in NO_SPACE:
                raise
            problems.append(f"{file.name}: {error.strerror}")
            continue
        size += copied
        capped += [target.relative_to(to).as_posix()] if cut else []
    return Fetched(path=path, size=size, capped=tuple(capped), reason=summary(problems))


def fetch_each(
    fetch: Callable[[str, str, Path, int], Fetched], node: str, wanted: Sequence[tuple[str, Path]], limit: int
) -> list[Fetched]:
    """Fetch one after the other, within one limit for all."""
    results: list[Fetched] = []
    for path, to in wanted:
        results.append(fetch(node, path, to, max(0, limit - sum(got.size for got in results))))
    return results


def summary(problems: Sequence[str]) -> str:
    """The problems as one text; the first few are named."""
    more = [f"and {len(problems) - NAMED} more"] if len(problems) > NAMED else []
    return ", ".join([*problems[:NAMED], *more])


def _files(source: Path, problems: list[str]) -> Iterator[Path]:
    """The plain files of a tree, small ones first, so that a cap cuts the fewest; links are not followed.

    ``problems`` receives the directories that cannot be listed.
    """
    if not source.is_dir():
        yield source
        return
    files = []
    for directory, _, names in os.walk(
        source, onerror=lambda error: problems.append(f"{Path(error.filename).name}: {error.strerror}")
    ):
        paths = (Path(directory, name) for name in names)
        files += [path for path in paths if path.is_file() and not path.is_symlink()]
    yield from sorted(files, key=lambda path: (path.stat().st_size, path))


def _copy(source: Path, target: Path, max_bytes: int) -> tuple[int, bool]:
    """(bytes copied, whether the limit cut the file)."""
    with open(plain_files.open_file(source), "rb") as file, _target(target) as out:
        length = os.fstat(file.fileno()).st_size
        copied = 0
        for start, end in parts(source.name, length, max_bytes):
            if start:
                out.write(gap(start - copied))
            file.seek(start)
            at = start
            while at < end and (block := file.read(min(1 << 20, end - at))):
                out.write(block)
                at += len(block)
            copied += at - start
        return copied, copied < length


def parts(name: str, length: int, max_bytes: int) -> tuple[tuple[int, int], ...]:
    """Return which bytes of a file are brought, (start, end): of a log that is too long its first and last ones, else the first ones."""
    if length <= max_bytes or not name.endswith(".log") or max_bytes < SMALL_LOG:
        return ((0, min(length, max_bytes)),)
    half = max_bytes // 2
    return ((0, half), (length - half, length))


def gap(length: int) -> bytes:
    """A line of a log in place of ``length`` bytes."""
    return f"\nccbed: {length:,} bytes are left out here; {LIMIT_MIB} raises the limit\n".encode()


def _target(path: Path) -> BinaryIO:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("wb")


_SYSTEM = "system.json"
_LARGEST_SYSTEM = 1024 * 1024


def read_systems(provider: Provider, nodes: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The ``system.json`` of each node; empty for a node whose file is missing. The provider is open."""
    wanted = tuple(nodes)
    with tempfile.TemporaryDirectory(prefix="ccbed-systems-") as folder, ThreadPoolExecutor(max_workers=16) as pool:
        systems = pool.map(lambda name: _read_system(provider, name, Path(folder) / name / _SYSTEM), wanted)
        return dict(zip(wanted, systems, strict=True))


def _read_system(provider: Provider, name: str, to: Path) -> Mapping[str, Any]:
    provider.fetch(name, _SYSTEM, to, _LARGEST_SYSTEM)
    try:
        content = json.loads(to.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
