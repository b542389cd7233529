"""The trees of a host that are followed: which files are in them, and which of those are events."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

#: What is in a node's directory and is no output of it; hidden names are temporary files.
SKIPPED = frozenset({"heartbeat", "lock", "inbox", "done", "__pycache__"})
#: Nothing has the name any more.
GONE = (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A directory to follow (``path`` is relative). ``deep``: with what is below. ``cap``: bytes of bulk at most.

    Its own *.jsonl files are events: they are watched, and go first. Everything else is bulk, found by looking.
    """

    path: str
    node: str
    deep: bool = False
    cap: int = 1 << 40


def is_event(tree: Tree, name: str) -> bool:
    return name.endswith(".jsonl") and "/" not in name[len(tree.path) + 1 :]


def followed(name: str) -> bool:
    return not name.startswith(".") and name not in SKIPPED


def files(top: str, tree: Tree, closed: dict[str, str]) -> Iterator[tuple[str, str]]:
    """(path, relative name) of the files in a tree; links are not followed. ``closed``: gets what may not be looked into."""
    left = [(top, tree.path)]
    while left:
        directory, name = left.pop()
        try:
            with os.scandir(directory) as entries:
                found = [entry for entry in entries if followed(entry.name)]
        except OSError as error:
            if error.errno not in GONE:
                closed[name] = why(error)
            continue
        for entry in found:
            if entry.is_file(follow_symlinks=False):
                yield entry.path, f"{name}/{entry.name}"
            elif tree.deep and entry.is_dir(follow_symlinks=False):
                left.append((entry.path, f"{name}/{entry.name}"))


def there(path: str) -> bool:
    try:
        os.lstat(path)
    except OSError as error:
        return error.errno not in GONE
    return True


def why(error: OSError) -> str:
    return error.strerror or str(error)
