"""Jobs of one script on the test Slurm: with ccbed, and by sbatch and torchrun as users run them; a worker or a node is killed.

Every job is watched in the same way: by the records that its workers write at every step, on the clock of this machine.
"""

from __future__ import annotations

import fnmatch
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import orchestrator
from orchestrator.node.oslayer import processes

from ..lab.slurm import Slurm

ROOT = Path(orchestrator.__file__).parents[1]
SCRIPT = ROOT / "orchestrator/jobs/examples/gpt_ddp.py"
WATCHER = ROOT / "orchestrator/rank/watcher/site"
WORKERS, LOST_RANK, LOST_NODE = 3, 2, "n3"
#: The fault follows this step, so that there are checkpoints to resume from: one every 10 steps.
STEPS_BEFORE, START_LIMIT_S, POLL_S = 23, 240.0, 0.2

INVENTORY = """\
all:
  hosts:
    cluster: {ccbed_nodes: 3, ccbed_spares: 1}
  vars: {ccbed_provider: slurm, ccbed_bed: bench, ccbed_partition: main, ccbed_time: 30m}
"""
BATCH = """\
#!/bin/bash
#SBATCH --job-name=train --ntasks-per-node=1 --requeue --open-mode=append --time=30
export CCBED_WATCH={folder}/records PYTHONPATH={watcher} OMP_NUM_THREADS=1 {environment}
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
step() {{
    srun --nodes={workers} {srun} bash -c 'exec {python} -m torch.distributed.run --nnodes {workers} --nproc-per-node 1 \\
        --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint '$(address $head)':{port} --rdzv-id '$SLURM_JOB_ID' {torchrun} \\
        --rdzv-conf is_host=$([ $SLURM_PROCID = 0 ] && echo true || echo false){conf} {script} --steps 1000000 --checkpoint {folder}/c.pt'
}}
address() {{ scontrol show node "$1" | grep -o 'NodeAddr=[^ ]*' | cut -d= -f2; }}
{main}
"""
#: What the batch script does with its step.
ONCE, REQUEUE, REPEAT = "step", "step || scontrol requeue $SLURM_JOB_ID", "until step; do sleep 1; done"


@dataclass(frozen=True, kw_only=True)
class System:
    """Who starts the script again.

    ``ccbed``: options of `ccbed run` in a bed with a spare, instead of a batch script. ``srun``, ``torchrun``, ``conf`` (of the
    rendezvous), ``environment``: what the batch script adds. ``main``: what it does with its step. ``nodes``: of its job.
    """

    name: str
    ccbed: tuple[str, ...] | None = None
    srun: str = ""
    torchrun: str = ""
    conf: str = ""
    environment: str = ""
    main: str = ONCE
    nodes: int = WORKERS
    limit_s: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """``back_s``: seconds from the fault to the first step of every worker; None: not within ``limit_s``, or the job had ended.

    ``queued_s``: when Slurm had put the job back into the queue, ``begun_s``: when it ran again.
    """

    back_s: float | None
    reason: str = ""
    queued_s: float | None = None
    begun_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A recorded process. ``steps``: start and end of each; seconds of CLOCK_MONOTONIC."""

    rank: int
    pid: int
    began: float
    steps: tuple[tuple[float, float], ...]


def workers(folder: Path) -> Iterator[Worker]:
    """Directories may vanish meanwhile: ``os.walk`` skips them."""
    records = (
        Path(root) / name for root, _, names in os.walk(folder) for name in fnmatch.filter(names, "watch-r*.jsonl")
    )
    for path in records:
        with suppress(OSError, ValueError, LookupError):
            lines = path.read_text().split("\n")[:-1]
            begin = json.loads(lines[0])
            steps = [json.loads(line) for line in lines if line.startswith('{"k":"step"')]
            times = tuple((step["start"], step["end"]) for step in steps)
            yield Worker(rank=begin["rank"], pid=begin["pid"], began=begin["t"], steps=times)


def first_steps(folder: Path, since: float) -> dict[int, float]:
    """Rank -> the end of its first step in a process that began after ``since``. DDP has no step without all of its ranks."""
    ends = sorted(
        (worker.steps[0][1], worker.rank) for worker in workers(folder) if worker.began > since and worker.steps
    )
    return {rank: end for end, rank in reversed(ends)}


def kill_worker(slurm: Slurm, folder: Path) -> None:
    (pid,) = {worker.pid for worker in workers(folder) if worker.rank == LOST_RANK}
    os.kill(pid, signal.SIGKILL)


def kill_processes(slurm: Slurm, folder: Path) -> None:
    """All processes of the job on a node, as the kernel does that is out of memory. Slurm's own daemons there go on."""
    tasks = slurm.tasks_of(LOST_NODE)
    assert tasks, f"no process of a job on {LOST_NODE}"
    processes.kill(tasks)


