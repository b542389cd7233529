"""Cost against nodes of this machine: up, memory, idle, a no-op trial, a process group, gather, down, files, threads.

CCBED_BENCH_NODES (default ``4,16,64``) says how many nodes, e.g. ``4,256``; CCBED_BENCH_IDLE_S (default 5) how long the idle bed
is observed. The exponent of growth is the slope of log cost over log nodes, by least squares. The reaches are asserted where 256 nodes
are measured.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from orchestrator.node.files import label
from orchestrator.store import bundle

from . import table, torchrun
from .bed import Bed

NODES = tuple(int(count) for count in os.environ.get("CCBED_BENCH_NODES", "4,16,64").split(","))
IDLE_S = float(os.environ.get("CCBED_BENCH_IDLE_S", "5"))
NOOP, GROUP = torchrun.PROGRAMS / "nothing.py", torchrun.PROGRAMS / "noop.py"
TICKS = os.sysconf("SC_CLK_TCK")
NOOPS = 5
#: Growth of any cost with the nodes; a quadratic cost has 2.
EXPONENT = 1.3
#: An exponent is asserted where the sizes span this factor: one busy second of the machine is most of a small bed's cost.
SPAN = 16
#: To reach with 256 nodes.
REACHES = {"up_s": 20.0, "memory_mib": 2560.0, "idle_share": 0.03, "noop_s": 8.0}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Of a bed. ``memory_mib``: PSS of its processes. ``idle_share``: of one core. ``keeper_*``: what the keeper has open.

    ``first_noop_s``, ``noop_s``: of a script that does nothing, the first run of the bed and the median of NOOPS.
    ``group_s``: of one whose ranks join a process group of gloo, reduce a tensor and leave.
    """

    nodes: int
    up_s: float
    memory_mib: float
    idle_share: float
    first_noop_s: float
    noop_s: float
    group_s: float
    gather_s: float
    down_s: float
    keeper_files: int
    keeper_threads: int
    orchestrator_files: int
    orchestrator_threads: int


def test_cost_grows_no_faster_than_the_nodes(tmp_path: Path) -> None:
    costs = [measure(tmp_path, count) for count in NODES]
    growth = write("many-nodes", costs)
    if max(NODES) >= SPAN * min(NODES):
        assert quadratic(growth) == {}
    for cost in costs:
        if cost.nodes == 256:
            assert {name: getattr(cost, name) for name, most in REACHES.items() if getattr(cost, name) >= most} == {}


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_the_exponent_of_a_power_is_found(power: float) -> None:
    nodes = [4, 16, 64]
    slope = exponent(nodes, [0.3 * count**power for count in nodes])
    assert slope == pytest.approx(power)


def test_a_cost_of_zero_has_no_exponent() -> None:
    assert exponent([4, 16], [0.0, 1.0]) is None
    assert exponent([4], [1.0]) is None


def measure(folder: Path, nodes: int) -> Cost:
    directory = folder / str(nodes)
    directory.mkdir()
    bed = Bed(directory, nodes)
    try:
        up_s = bed.call("up", str(bed.inventory), timeout_s=300.0)
        members = settled(directory)
        assert len(members) > nodes, f"{len(members)} processes of {nodes} nodes"
        memory_mib = sum(map(pss_mib, members))
        idle_share = idle(members)
        (keeper,) = [pid for pid in members if parent(pid) not in members]
        keeper_files, keeper_threads = len(os.listdir(f"/proc/{keeper}/fd")), threads(keeper)
        noops = [bed.call("run", str(NOOP), "--nodes", str(nodes), timeout_s=300.0) for _ in range(NOOPS)]
        group_s, files, thread_count = observed_run(bed, GROUP, nodes)
        gather_s = gather_seconds(bed)
    finally:
        down_s = bed.call("down", "local", expect=None, timeout_s=300.0)
    assert not processes_of(directory)
    return Cost(
        nodes=nodes, up_s=up_s, memory_mib=memory_mib, idle_share=idle_share, first_noop_s=noops[0],
        noop_s=statistics.median(noops), group_s=group_s,
        gather_s=gather_s, down_s=down_s,
        keeper_files=keeper_files, keeper_threads=keeper_threads, orchestrator_files=files, orchestrator_threads=thread_count,
    )  # fmt: skip


def settled(directory: Path) -> set[int]:
    """The processes of the bed once they stay the same for two seconds and no reserve rank rehearses: agents fork them when idle."""
    until, members, since = time.monotonic() + 120.0, processes_of(directory), time.monotonic()
    while time.monotonic() - since < 2.0:
        assert time.monotonic() < until, "the processes of the bed change for ever"
        time.sleep(0.2)
        if (now := processes_of(directory)) != members or rehearse(directory):
            members, since = now, time.monotonic()
    return members


