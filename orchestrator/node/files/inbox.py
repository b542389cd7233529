"""The command inbox of an agent or keeper: takes command files, keeps each outcome, answers repeated commands from it.

Orders for the watcher inside of a rank are lines of ``orders-r<rank>.jsonl``, its answers lines of ``acts-r<rank>.jsonl``: a file reaches
a rank in whatever process it runs, forked by the agent, started cold, or started by a launcher of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ...model import codec
from ...model.event import REPEATED, Command
from ...model.frozen import dataclass, field
from ...model.payload import Payload
from ...system import inotify, plain_files

MAX_BYTES = 16 << 20
#: How many rejected files are kept in ``refused/``; older ones are removed.
MAX_REFUSED = 16
#: The type check of each field of a command file; None: the field is absent.
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

#: Responds to a command: called once with the type of the outcome (ok, fail) and its payload.
Respond = Callable[[str, Payload], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One file of the inbox. ``age_s``: seconds since it was written.

    ``outcome``: the kept outcome if the command was performed before. ``problem``: why the file is not a valid command.
    """

    name: str
    run: str = ""
    command: Command = field(default_factory=lambda: Command(f="", key=""))
    outcome: Mapping[str, Any] | None = None
    problem: str = ""
    age_s: float = 0.0


class Inbox:
    """The directories ``inbox/`` and ``done/`` of one agent or keeper. Items come in the order of their arrival."""

    def __init__(self, directory: Path, *, is_watched: bool = True) -> None:
        """``is_watched``: the kernel makes ``fd`` readable when a command arrives."""
        self._inbox = directory / "inbox"
        self._done = directory / "done"
        self._refused = directory / "refused"
        for path in (self._inbox, self._done):
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._watcher: inotify.Watcher | None = None
        if is_watched:
            self.watch()
        self._taken: set[str] = set()

    @property
    def fd(self) -> int:
        """Return the watcher's descriptor; below 0 if the inbox is not watched, as when the kernel has no inotify instance left."""
        return self._watcher.fd if self._watcher else -1

    def watch(self) -> None:
        self._watcher = inotify.Watcher()
        self._watcher.add_watch(str(self._inbox), inotify.MOVED_TO)

    def take(self) -> Iterator[Item]:
        """All items that arrived and are not being performed yet."""
        for name in self._pending_names():
            if name not in self._taken:
                item = self._read_item(name)
                if item:
                    self._taken.add(name)
                    yield item

    def finish(self, item: Item, outcome: Mapping[str, Any] | None = None) -> None:
        """Keep the outcome of an item, if there is one, and remove its file. A file that is no command is moved aside."""
        if item.problem and self._move_to_refused(item):
            self._taken.discard(item.name)
            return
        if outcome is not None:
            plain_files.write_json(self._done / item.name, outcome)
        try:
            (self._inbox / item.name).unlink(missing_ok=True)
        except OSError:  # a directory, for example: it stays, and is not taken again
            return
        self._taken.discard(item.name)

    def _move_to_refused(self, item: Item) -> bool:
        """Move a file out of the inbox; whether it is out. A file that cannot be moved stays and is not taken again."""
        try:
            self._refused.mkdir(mode=0o700, exist_ok=True)
            os.replace(self._inbox / item.name, self._refused / item.name)
            files = [path for path in self._refused.iterdir() if not path.is_dir() or path.is_symlink()]
            for old in sorted(files, key=lambda path: path.lstat().st_mtime_ns)[:-MAX_REFUSED]:
                old.unlink()
        except OSError:
            return not os.path.lexists(self._inbox / item.name)
        return True

    def _pending_names(self) -> list[str]:
        reported = self._watcher.read_names() if self._watcher else []
        present = {entry.name: entry.stat(follow_symlinks=False).st_mtime_ns for entry in _entries(self._inbox)}
        rest = sorted(present.keys() - set(reported), key=lambda name: (present[name], name))
        return [name for name in dict.fromkeys([*reported, *rest]) if name in present]

    def _read_item(self, name: str) -> Item | None:
        try:
            data, written = _read_command_file(self._inbox / name)
            run, command = _decode_command(data)
        except FileNotFoundError:
            return None
        except Exception as error:  # noqa: BLE001 any fault of the file: it is rejected once, and the next file is taken
            return Item(name=name, problem=f"{type(error).__name__}: {error}")
        outcome = plain_files.read_json(self._done / name)
        age_s = time.time() - written
        return Item(name=name, run=run, command=command, outcome=outcome or None, age_s=age_s)


def post_command(directory: Path, run: str, command: Command) -> None:
    """Put a command into the inbox of an agent or keeper. Raises OSError."""
    plain_files.replace_file(directory / "inbox" / command_file_name(run, command.key), encode_command(run, command))


def encode_command(run: str, command: Command) -> bytes:
    return json.dumps({**codec.plain(command), "run": run}).encode()


def command_file_name(run: str, key: str) -> str:
    return f"{run}.{key.replace('/', '_')}.json"


def required(value: T | None, name: str) -> T:
    """A field of a command. Raises ValueError if it is missing."""
    if value is None:
        raise ValueError(f"{name} is missing")
    return value


def repeated_outcome(outcome: Mapping[str, Any]) -> Mapping[str, Any]:
    """The kept outcome for a command that arrived again, marked so that it does not count as a second execution."""
    return {**outcome, "value": {**outcome["value"], REPEATED: True}}


def _decode_command(data: bytes) -> tuple[str, Command]:
    """(run, command) of a file's content. Raises an exception of any kind for an invalid command."""
    content = json.loads(data)
    run = content.pop("run", "bed")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise ValueError(f"run {str(run)[:80]!r} is not a name")
    if wrong_fields := [name for name, is_valid in _FIELDS.items() if not is_valid(content.get(name))]:
        raise TypeError(f"{', '.join(wrong_fields)}: wrong type")
    return run, codec.build(Command, content)


def _entries(directory: Path) -> list[os.DirEntry[str]]:
    with os.scandir(directory) as entries:
        return [entry for entry in entries if not entry.name.startswith(".")]


def _read_command_file(path: Path) -> tuple[bytes, float]:
    """(content, modification time). Raises PermissionError for links, files of other users and special files."""
    try:
        fd = plain_files.open_file(path)
    except OSError as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise PermissionError(f"not opened: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise PermissionError(f"owned by uid {status.st_uid}")
        if status.st_size > MAX_BYTES:
            raise PermissionError(f"{status.st_size} bytes are more than {MAX_BYTES}")
        return _read_all(fd, status.st_size), status.st_mtime
    finally:
        os.close(fd)


def _read_all(fd: int, size: int) -> bytes:
    parts = b""
    while len(parts) < size and (part := os.read(fd, size - len(parts))):
        parts += part
    return parts


_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


def append_order(out: Path, rank: int, order: Mapping[str, Any]) -> None:
    """Append one order. ``out``: the directory of the rank's attempt. Raises OSError."""
    fd = os.open(out / f"orders-r{rank}.jsonl", _FLAGS, 0o600)
    try:
        os.write(fd, json.dumps(order).encode() + b"\n")
    finally:
        os.close(fd)


def read_answers(out: Path, rank: int) -> list[dict[str, Any]]:
    """Return what the rank has done on order, as it reports: ``{"id", "problem"?, ...evidence}``; a torn last line is left out."""
    try:
        lines = (out / f"acts-r{rank}.jsonl").read_bytes().split(b"\n")[:-1]
    except OSError:
        return []
    read = []
    for line in lines:
        with contextlib.suppress(ValueError):
            read.append(json.loads(line))
    return [answer for answer in read if isinstance(answer, dict)]
