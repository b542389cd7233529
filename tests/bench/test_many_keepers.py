"""The orchestrator against keepers: connect, start, stop, gather, files, threads, memory, and the bytes of an idle bed's events.

The keepers are real and without ranks, on this machine (``keeper_farm``). CCBED_BENCH_KEEPERS (default ``16,64``) says how many,
e.g. ``64,256,1024``: each needs 14 MiB. CCBED_BENCH_IDLE_S: how long the idle bed is observed. Time and memory are those of this
process; the hosts share its cores.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from . import table
from . import test_many_nodes as many
from .keeper_bed import RUN, KeeperBed, keeper_bed, timed

KEEPERS = tuple(int(count) for count in os.environ.get("CCBED_BENCH_KEEPERS", "16,64").split(","))
HOST_MIB, RESERVE_MIB = 14, 1024
#: Of a bed with 1,024 keepers that does nothing.
MOST_BYTES_PER_HOUR = 10e6


@dataclass(frozen=True, kw_only=True)
class Cost:
    """``nodes``: keepers. ``cpu_s``: of the orchestrator for all that has a time here. ``*_mib``: PSS. ``idle_share``: of one core, with
    a run open; ``hosts_idle_share``: the same of all hosts. ``start_cpu_s``: of the orchestrator, without that of its
    connections at rest.
    ``bytes_per_hour``: what all files of events and of output grew in IDLE_S, extrapolated in proportion.
    """

    nodes: int
    connect_s: float
    start_s: float
    start_cpu_s: float
    status_s: float
    commands_s: float
    gather_s: float
    stop_s: float
    cpu_s: float
    own_mib: float
    hosts_mib: float
    idle_share: float
    hosts_idle_share: float
    files: int
    threads: int
    events_bytes: int
    bytes_per_hour: float


def test_cost_grows_no_faster_than_the_keepers(tmp_path: Path) -> None:
    costs = [measure(tmp_path / str(count), count) for count in KEEPERS]
    growth = many.write("many-keepers", costs)
    # The hosts that run already share this machine's cores with those that start, so that the time by the clock grows with both.
    del growth["start_s"], growth["hosts_idle_share"]
    if max(KEEPERS) >= many.SPAN * min(KEEPERS):
        assert many.quadratic(growth) == {}
    assert all(cost.bytes_per_hour * 1024 / cost.nodes < MOST_BYTES_PER_HOUR for cost in costs)
    assert len({cost.threads for cost in costs}) == 1, "no thread per keeper"


def measure(folder: Path, count: int) -> Cost:
    if (free := free_mib()) < HOST_MIB * count + RESERVE_MIB:
        pytest.fail(f"{count} keepers need {HOST_MIB * count} MiB, and {free:.0f} MiB are free")
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    with keeper_bed(folder, count) as bed:
        provider, spec, cpu = bed.provider, bed.spec, time.process_time()
        connect_s = timed(lambda: provider.connect(spec))
        before_start = time.process_time()
        start_s = timed(lambda: provider.prepare(spec))
        start_cpu_s = time.process_time() - before_start - start_s * share_at_rest()
        status_s = timed(lambda: provider.observe(spec, memory=False))
        commands_s = timed(bed.command_all)
        bed.write_files()
        provider.open(spec, RUN)
        gather_s = timed(lambda: bed.gather(folder / "bundle"))
        cpu_s = time.process_time() - cpu
        time.sleep(1.0)  # threads that have nothing to do end
        files, threads = len(os.listdir("/proc/self/fd")) - files, threading.active_count() - threads
        hosts_mib = sum(map(many.pss_mib, many.family([bed.farm])))
        own_mib, events_bytes = many.pss_mib(os.getpid()), written(bed)
        idle_share, hosts_idle_share, grown = idle(bed)
        stop_s = timed(lambda: provider.retire(spec))
    cost = Cost(
        nodes=count, connect_s=connect_s, start_s=start_s, start_cpu_s=start_cpu_s, status_s=status_s, commands_s=commands_s,
        gather_s=gather_s, stop_s=stop_s, cpu_s=cpu_s, own_mib=own_mib, hosts_mib=hosts_mib, idle_share=idle_share,
        hosts_idle_share=hosts_idle_share, files=files, threads=threads, events_bytes=events_bytes, bytes_per_hour=grown,
    )  # fmt: skip
    print(cost, table.machine(), flush=True)
    return cost


def share_at_rest() -> float:
    """Of a core, of this process, while nothing is requested of the hosts."""
    cpu, begin = time.process_time(), time.monotonic()
    time.sleep(2.0)
    return (time.process_time() - cpu) / (time.monotonic() - begin)


def idle(bed: KeeperBed) -> tuple[float, float, float]:
    """(share of a core, that of all hosts, bytes per hour) while the provider is polled as by the loop of a run, and nothing happens."""
    cursors = bed.provider.open(bed.spec, RUN)
    hosts = many.family([bed.farm])
    of_hosts, before, cpu, begin = sum(map(many.cpu_s, hosts)), written(bed), time.process_time(), time.monotonic()
    while time.monotonic() < begin + many.IDLE_S:
        _, cursors = bed.provider.poll(cursors, 0.25)
        bed.provider.heartbeats()
    took = time.monotonic() - begin
    own, of_hosts = time.process_time() - cpu, sum(map(many.cpu_s, hosts)) - of_hosts
    return own / took, of_hosts / took, (written(bed) - before) * 3600 / took


def written(bed: KeeperBed) -> int:
    """Bytes of events and output of the keepers, on the hosts and in the mirror of this machine."""
    roots = (Path(bed.spec.hostdir), Path(bed.spec.workdir))
    return sum(file.stat().st_size for root in roots for kind in ("*.jsonl", "*.log") for file in root.rglob(kind))


def free_mib() -> float:
    """What the kernel can still give without swapping."""
    line = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return int(line.split()[1]) / 1024