def kill_silent_node(slurm: Slurm, folder: Path) -> None:
    """Slurm's daemons on the node as well: Slurm counts the node as lost after SlurmdTimeout, 300 s by default."""
    slurm.power_off(LOST_NODE)


def kill_node(slurm: Slurm, folder: Path) -> None:
    """The same; an administrator, or a health check, tells Slurm at once."""
    slurm.power_off(LOST_NODE)
    slurm.set_node(LOST_NODE, "down", "lost")


def measure(slurm: Slurm, system: System, fault: Callable[[Slurm, Path], None], folder: Path) -> Outcome:
    """Start the job, wait until it trains, inject the fault, and wait until every worker has completed a step again.

    It takes at most START_LIMIT_S, ``limit_s`` and two minutes.
    """
    folder.mkdir(parents=True)
    start = _ccbed if system.ccbed is not None else _sbatch
    try:
        with start(slurm, system, folder) as end_reason:
            if reason := _wait_for_training(folder, end_reason):
                return Outcome(back_s=None, reason=reason)
            at = time.monotonic()
            fault(slurm, folder)
            return _wait_for_return(slurm, system, folder, at, end_reason)
    finally:
        slurm.wait_until_idle()


def _wait_for_training(folder: Path, end_reason: Callable[[], str]) -> str:
    """Why it does not train: such a row must not cost the others; empty once it does."""
    end = time.monotonic() + START_LIMIT_S
    while len({worker.rank for worker in workers(folder) if len(worker.steps) >= STEPS_BEFORE}) < WORKERS:
        if end_reason() or time.monotonic() > end:
            print(_output(folder))
            return f"not measured: before the fault, {end_reason() or f'no training within {START_LIMIT_S:g} s'}"
        time.sleep(POLL_S)
    return ""


def _wait_for_return(slurm: Slurm, system: System, folder: Path, at: float, end_reason: Callable[[], str]) -> Outcome:
    queued_s = begun_s = None
    while True:
        reason, now_s = end_reason(), time.monotonic() - at
        if system.ccbed is None:
            states = set(slurm.jobs().values())
            queued_s = now_s if queued_s is None and "PENDING" in states else queued_s
            begun_s = now_s if begun_s is None and queued_s is not None and "RUNNING" in states else begun_s
        returned = first_steps(folder, at)
        if len(returned) == WORKERS:
            return Outcome(back_s=max(returned.values()) - at, queued_s=queued_s, begun_s=begun_s)
        if reason or now_s > system.limit_s:
            reason = reason or f"not back within {system.limit_s:g} s"
            return Outcome(back_s=None, reason=reason, queued_s=queued_s, begun_s=begun_s)
        time.sleep(POLL_S)


@contextmanager
def _ccbed(slurm: Slurm, system: System, folder: Path) -> Iterator[Callable[[], str]]:
    """`ccbed run` with a job of its own, which has a spare."""
    (folder / "slurm.yml").write_text(INVENTORY)
    argv = [
        sys.executable,
        "-m",
        "orchestrator.cli",
        "run",
        str(SCRIPT),
        "-i",
        str(folder / "slurm.yml"),
        "--no-reference",
    ]
    argv += ["--nodes", str(WORKERS), *(system.ccbed or ()), "--runs-dir", str(folder / "runs")]
    argv += ["--", "--steps", "1000000", "--checkpoint", str(folder / "c.pt")]
    own = {"XDG_STATE_HOME": str(folder / "state"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **own, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
    with (folder / "output").open("wb") as file:
        process = subprocess.Popen(
            argv, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=folder
        )

    def end_reason() -> str:
        return "ccbed run has ended" if process.poll() is not None else ""

    try:
        yield end_reason
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(90)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _sbatch(slurm: Slurm, system: System, folder: Path) -> Iterator[Callable[[], str]]:
    (folder / "records").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    text = BATCH.format(
        folder=folder, watcher=WATCHER, environment=system.environment, workers=WORKERS, srun=system.srun, port=port,
        python=sys.executable, torchrun=system.torchrun, conf=system.conf, script=SCRIPT, main=system.main,
    )  # fmt: skip
    (folder / "job.sh").write_text(text)
    options = ["--parsable", f"--nodes={system.nodes}", f"--chdir={folder}", f"--output={folder}/output"]
    job = int(slurm.run("sbatch", *options, str(folder / "job.sh")))

    def end_reason() -> str:
        return "" if job in slurm.jobs() else "the job has ended"

    try:
        yield end_reason
    finally:
        slurm.cancel(job)


def _output(folder: Path) -> str:
    with suppress(OSError):
        return (folder / "output").read_text(errors="replace").strip()[-600:]
    return "no output"
