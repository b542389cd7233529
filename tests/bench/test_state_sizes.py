"""A lost node and gigabytes of state: where the time goes from the kill to the first step of every rank.

The trials gpt-1gb and gpt-4gb as they are shipped; CCBED_BENCH_STATES names them (default 1gb). The least time is the detection,
the bytes of the checkpoint at the rate at which as many processes read them, and the start of the process group.
"""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from orchestrator import views
from orchestrator.model import watch
from orchestrator.store import bundle

from . import table
from .bed import Bed

STATES = os.environ.get("CCBED_BENCH_STATES", "1gb").split(",")
LIMIT_S = 3000
#: Reads a file and prints the seconds.
READ = """
import sys, time
buffer, begin = bytearray(1 << 24), time.perf_counter()
with open(sys.argv[1], "rb", buffering=0) as file:
    while file.readinto(buffer):
        pass
print(time.perf_counter() - begin)
"""
#: What a rank does after it has joined its process group.
PARTS = (
    "build the model", "torch.load", "watcher: digest of the load", "load_state_dict, DDP, forward, backward",
    "watcher: digest of the state", "optimizer step",
)  # fmt: skip


@pytest.mark.timeout(2 * LIMIT_S)
@pytest.mark.parametrize("size", STATES)
def test_a_lost_node_with_gigabytes_of_state(bed: Bed, size: str) -> None:
    file = bed.folder / "gpt-ddp.pt"
    file.unlink(missing_ok=True)
    bed.call("run", f"gpt-{size}", "--fail-node", "1", "--no-reference", timeout_s=LIMIT_S)
    run = bundle.load((bed.folder / "runs" / "latest").resolve())
    (failover,) = views.failovers(run.trial, run.history, run.files.steps())
    assert failover.ttr_s is not None and failover.detect_s is not None
    ranks = [record for record in run.files.watch() if record.attempt == failover.epoch]
    read_s, size_bytes = _read_s(file, len(ranks)), file.stat().st_size
    phases = dict(failover.phases)
    least_s = failover.detect_s + read_s + phases["store"] + phases["join"]
    rate = size_bytes / 1e9 / read_s
    lines = [
        f"gpt-{size}: killed to first step of every rank {failover.ttr_s:.2f} s, {failover.ttr_s / least_s:.1f} x the least",
        f"  least {least_s:.2f} s: detection {failover.detect_s:.3f}, start of the process group {phases['store'] + phases['join']:.3f},",
        f"    {size_bytes / 1e9:.2f} GB at {rate:.2f} GB/s for each of {len(ranks)} readers at once {read_s:.2f}",
        "  phases: " + ", ".join(f"{name} {seconds:.3f}" for name, seconds in phases.items()),
        *(f"  rank {record.rank}: {_parts(record)}; peak {_peak_gib(record):.1f} GiB" for record in ranks),
        f"  {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end",
    ]
    table.OUT.mkdir(exist_ok=True)
    (table.OUT / f"state-{size}.md").write_text("\n".join(lines) + "\n")
    print("\n" + "\n".join(lines))


def _parts(record: watch.WatchFile) -> str:
    """The seconds of each part, up to the end of the first step."""
    load, first = record.of(watch.Load)[0], record.of(watch.Step)[0]
    times = (
        record.of(watch.Joined)[0].t, load.called, load.end, load.t, record.of(watch.Owner)[0].t,
        record.of(watch.State)[0].t, first.end,
    )  # fmt: skip
    known = [time for time in times if time is not None]
    assert len(known) == len(PARTS) + 1
    return ", ".join(f"{name} {end - begin:.2f}" for name, (begin, end) in zip(PARTS, pairwise(known), strict=True))


def _peak_gib(record: watch.WatchFile) -> float:
    return (record.of(watch.End)[0].peak_bytes or 0) / (1 << 30)


def _read_s(file: Path, readers: int) -> float:
    """Seconds until each of these processes has read the file; from memory if it is there, as after a lost node."""
    argv = [sys.executable, "-c", READ, str(file)]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(readers)]
    return max(float(process.communicate()[0]) for process in processes)
