"""Starts a forked rank: sets its environment and seeds, runs its workload, reports the end, returns the exit code."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
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
from ...model.events import RankError, RankFinished, RankStart, Traffic
from ...model.plugin import PRODUCTS
from ..checkpoint import contents
from ..watcher.holds import stack_signal
from . import environment, interpreter, isolation, recorder, seeds

if TYPE_CHECKING:
    from . import context

#: Modules that a warm agent has imported before the fork.
WARM = ("torch", "torch.distributed", "torch._dynamo")


def main(
    gang: gang_model.GangSpec, rank: int, *, events_path: str, release_fd: int, node: str, incarnation: str, imports: str = ""
) -> int:  # fmt: skip
    """Run the workload of ``gang`` as ``rank`` and return the exit code. The caller exits by ``os._exit`` with it.

    ``imports``: what this process has imported ahead for a script, or why it has not.
    """
    preloaded = [name for name in WARM if name in sys.modules]
    threads = len(os.listdir("/proc/self/task"))
    print(f"ccbed: run {gang.run} node {node} incarnation {incarnation} epoch {gang.epoch} rank {rank}", flush=True)
    if _is_fenced_off(gang):
        print(f"ccbed: these ranks are of an earlier start (number {gang.epoch}): a later one has begun", flush=True)
        return 1
    notes = recorder.Notes(events_path, node=node, incarnation=incarnation, rank=rank, epoch=gang.epoch)

    def begin() -> tuple[str, ...]:
        """The environment is written before the event: a rank that reports its start has recorded its environment."""
        isolation.enter(gang, events_path)
        start_only = set_environment(gang, rank, node, incarnation)
        files = recorder.sums(Path(gang.out), (f"env-r{rank}.json",))
        notes.note(
            RankStart(
                rank=rank, pid=os.getpid(), ppid=os.getppid(), threads=threads, preloaded=tuple(preloaded), files=files,
                cold=start_only or None, imports=imports or None,
            )
        )  # fmt: skip
        return start_only

    try:
        return _run(gang, rank, notes, release_fd, begin)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _is_fenced_off(gang: gang_model.GangSpec) -> bool:
    """A node that was stopped while it forked this rank may continue after a later attempt has begun."""
    try:
        return contents.fence(Path(gang.checkpoints)) > gang.epoch
    except (OSError, ValueError):
        return False


def _run(
    gang: gang_model.GangSpec, rank: int, notes: recorder.Notes, release_fd: int, begin: Callable[[], tuple[str, ...]]
) -> int:
    try:
        return _work(gang, rank, notes, release_fd, begin())
    except SystemExit as request:
        return _exit_code(request, rank, notes)
    except BaseException as error:  # noqa: BLE001 every error ends this rank and is reported
        if getattr(error, "silent", False):
            return 1
        if getattr(error, "printed", False):
            pass
        elif hasattr(error, "kind"):  # its message names the file, the reason and what to do
            print(f"ccbed: {error.kind}: {error}", file=sys.stderr)
        else:
            traceback.print_exc()
        kind, culprit = getattr(error, "kind", type(error).__name__), getattr(error, "culprit", None)
        stack = getattr(error, "stack", None)
        notes.note(RankError(rank=rank, kind=kind, message=str(error), culprit=culprit, stack=stack))
        return 1


def set_environment(gang: gang_model.GangSpec, rank: int, node: str, incarnation: str) -> tuple[str, ...]:
    """Set the environment, write a redacted copy of it, and return what a script in this process would lack of it."""
    wanted = environment.complete(gang, rank, node, incarnation, os.environ)
    is_script = gang.workload == environment.SCRIPT
    start_only = environment.find_start_only(interpreter.environment_at_start(), wanted) if is_script else ()
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update({name: value for name, value in wanted.items() if os.environ.get(name) != value})
    text = json.dumps(environment.redacted(os.environ, gang.secret_names), indent=1)
    recorder.write(Path(gang.out) / f"env-r{rank}.json", text + "\n")
    return start_only


def reseed(gang: gang_model.GangSpec, rank: int) -> None:
    """Derive new random states from the trial's seed and the rank: a fork inherits those of its parent."""
    import torch

    random.seed(seeds.derive(gang.seed, "random", rank))
    torch.default_generator.manual_seed(seeds.derive(gang.seed, "torch", rank))
    if gang.backend == "nccl":  # torch applies it when the rank first uses its GPU
        torch.cuda.manual_seed_all(seeds.derive(gang.seed, "cuda", rank))
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seeds.derive(gang.seed, "numpy", rank) % 2**32)


