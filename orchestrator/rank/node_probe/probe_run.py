"""Runs the probes: on the ranks of a bed, or on this machine without one; beside each figure stands the load of the machine.

On a bed every rank is a node; ranks on one host take turns, hosts are probed in parallel. Without a bed, in a process of its own, it
prints a line of JSON for each probe of each device:

python -m orchestrator.rank.node_probe.probe_run PROBES THREADS DIRECTORY
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...model import codec
from ...model.events import ProbeDone, ProbeFigure
from ...model.frozen import dataclass
from ..runtime import recorder, run_gaps
from .probe_results import Fact, Missing, Node, ProbeParams, Result, collect

if TYPE_CHECKING:
    from ..runtime import context


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Seconds of all CPUs together since boot: ``total``, ``busy`` and ``stolen`` by a hypervisor; None where /proc/stat is not readable.

    ``own``: of this process, its threads and its children that have ended; ``withheld``: from its cgroup, by its quota.
    """

    total: float | None
    busy: float
    stolen: float
    own: float
    withheld: float
    moment: float


def beside(node: Node, measured: Iterable[Result]) -> Iterator[Result]:
    """Yield what a probe yields, and then the load of the machine while it ran."""
    before = read(node.system, time.monotonic())
    yield from measured
    yield from figures(before, read(node.system, time.monotonic()))


def read(system: Path, now: float) -> Reading:
    ticks = os.sysconf("SC_CLK_TCK")
    times = [int(text) / ticks for text in recorder.read(system / "proc/stat").partition("\n")[0].split()[1:9]]
    is_known = len(times) == 8
    return Reading(
        total=sum(times) if is_known else None,
        busy=sum(times) - times[3] - times[4] - times[7] if is_known else 0.0,
        stolen=times[7] if is_known else 0.0,
        own=sum(os.times()[:4]), withheld=run_gaps.throttled_s(system), moment=now,
    )  # fmt: skip


def figures(before: Reading, after: Reading) -> Iterator[Result]:
    """Shares of the time of all CPUs; the last one of the time that passed."""
    if before.total is None or after.total is None or after.total <= before.total:
        yield Missing(name="cpu used by others", reason="/proc/stat does not show it")
        return
    total, busy = after.total - before.total, after.busy - before.busy
    others = max(0.0, busy - (after.own - before.own))
    passed = max(after.moment - before.moment, 1e-9)
    for name, share in (
        ("cpu used by others", others / total),
        ("cpu stolen", (after.stolen - before.stolen) / total),
        ("cpu withheld", (after.withheld - before.withheld) / passed),
    ):
        yield ProbeFigure(name=name, unit="1", better="lower", values=(round(max(0.0, share), 4),))


def run(ctx: context.RankContext) -> None:
    """Probe on this rank; every probe is a step, and its event is written when it ends."""
    ctx.connect()
    ctx.phase("restore")
    ctx.report_fresh_start()
    node = _node(ctx)
    ctx.steps = len(ctx.params.probes)
    for step, name in enumerate(ctx.params.probes, start=1):
        ctx.begin_step(step)
        ctx.note(_probe(node, name))
        ctx.end_step(None)
    ctx.result = {"steps": ctx.steps, "loss": None, "digest": {}, "metrics": {}}


def _node(ctx: context.RankContext) -> Node:
    gang, hosts = ctx.gang, _hosts(ctx.world)
    return Node(
        params=ctx.params, rank=ctx.rank, world=ctx.world, local_rank=gang.ranks.index(ctx.rank), device=ctx.device,
        interface=gang.interface, directory=Path(gang.out), shared=_existing(Path(gang.checkpoints)),
        sharers=tuple(rank for rank, host in enumerate(hosts) if host == hosts[ctx.rank]), load_nvml=load_nvml,
    )  # fmt: skip


def _hosts(world: int) -> list[Any]:
    """Return by rank what identifies its host: containers of a host share its kernel."""
    boots: list[Any] = [None] * world
    boot = recorder.boot_id() or os.uname().nodename
    dist.all_gather_object(boots, boot)
    return boots


def _existing(directory: Path) -> Path:
    """The directory, or the nearest one above it that exists: a probe creates none."""
    return next(path for path in (directory, *directory.parents) if path.is_dir())


def _probe(node: Node, name: str) -> ProbeDone:
    """A collective of all ranks."""
    probe = importlib.import_module(f"..probes.{name.replace('-', '_')}", __package__)
    if getattr(probe, "COLLECTIVE", False):
        return _collect(node, name, probe)
    if not node.params.in_turn:
        dist.barrier()
        return _collect(node, name, probe)
    done: ProbeDone | None = None
    for turn in range(_most(len(node.sharers))):
        if node.sharers.index(node.rank) == turn:
            done = _collect(node, name, probe)
        dist.barrier()
    if done is None:
        raise RuntimeError(f"rank {node.rank} had no turn for probe {name}")
    return done


def _collect(node: Node, name: str, probe: Any) -> ProbeDone:
    is_collective = getattr(probe, "COLLECTIVE", False)

    def results() -> Any:
        if len(node.sharers) > 1:
            manner = "in turn" if node.params.in_turn and not is_collective else "at the same time"
            yield Fact(name="host", text=f"shared by {len(node.sharers)} ranks, which are probed {manner}")
        if node.local_rank and not (is_collective or getattr(probe, "PER_RANK", False)):
            yield Missing(name=name, reason="measured by the first rank of the node")
        else:
            yield from beside(node, probe.measure(node))

    return collect(node, name, results(), time.monotonic)


def _most(count: int) -> int:
    counts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(counts, count)
    return int(max(counts))


def load_nvml() -> Any:
    """The module pynvml of nvidia-ml-py, initialised. Raises OSError with the reason where it is not usable."""
    try:
        import pynvml
    except ImportError:
        raise OSError("nvidia-ml-py is not installed on the node (pip install nvidia-ml-py)") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from None
    return pynvml


#: Of each figure; who sees a suspect probes again.
REPEATS = 2


def measure(names: tuple[str, ...], directory: Path) -> Iterator[ProbeDone]:
    """The devices one after the other. What the whole node has is measured by the first one."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]
    for name in names:
        probe = importlib.import_module(f"..probes.{name.replace('-', '_')}", __package__)
        for index, device in enumerate(devices if getattr(probe, "PER_RANK", False) else devices[:1]):
            node = Node(
                params=ProbeParams(probes=names, repeats=REPEATS), rank=index, world=len(devices), local_rank=index, device=device,
                interface="", directory=directory, shared=directory, sharers=(index,), load_nvml=load_nvml, is_quick=True,
            )  # fmt: skip
            yield collect(node, name, beside(node, probe.measure(node)), time.monotonic)


def main(probes: str, threads: str, directory: str) -> None:
    if int(threads):
        torch.set_num_threads(int(threads))
    for done in measure(tuple(probes.split(",")), Path(directory)):
        print(json.dumps(codec.plain(done)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
