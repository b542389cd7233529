"""Runs the probes on a rank: every rank is a node; ranks on one host take turns, hosts are probed in parallel."""

from __future__ import annotations

import importlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ...model.events import ProbeDone
from ..runtime import recorder
from . import machine_load
from .results import Fact, Missing, Node, collect

if TYPE_CHECKING:
    from ..runtime import context


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
    """By rank, what identifies its host: containers of a host share its kernel."""
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
            yield from machine_load.beside(node, probe.measure(node))

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
