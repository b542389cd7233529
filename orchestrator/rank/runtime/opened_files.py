"""Records what the script of a reference run reads, starts and connects to, by audit events: a file ``opened-r<rank>.jsonl``.

Each line is a pair of JSON: ``open``, ``write``, ``list`` and ``native`` (a library) have a path, ``start`` a program, ``connect`` a
host, ``unknown`` a text. The last line of a script that ended is ``end``. A forked process writes into the same file.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Modules that start an interpreter in which nothing is recorded.
_SPAWNING = ("multiprocessing.popen_spawn_posix", "multiprocessing.popen_forkserver")
_STARTS = ("os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.spawn", "subprocess.Popen")
#: Functions of torch that open a file in C++: module -> name.
_NATIVE = {"torch": "from_file", "torch.jit": "load"}


def begin(path: str) -> Callable[[], None]:
    """Record from now on what this process opens, with the modules that it has imported. Return what records the end."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    known: set[tuple[str, str]] = set()

    def note(kind: str, value: object = "") -> None:
        text = os.fsdecode(value) if isinstance(value, str | bytes | os.PathLike) else str(value)
        if kind in ("open", "write", "list") or (kind == "native" and os.sep in text):
            text = os.path.abspath(text)  # noqa: PTH100 links stay as the script names them
        if (kind, text) not in known:
            known.add((kind, text))
            os.write(fd, json.dumps([kind, text]).encode() + b"\n")

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if read := _READERS.get(event) or (_start if event in _STARTS else None):
            with contextlib.suppress(Exception):  # an exception would end what the script does
                read(note, *args)

    _note_present(note)
    sys.addaudithook(hook)
    return lambda: _note_end(note)


def _note_present(note: Callable[..., None]) -> None:
    """Note the modules that this process has imported, and observe torch's own readers."""
    for module in list(sys.modules.values()):
        if file := getattr(module, "__file__", None):
            note("native" if file.endswith(".so") else "open", file)
    for name, function in _NATIVE.items():
        if name in sys.modules:
            setattr(sys.modules[name], function, _observed(getattr(sys.modules[name], function), note))


def _note_end(note: Callable[..., None]) -> None:
    for line in Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines():
        if "/" in line and not line.endswith(" (deleted)"):
            note("open", line[line.index("/") :])
    note("end")


def _observed(function: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def call(file: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            note("open", file)
        return function(file, *args, **kwargs)

    return call


def _open(note: Callable[..., None], path: Any, mode: str | None, flags: int) -> None:
    if not isinstance(path, int):
        note("write" if flags & os.O_ACCMODE == os.O_WRONLY else "open", path)


def _list(note: Callable[..., None], path: Any) -> None:
    note("list", Path(f"/proc/self/fd/{path}").readlink() if isinstance(path, int) else path or ".")


def _map(note: Callable[..., None], fd: int, *_: Any) -> None:
    if fd >= 0:
        note("open", Path(f"/proc/self/fd/{fd}").readlink())


def _import(note: Callable[..., None], name: str, file: str | None, *_: Any) -> None:
    if file:
        note("native", file)
    elif name in _SPAWNING:
        note("start", "another interpreter")


def _database(note: Callable[..., None], name: Any) -> None:
    if os.fsdecode(name).startswith("file:"):
        note("unknown", "it opened a database by an URI")
    elif os.fsdecode(name) not in ("", ":memory:"):
        for ending in ("", "-wal", "-journal"):
            note("open", os.fsdecode(name) + ending)


def _connect(note: Callable[..., None], _socket: Any, address: Any) -> None:
    if isinstance(address, tuple):
        note("connect", address[0])


def _send(note: Callable[..., None], _socket: Any, address: Any = None) -> None:
    _connect(note, _socket, address)


def _library(note: Callable[..., None], name: Any) -> None:
    if name:
        note("native", name)


def _start(note: Callable[..., None], program: Any, *_: Any) -> None:
    word = os.fsdecode(program).partition(" ")[0]
    note("start", "a shell" if "=" in word else word)  # what precedes a command, NAME=VALUE, may be secret


_READERS: dict[str, Callable[..., None]] = {
    "open": _open, "os.listdir": _list, "os.scandir": _list, "mmap.__new__": _map, "import": _import, "sqlite3.connect": _database,
    "socket.connect": _connect, "socket.sendto": _send, "socket.sendmsg": _send, "ctypes.dlopen": _library,
}  # fmt: skip
