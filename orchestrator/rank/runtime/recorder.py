"""Records what a rank does: events, a line per step, a binary record per chunk, imported files. Unbuffered: SIGKILL loses nothing."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import struct
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ...model import codec
from ...model.payload import Payload
from . import run_gaps

#: step, op, index, peer, chunk, bytes, start, end
CHUNK = struct.Struct("<IHHHHQdd")
#: Larger files that a rank imports are named with their size and not hashed, in bytes.
LARGEST = 64 * 1024 * 1024


def boot_id() -> str:
    """The random id that the kernel draws at each boot."""
    return read("/proc/sys/kernel/random/boot_id").strip()


class Appender:
    """A file that is only appended to, one write per call."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def line(self, value: Mapping[str, Any]) -> None:
        self.write(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace") + b"\n")


def write(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whatever umask the user's program has set."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as out:
        out.write(text)


def read(path: str | Path) -> str:
    """The text of a file, such as of the kernel's; empty if it cannot be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


class Notes:
    """The rank's control events (``note`` lines). Its ``writer`` and running number make every line unique."""

    def __init__(self, path: str, *, node: str, incarnation: str, rank: int, epoch: int) -> None:
        self.path = path
        self._out = Appender(path)
        self._boot = boot_id()
        self._rank, self._epoch = rank, epoch
        self._source = {"node": node, "incarnation": incarnation, "writer": f"rank-{rank}.e{epoch}"}
        self._n = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def note(self, payload: Payload) -> None:
        self._append(payload.NAME, codec.plain(payload))

    def emit(self, f: str, **value: Any) -> None:
        """Append one observation with what a workload reports; ``rank`` is added to the value."""
        self._append(f, codec.plain({"rank": self._rank, **value}))

    def _append(self, f: str, value: Any) -> None:
        """Processes that the rank has forked write nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:  # a thread of the watcher reports saves
            self._n += 1
            self._out.line(
                {
                    "type": "note",
                    "f": f,
                    "node": self._source["node"],
                    "epoch": self._epoch,
                    "value": value,
                    "at": {"boot": self._boot, "mono": time.monotonic(), "wall": time.time()},
                    "source": {**self._source, "n": self._n},
                }
            )


def sums(directory: Path, names: Iterable[str]) -> dict[str, str]:
    """Name -> SHA-256 of the files that exist."""
    return {name: str(prefix["sha256"]) for name, prefix in prefixes(directory, names).items()}


def prefixes(directory: Path, names: Iterable[str]) -> dict[str, dict[str, int | str]]:
    """Name -> the bytes of the files that exist, and their SHA-256; what is written meanwhile may be left out."""
    read: dict[str, dict[str, int | str]] = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError), (directory / name).open("rb") as source:
            digest, size = hashlib.sha256(), 0  # file_digest needs Python 3.11
            while part := source.read(1 << 20):
                digest.update(part)
                size += len(part)
            read[name] = {"bytes": size, "sha256": digest.hexdigest()}
    return read


class Steps:
    """``steps-r<rank>.jsonl``: one line per finished step."""

    def __init__(self, path: str) -> None:
        self._out = Appender(path)

    def add(
        self,
        step: int,
        loss: float,
        start: float,
        end: float,
        digest: str | None,
        share: tuple[str, str, int] | None = None,
        gaps: Sequence[run_gaps.Gap] | None = None,
    ) -> None:
        """``share``: digests of the samples of the rank's share and of the whole batch, and the number of its samples.

        ``gaps``: when the process did not run; None: not watched.
        """
        samples = {"samples": share[0], "batch": share[1], "count": share[2]} if share else {}
        not_run = {"gaps": gaps} if gaps is not None else {}
        self._out.line(
            {
                "step": step,
                "loss": float(loss).hex(),
                "start": start,
                "end": end,
                "digest": digest,
                **samples,
                **not_run,
            }
        )


class Chunks:
    """``chunks-r<rank>.bin``: buffered in memory while a step is timed, written when the step has ended."""

    def __init__(self, path: str, capacity: int = 1024) -> None:
        self._out = Appender(path)
        self._buffer = bytearray(CHUNK.size * capacity)
        self._used = 0
        #: Records in the file.
        self.written = 0

    def add(self, *fields: float) -> None:
        """One record in the order of CHUNK."""
        if self._used == len(self._buffer):
            self._buffer.extend(bytes(len(self._buffer)))
        CHUNK.pack_into(self._buffer, self._used, *fields)
        self._used += CHUNK.size

    def discard(self) -> None:
        """Discard the records that are not written yet: a warm-up leaves no record."""
        self._used = 0

    def flush(self) -> None:
        if self._used:
            self._out.write(memoryview(self._buffer)[: self._used])
            self.written += self._used // CHUNK.size
            self._used = 0


def write_imported(out: Path, rank: int, user: Path, last: str) -> None:
    """Write ``imported-r<rank>.json`` into ``out`` if the rank imported files of ``user`` after the module ``last``. Raises OSError."""
    files = imported_files(modules_since(last), user)
    if files:
        write(out / f"imported-r{rank}.json", json.dumps(files, indent=1) + "\n")


def modules_since(last: str) -> dict[str, ModuleType]:
    """The program, and the modules that were imported after the module ``last``; all modules if that is gone.

    A rank that read the file of each module that the agent imported would copy 5,000 pages of memory.
    """
    count, names = 64, _newest_modules(64)
    while last not in names and len(names) == count:
        count *= 8
        names = _newest_modules(count)
    newer = names[: names.index(last)] if last in names else names
    return {name: sys.modules[name] for name in ("__main__", *newer) if name in sys.modules}


def _newest_modules(count: int) -> list[str]:
    """List the newest modules in one step, as another thread may import a module."""
    return list(itertools.islice(reversed(sys.modules), count))


def imported_files(modules: Mapping[str, ModuleType], user: Path) -> dict[str, dict[str, str | int]]:
    """Path below ``user`` -> module, size and SHA-256, for every imported file of the user."""
    result = {}
    for name, module in sorted(modules.items()):
        file = Path(str(getattr(module, "__file__", None) or ""))
        if file.is_relative_to(user) and "site-packages" not in file.parts and file.is_file():
            result[str(file.relative_to(user))] = {"module": name, **_described(file)}
    return result


def _described(file: Path) -> dict[str, str | int]:
    size = file.stat().st_size
    if size > LARGEST:
        return {"size_bytes": size, "sha256": "not hashed"}
    return {"size_bytes": size, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()}
