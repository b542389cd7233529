"""Commands as files: taken from inbox/, answered once, the outcome kept in done/ for whoever asks again."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...model import codec
from ...model.event import REPEATED, Command
from ..oslayer import inotify
from . import label, plain_files

LIMIT = 16 << 20
#: So many files that are no commands are kept in ``refused/``; older ones are removed.
REFUSED = 16
#: What a field of a command's file must be; None: it is not there.
_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "f": lambda value: isinstance(value, str),
    "key": lambda value: isinstance(value, str),
    "node": lambda value: value is None or isinstance(value, str),
    "incarnation": lambda value: value is None or isinstance(value, str),
    "epoch": lambda value: value is None or (isinstance(value, int) and not isinstance(value, bool)),
    "deadline_s": lambda value: value is None or (isinstance(value, int | float) and not isinstance(value, bool)),
    "value": lambda value: value is None or isinstance(value, dict),
}
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A file of the inbox, that lay there for ``age_s`` seconds. ``outcome``: it was answered before.

    ``problem``: it is not a command that may be taken.
    """

    name: str
    run: str = ""
    command: Command = field(default_factory=lambda: Command(f="", key=""))
    outcome: Mapping[str, Any] | None = None
    problem: str = ""
    age_s: float = 0.0


class Inbox:
    """The two directories of one performer, in the order in which files were renamed into the first."""

    def __init__(self, directory: Path) -> None:
        self._inbox = directory / "inbox"
        self._done = directory / "done"
        self._refused = directory / "refused"
        for path in (self._inbox, self._done):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._watcher = inotify.Watcher()
        self._watcher.watch(str(self._inbox), inotify.MOVED_TO)
        self._taken: set[str] = set()

    @property
    def fd(self) -> int:
        return self._watcher.fd

    def take(self) -> Iterator[Item]:
        """Everything that came in and is not being worked on yet."""
        for name in self._names():
            if name not in self._taken:
                item = self._open(name)
                if item:
                    self._taken.add(name)
                    yield item

    def finish(self, item: Item, outcome: Mapping[str, Any] | None = None) -> None:
        """Done with a file: keep its outcome (None: keep nothing), then remove it; one that is no command is moved aside."""
        if item.problem and self._moved_aside(item):
            self._taken.discard(item.name)
            return
        if outcome is not None:
            label.write(self._done / item.name, outcome)
        try:
            (self._inbox / item.name).unlink(missing_ok=True)
        except OSError:  # a directory, say: left where it is, and never looked at again
            return
        self._taken.discard(item.name)

    def _moved_aside(self, item: Item) -> bool:
        """Whether the file is out of the inbox; one that cannot be moved stays, and is not taken again."""
        try:
            self._refused.mkdir(mode=0o700, exist_ok=True)
            os.replace(self._inbox / item.name, self._refused / item.name)
            files = [path for path in self._refused.iterdir() if not path.is_dir() or path.is_symlink()]
            for old in sorted(files, key=lambda path: path.lstat().st_mtime_ns)[:-REFUSED]:
                old.unlink()
        except OSError:
            return not os.path.lexists(self._inbox / item.name)
        return True

    def _names(self) -> list[str]:
        reported = self._watcher.drain()
        present = {entry.name: entry.stat(follow_symlinks=False).st_mtime_ns for entry in _entries(self._inbox)}
        rest = sorted(present.keys() - set(reported), key=lambda name: (present[name], name))
        return [name for name in dict.fromkeys([*reported, *rest]) if name in present]

    def _open(self, name: str) -> Item | None:
        try:
            data, written = _read(self._inbox / name)
            run, command = _parsed(data)
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 whatever is wrong with it: it is refused once, and the next is taken
            return Item(name=name, problem=f"{type(error).__name__}: {error}")
        outcome = label.read(self._done / name)
        age_s = time.time() - written
        return Item(name=name, run=run, command=command, outcome=outcome or None, age_s=age_s)


def _parsed(data: bytes) -> tuple[str, Command]:
    """(run, command) of a file's content. Raises an exception for what is none, of whatever kind."""
    content = json.loads(data)
    run = content.pop("run", "bed")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise ValueError(f"run {str(run)[:80]!r} is not a name")
    if problems := [name for name, right in _FIELDS.items() if not right(content.get(name))]:
        raise TypeError(f"{', '.join(problems)}: of another type")
    return run, codec.build(Command, content)


def post(directory: Path, run: str, command: Command) -> None:
    """Put a command into a performer's inbox: written beside, then renamed."""
    place(directory / "inbox" / file_name(run, command.key), encoded(run, command))


def encoded(run: str, command: Command) -> bytes:
    """The content of a command's file."""
    return json.dumps({**codec.plain(command), "run": run}).encode()


def place(target: Path, data: bytes) -> None:
    """A file, written beside its place and renamed into it: its readers see all of it or nothing."""
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with open(plain_files.made(temporary), "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def file_name(run: str, key: str) -> str:
    return f"{run}.{key.replace('/', '_')}.json"


def again(outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answer to a command that came again: what was answered, marked, so that nobody takes it for a second deed."""
    return {**outcome, "value": {**outcome["value"], REPEATED: True}}


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _read(path: Path) -> tuple[bytes, float]:
    """The content of a command file, and when it was written.

    Raises PermissionError for links, other people's files and what is no plain file.
    """
    try:
        fd = plain_files.opened(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise PermissionError(f"not opened: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"owned by uid {status.st_uid}")
        if status.st_size > LIMIT:
            raise PermissionError(f"{status.st_size} bytes are more than {LIMIT}")
        return _whole(fd, status.st_size), status.st_mtime
    finally:
        os.close(fd)


def _whole(fd: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size and (part := os.read(fd, size - len(parts))):
        parts += part
    return parts