def find_workload(stem: str) -> str:
    """The module of a workload: of the test-bed, of a user's plugin, or of a product. Raises ModuleNotFoundError."""
    package = (__package__ or "orchestrator").partition(".")[0]
    names = [f"{package}.workloads.{stem}", *(f"{package}.{product}.plugins.workloads.{stem}" for product in PRODUCTS)]
    from . import former_names

    former_names.install()
    for name in names:
        with contextlib.suppress(ModuleNotFoundError):  # of the product
            if importlib.util.find_spec(name):
                return name
    return names[0]


def _work(
    gang: gang_model.GangSpec, rank: int, notes: recorder.Notes, release_fd: int, start_only: tuple[str, ...]
) -> int:
    import torch

    from . import context

    workload = importlib.import_module(find_workload(gang.workload.replace("-", "_")))
    if gang.workload != environment.SCRIPT:  # else the watcher does so in the process that runs the script
        stack_signal.register()
    torch.set_num_threads(environment.threads(gang, os.environ))
    if torch.distributed.is_available():
        torch.distributed.set_debug_level_from_env()  # type: ignore[attr-defined]
    if getattr(workload, "SEEDED", True):
        reseed(gang, rank)
    ctx: context.RankContext = context.RankContext(
        gang, rank, params=codec.build(workload.Params, dict(gang.params)), notes=notes, release_fd=release_fd
    )
    ctx.start_only = start_only
    last = interpreter.newest_module()
    try:
        workload.run(ctx)
    finally:
        with contextlib.suppress(OSError):
            if gang.work_dir:
                recorder.write_imported(Path(gang.out), rank, Path(gang.work_dir.path), last)
    if ctx.traffic is not None and hasattr(workload, "traffic"):
        predicted = workload.traffic(ctx.params, ctx.world, ctx.traffic_samples) if ctx.world > 1 else {}
        once = workload.once(ctx.params, ctx.world) if hasattr(workload, "once") else None
        notes.note(
            Traffic(
                rank=rank, measured=ctx.traffic, predicted=predicted, samples=ctx.traffic_samples,
                once=None if once is None else ctx.traffic_once, once_predicted=once,
            )
        )  # fmt: skip
    ctx.phase("shutdown")
    transfers = {} if ctx.chunks is None else {"transfers": ctx.chunks.written}
    notes.emit(RankFinished.NAME, **ctx.result, **transfers, files=_digests(gang, rank), **_records(gang, rank))
    return 0


def _digests(gang: gang_model.GangSpec, rank: int) -> dict[str, str]:
    """SHA-256 of the files that this rank has recorded; without the steps of a script, which may still write to them."""
    steps = () if gang.workload == "script" else (f"steps-r{rank}.jsonl",)
    return recorder.sums(Path(gang.out), (*steps, f"chunks-r{rank}.bin"))


def _records(gang: gang_model.GangSpec, rank: int) -> dict[str, dict[str, dict[str, int | str]]]:
    """``records``: the watcher's records of this rank, or of the workers of its launcher, as far as they are written by now."""
    of_rank = "" if gang.params.get("launcher") else f"{rank}-"
    names = sorted(path.name for path in Path(gang.out).glob(f"watch-r{of_rank}*.jsonl"))
    return {"records": recorder.prefixes(Path(gang.out), names)} if names else {}


def _exit_code(request: SystemExit, rank: int, notes: recorder.Notes) -> int:
    """The exit code of a program that ended itself, which is the rank's."""
    code = request.code if isinstance(request.code, int) else int(request.code is not None)
    if isinstance(request.code, str):
        print(request.code, file=sys.stderr)
    if code == 0:
        notes.note(RankFinished(rank=rank, steps=0, loss=None, digest={}, metrics={}))
    else:
        notes.note(RankError(rank=rank, kind="exit", message=f"the program exited with code {code}"))
    return code & 0xFF
