"""The life of one rank, from the fork to its exit code."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from ...model import codec
from ...model import gang as gang_model
from ..checkpoint import commit
from . import environment, recorder, seeds

if TYPE_CHECKING:
    from . import context

#: What a warm agent has imported before the fork.
WARM = ("torch", "torch.distributed", "torch._dynamo")


def main(
    gang: gang_model.GangSpec, rank: int, *, events_path: str, release_fd: int, node: str, incarnation: str
) -> int:
    """Run the workload of ``gang`` as ``rank``; the exit code. The caller leaves by ``os._exit`` with it."""
    preloaded = [name for name in WARM if name in sys.modules]
    threads = len(os.listdir("/proc/self/task"))
    print(f"ccbed: run {gang.run} node {node} incarnation {incarnation} epoch {gang.epoch} rank {rank}", flush=True)
    if _fenced_off(gang):
        print(f"ccbed: epoch {gang.epoch} is over: a later one has begun", flush=True)
        return 1
    notes = recorder.Notes(events_path, node=node, incarnation=incarnation, rank=rank, epoch=gang.epoch)

    def begin() -> None:
        """In this order: a rank that has said that it started has left its environment."""
        _dress(gang, rank, node, incarnation)
        files = recorder.sums(Path(gang.out), (f"env-r{rank}.json",))
        notes.note("rank.start", pid=os.getpid(), ppid=os.getppid(), threads=threads, preloaded=preloaded, files=files)

    try:
        return _life(gang, rank, notes, release_fd, begin)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _fenced_off(gang: gang_model.GangSpec) -> bool:
    """A node that was stopped just as it forked this rank may go on long after another epoch began without it."""
    try:
        return commit.fence(Path(gang.checkpoints)) > gang.epoch
    except (OSError, ValueError):
        return False


def _life(
    gang: gang_model.GangSpec, rank: int, notes: recorder.Notes, release_fd: int, begin: Callable[[], None]
) -> int:
    try:
        begin()
        return _work(gang, rank, notes, release_fd)
    except SystemExit as left:
        return _left(left, notes)
    except BaseException as error:  # noqa: BLE001 whatever it is, it is this rank's end and has to be told
        if getattr(error, "silent", False):
            return 1
        if getattr(error, "printed", False):
            pass
        elif hasattr(error, "kind"):  # its message says all: file, reason, what to do
            print(f"ccbed: {error.kind}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        blame = {"culprit": error.culprit} if hasattr(error, "culprit") else {}
        notes.note("rank.error", kind=getattr(error, "kind", type(error).__name__), message=str(error), **blame)
        return 1


def _dress(gang: gang_model.GangSpec, rank: int, node: str, incarnation: str) -> None:
    """Set the environment and keep a redacted copy of it."""
    os.environ.update(environment.variables(gang, rank, node, incarnation))
    text = json.dumps(environment.redacted(os.environ, gang.secret_names), indent=1)
    recorder.write(Path(gang.out) / f"env-r{rank}.json", text + "\n")


def _reseed(gang: gang_model.GangSpec, rank: int) -> None:
    """A fork inherits its parent's random states: draw new ones from the trial's seed and the rank."""
    import torch

    random.seed(seeds.derive(gang.seed, "random", rank))
    torch.default_generator.manual_seed(seeds.derive(gang.seed, "torch", rank))
    if gang.backend == "nccl":  # kept by torch until the rank's own code first uses its GPU
        torch.cuda.manual_seed_all(seeds.derive(gang.seed, "cuda", rank))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seeds.derive(gang.seed, "numpy", rank) % 2**32)


def _unseed() -> None:
    """The random states of a new interpreter: Python, numpy and torch all begin from the system's entropy."""
    import torch

    random.seed()
    torch.default_generator.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _work(gang: gang_model.GangSpec, rank: int, notes: recorder.Notes, release_fd: int) -> int:
    import torch

    from . import context

    package = (__package__ or "orchestrator").partition(".")[0]
    workload = importlib.import_module(f"{package}.workloads.{gang.workload.replace('-', '_')}")
    torch.set_num_threads(gang.threads)
    if getattr(workload, "SEEDED", True):
        _reseed(gang, rank)
    else:
        _unseed()
    ctx: context.RankContext = context.RankContext(
        gang, rank, params=codec.build(workload.Params, dict(gang.params)), notes=notes, release_fd=release_fd
    )
    try:
        workload.run(ctx)
    finally:
        with contextlib.suppress(OSError):
            recorder.write_imported(Path(gang.out), rank, Path(gang.payload) / "user")
    if ctx.traffic is not None and hasattr(workload, "traffic"):
        predicted = workload.traffic(ctx.params, ctx.world, ctx.traffic_samples)
        once = workload.once(ctx.params, ctx.world) if hasattr(workload, "once") else None
        before = {} if once is None else {"once": ctx.traffic_once, "once_predicted": once}
        notes.note("traffic", measured=ctx.traffic, predicted=predicted, samples=ctx.traffic_samples, **before)
    ctx.phase("shutdown")
    recorded = {} if ctx.chunks is None else {"transfers": ctx.chunks.written}
    notes.note("rank.finished", **ctx.result, **recorded, files=_recorded(gang, rank))
    return 0


def _recorded(gang: gang_model.GangSpec, rank: int) -> dict[str, str]:
    """The SHA-256 of what this rank has recorded. A user's script may still write to its steps when it has returned."""
    steps = () if gang.workload == "script" else (f"steps-r{rank}.jsonl",)
    return recorder.sums(Path(gang.out), (*steps, f"chunks-r{rank}.bin"))


def _left(left: SystemExit, notes: recorder.Notes) -> int:
    """A program that ended itself: its code is the rank's."""
    code = left.code if isinstance(left.code, int) else int(left.code is not None)
    if isinstance(left.code, str):
        print(left.code, file=sys.stderr)
    if code == 0:
        notes.note("rank.finished", steps=0, loss=None, digest={}, metrics={})
    else:
        notes.note("rank.error", kind="exit", message=f"the program left with exit code {code}")
    return code & 0xFF
