"""Rates and latency of the disk: sequential write and read, fsync; node directory and shared directory; by fio where installed."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...model.events import ProbeFigure
from ..node_probe.probe_results import Fact, Missing, Node, Result

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
        yield from measure_by_fio(node, program, label, directory)
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
    """Time appends of 4 KiB with fsync, until a repeat has ``CALLS`` calls, or takes five times its seconds."""
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


#: Seconds of one call of fio at most.
LIMIT_S = 120.0
#: Writes of 4 KiB, each followed by an fsync.
SYNCED = 200
_NANOSECOND = 1e-9


def measure_by_fio(node: Node, program: str, label: str, directory: Path) -> Iterator[Result]:
    """MB/s of the whole job with the fsync at its end, and seconds of an fsync; names end in ``(fio)``."""
    size = node.params.disk_mib
    yield Fact(name=f"disk {label} fio", text=f"{size} MiB in blocks of 1 MiB, psync")
    with tempfile.TemporaryDirectory(prefix=".ccbed-probe-", dir=directory) as work:
        jobs = {
            "write": ("--rw=write", "--bs=1M", f"--size={size}M", "--end_fsync=1", "--filename=sequential"),
            "read": ("--rw=read", "--bs=1M", f"--size={size}M", "--direct=1", "--filename=sequential"),
        }
        for kind, options in jobs.items():
            try:
                rates = tuple(_fio_rate(_run_fio(program, work, options), kind) for _ in range(node.params.repeats))
            except (OSError, subprocess.SubprocessError, ValueError, KeyError, ZeroDivisionError) as error:
                yield Missing(name=f"disk {label} {kind} (fio)", reason=f"fio: {_reason(error)}")
                continue
            yield ProbeFigure(name=f"disk {label} {kind} (fio)", unit="MB/s", better="higher", values=rates)
        yield from _fio_latencies(node, program, label, work)


def _fio_latencies(node: Node, program: str, label: str, work: str) -> Iterator[Result]:
    options = ("--rw=write", "--bs=4k", f"--size={4 * SYNCED}k", "--fsync=1", "--filename=synced")
    name = f"disk {label} fsync"
    try:
        syncs = [_run_fio(program, work, options)["sync"]["lat_ns"]["percentile"] for _ in range(node.params.repeats)]
        tails = {part: tuple(sync[f"{part}.000000"] * _NANOSECOND for sync in syncs) for part in (50, 99)}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        yield Missing(name=f"{name} (fio)", reason=f"fio: {_reason(error)}")
        return
    for part, values in tails.items():
        yield ProbeFigure(name=f"{name} p{part} (fio)", unit="s", better="lower", values=values)


def _run_fio(program: str, work: str, options: tuple[str, ...]) -> Any:
    """The report of the job. Raises CalledProcessError, ValueError or KeyError where it failed."""
    argv = [program, "--name=probe", "--ioengine=psync", "--output-format=json", *options]
    done = subprocess.run(argv, cwd=work, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    job = json.loads(done.stdout)["jobs"][0]
    if job["error"]:
        raise ValueError(f"error {job['error']}")
    return job


def _fio_rate(job: Any, kind: str) -> float:
    """The bytes of the job over its whole time, in MB/s."""
    return float(job[kind]["io_bytes"]) / 1e3 / float(job["job_runtime"])


def _reason(error: Exception) -> str:
    stderr = str(getattr(error, "stderr", "") or "").strip()
    return stderr.splitlines()[-1] if stderr else f"{type(error).__name__}: {error}"
