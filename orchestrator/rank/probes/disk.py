"""Rates and latency of the disk: sequential write and read, fsync; node directory and shared directory; by fio where installed."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ...model.events import ProbeFigure
from ..node_probe import fio
from ..node_probe.results import Fact, Missing, Node, Result

BLOCK = 1 << 20
#: Bytes of a write before an fsync, calls of fsync in a repeat, and of how many calls a 99th percentile is stated.
SMALL, CALLS, CALLS_FOR_P99 = 4096, 200, 100


def measure(node: Node) -> Iterator[Result]:
    """MB/s (10^6 bytes) and seconds, for both directories, or for one if they are on the same file system."""
    yield from _directory(node, "node", node.directory)
    if node.directory.stat().st_dev == node.shared.stat().st_dev:
        yield Missing(name="disk shared", reason="the shared directory is on the file system of the node directory")
    else:
        yield from _directory(node, "shared", node.shared)


def _directory(node: Node, label: str, directory: Path) -> Iterator[Result]:
    program = shutil.which("fio") if node.params.disk_tool != "ccbed" else None
    if program:
        yield Fact(name=f"disk {label}", text=file_system(node, directory))
        yield from fio.measure(node, program, label, directory)
    elif node.params.disk_tool == "fio":
        yield Missing(name=f"disk {label}", reason="fio is not installed on the node")
    else:
        yield from _by_ccbed(node, label, directory)


def _by_ccbed(node: Node, label: str, directory: Path) -> Iterator[Result]:
    yield Fact(
        name=f"disk {label}",
        text=f"{file_system(node, directory)}, {node.params.disk_mib} MiB in blocks of 1 MiB, by ccbed",
    )
    size = node.params.disk_mib * BLOCK
    writes, reads, manner = [], [], ""
    for _ in range(node.params.repeats):
        with tempfile.TemporaryDirectory(prefix=".ccbed-probe-", dir=directory) as work:
            path = f"{work}/sequential"
            writes.append(size / 1e6 / _write(path, node.params.disk_mib))
            seconds, manner = _read(path)
            reads.append(size / 1e6 / seconds)
    yield Fact(name=f"disk {label} read", text=manner)
    yield ProbeFigure(name=f"disk {label} write", unit="MB/s", better="higher", values=tuple(writes))
    yield ProbeFigure(name=f"disk {label} read", unit="MB/s", better="higher", values=tuple(reads))
    yield from _latencies(node, label, directory)


def _write(path: str, blocks: int) -> float:
    """Seconds, with the fsync at the end."""
    block = os.urandom(BLOCK)
    begin = time.perf_counter()
    file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        for _ in range(blocks):
            _write_all(file, block)
        os.fsync(file)
    finally:
        os.close(file)
    return time.perf_counter() - begin


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _read(path: str) -> tuple[float, str]:
    """Seconds, and how the page cache was avoided."""
    try:
        file, manner = os.open(path, os.O_RDONLY | os.O_DIRECT), "past the page cache (O_DIRECT)"
    except OSError:
        file, manner = (
            os.open(path, os.O_RDONLY),
            "the page cache was dropped (posix_fadvise), as far as the file system does it",
        )
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    try:
        with mmap.mmap(-1, BLOCK) as buffer:  # its pages are aligned, as O_DIRECT requires
            begin = time.perf_counter()
            while os.readv(file, [buffer]):
                pass
            return time.perf_counter() - begin, manner
    finally:
        os.close(file)


def _latencies(node: Node, label: str, directory: Path) -> Iterator[Result]:
    """Of 4 KiB that are appended and synchronised, until the repeat has as many calls, or five times its seconds."""
    medians, tails = [], []
    for _ in range(node.params.repeats):
        with tempfile.TemporaryFile(dir=directory) as file:
            times = _fsyncs(file.fileno(), 5 * node.params.repeat_s)
        medians.append(statistics.median(times))
        if len(times) >= CALLS_FOR_P99:
            tails.append(sorted(times)[round(0.99 * (len(times) - 1))])
    yield ProbeFigure(name=f"disk {label} fsync p50", unit="s", better="lower", values=tuple(medians))
    if len(tails) == len(medians):
        yield ProbeFigure(name=f"disk {label} fsync p99", unit="s", better="lower", values=tuple(tails))
    else:
        yield Missing(
            name=f"disk {label} fsync p99",
            reason=f"a repeat has fewer than {CALLS_FOR_P99} calls in {5 * node.params.repeat_s:g} s",
        )


def _fsyncs(file: int, limit_s: float) -> list[float]:
    """Seconds of each call."""
    times: list[float] = []
    end, data = time.perf_counter() + limit_s, bytes(SMALL)
    while len(times) < CALLS and (not times or time.perf_counter() < end):
        begin = time.perf_counter()
        _write_all(file, data)
        os.fsync(file)
        times.append(time.perf_counter() - begin)
    return times


def file_system(node: Node, directory: Path) -> str:
    device = directory.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(node.system / "proc/self/mountinfo") as file:
            lines = [line.split() for line in file]
    except OSError:
        return "unknown file system"
    kinds = [fields[fields.index("-") + 1] for fields in lines if fields[2] == number]
    return kinds[-1] if kinds else "unknown file system"
