"""Measures a disk by fio, where it is installed: the same patterns as ours, with fio's own timing."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...model.events import ProbeFigure
from .results import Fact, Missing, Node, Result

#: Seconds of one call of fio at most.
LIMIT_S = 120.0
#: Writes of 4 KiB, each followed by an fsync.
SYNCED = 200
_NANOSECOND = 1e-9


def measure(node: Node, program: str, label: str, directory: Path) -> Iterator[Result]:
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
                rates = tuple(_rate(_run(program, work, options), kind) for _ in range(node.params.repeats))
            except (OSError, subprocess.SubprocessError, ValueError, KeyError, ZeroDivisionError) as error:
                yield Missing(name=f"disk {label} {kind} (fio)", reason=f"fio: {_reason(error)}")
                continue
            yield ProbeFigure(name=f"disk {label} {kind} (fio)", unit="MB/s", better="higher", values=rates)
        yield from _latencies(node, program, label, work)


def _latencies(node: Node, program: str, label: str, work: str) -> Iterator[Result]:
    options = ("--rw=write", "--bs=4k", f"--size={4 * SYNCED}k", "--fsync=1", "--filename=synced")
    name = f"disk {label} fsync"
    try:
        syncs = [_run(program, work, options)["sync"]["lat_ns"]["percentile"] for _ in range(node.params.repeats)]
        tails = {part: tuple(sync[f"{part}.000000"] * _NANOSECOND for sync in syncs) for part in (50, 99)}
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        yield Missing(name=f"{name} (fio)", reason=f"fio: {_reason(error)}")
        return
    for part, values in tails.items():
        yield ProbeFigure(name=f"{name} p{part} (fio)", unit="s", better="lower", values=values)


def _run(program: str, work: str, options: tuple[str, ...]) -> Any:
    """The report of the job. Raises CalledProcessError, ValueError or KeyError where it failed."""
    argv = [program, "--name=probe", "--ioengine=psync", "--output-format=json", *options]
    done = subprocess.run(argv, cwd=work, capture_output=True, text=True, timeout=LIMIT_S, check=True)
    job = json.loads(done.stdout)["jobs"][0]
    if job["error"]:
        raise ValueError(f"error {job['error']}")
    return job


def _rate(job: Any, kind: str) -> float:
    """The bytes of the job over its whole time, in MB/s."""
    return float(job[kind]["io_bytes"]) / 1e3 / float(job["job_runtime"])


def _reason(error: Exception) -> str:
    stderr = str(getattr(error, "stderr", "") or "").strip()
    return stderr.splitlines()[-1] if stderr else f"{type(error).__name__}: {error}"