def rehearse(directory: Path) -> bool:
    """Do reserve ranks prepare themselves, each for about 0.1 s of CPU time?"""
    records = (json.loads(path.read_text()) for path in directory.rglob(f"nodes/*/{label.RESERVES}"))
    return any(record["ready"] < record["count"] for record in records)


def observed_run(bed: Bed, script: Path, nodes: int) -> tuple[float, int, int]:
    """(seconds of a run, most open files, most threads) of its orchestrator, observed every 20 ms."""
    begin = time.monotonic()
    process = bed.start("run", str(script), "--nodes", str(nodes))
    files, most = 0, 0
    while process.poll() is None:
        with suppress(OSError, IndexError):
            files, most = (
                max(files, len(os.listdir(f"/proc/{process.pid}/fd"))),
                max(most, threads(process.pid)),
            )
        time.sleep(0.02)
    took = time.monotonic() - begin
    assert process.returncode == 0
    return took, files, most


def gather_seconds(bed: Bed) -> float:
    """From the last exit of a rank to the reply of the gather, in the history of the newest run."""
    history = bundle.load((bed.folder / "runs" / "latest").resolve()).history.events
    exited = max(event.t for event in history if event.f == "rank.exit")
    (gathered,) = [event.t for event in history if event.f == "gather" and event.type == "ok"]
    return gathered - exited


def exponent(nodes: Sequence[int], costs: Sequence[float]) -> float | None:
    """The slope of log cost over log nodes; None if there are not two sizes, or a cost is not above zero."""
    if len(set(nodes)) < 2 or min(costs) <= 0:
        return None
    slope, _ = np.polyfit(np.log(nodes), np.log(costs), 1)
    return float(slope)


def write(name: str, costs: Sequence[Any]) -> dict[str, float | None]:
    """Write the table ``name`` of costs: dataclasses whose field ``nodes`` is the size. The exponent of growth of each other field."""
    names = [field.name for field in fields(costs[0])]
    sizes = [cost.nodes for cost in costs]
    growth = {name: exponent(sizes, [getattr(cost, name) for cost in costs]) for name in names if name != "nodes"}
    rows = [[_figure(getattr(cost, name)) for name in names] for cost in costs]
    last = ["exponent", *("not known" if value is None else f"{value:.2f}" for value in growth.values())]
    lines = [names, ["---"] * len(names), *rows, last]
    facts = ", ".join(f"{name} {value}" for name, value in table.machine().items())
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines) + f"\n\n{facts}\n"
    table.OUT.mkdir(parents=True, exist_ok=True)
    (table.OUT / f"{name}.md").write_text(text)
    document = {"costs": [asdict(cost) for cost in costs], "exponents": growth, "machine": table.machine()}
    (table.OUT / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    print("\n" + text)
    return growth


def quadratic(growth: Mapping[str, float | None]) -> dict[str, float]:
    """The costs that grow faster than EXPONENT."""
    return {name: value for name, value in growth.items() if value is not None and value >= EXPONENT}


def _figure(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def processes_of(directory: Path) -> set[int]:
    """The processes that name the bed's directory in their command line, or have it as their directory, and what they started."""
    return family(pid for pid in _pids() if _belongs(pid, str(directory)))


def family(roots: Iterable[int]) -> set[int]:
    """These processes and what they started."""
    parents = {pid: parent(pid) for pid in _pids()}
    chosen = set(roots)
    while more := {pid for pid, above in parents.items() if above in chosen and pid not in chosen}:
        chosen |= more
    return chosen


def _belongs(pid: int, directory: str) -> bool:
    process = Path(f"/proc/{pid}")
    with suppress(OSError):
        return directory in (process / "cmdline").read_text() or str((process / "cwd").readlink()).startswith(directory)
    return False


def _pids() -> Iterator[int]:
    own = {os.getpid(), os.getppid()}
    return (int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in own)


def parent(pid: int) -> int | None:
    return int(stat[1]) if (stat := _stat(pid)) else None


def threads(pid: int) -> int:
    return int(_stat(pid)[17])


def idle(members: set[int]) -> float:
    """CPU time of these processes over time."""
    before, begin = sum(map(cpu_s, members)), time.monotonic()
    time.sleep(IDLE_S)
    share = (sum(map(cpu_s, members)) - before) / (time.monotonic() - begin)
    assert math.isfinite(share)
    return share


def cpu_s(pid: int) -> float:
    """utime and stime. Raises IndexError for a process that has ended."""
    stat = _stat(pid)
    return (int(stat[11]) + int(stat[12])) / TICKS


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


def pss_mib(pid: int) -> float:
    """Raises OSError for a process that has ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024
