"""One script on a Slurm cluster, a worker or a node killed: when is every rank training again, with ccbed and with `srun torchrun`?

The script is gpt-ddp as it is shipped, three nodes of one worker; the fourth node is ccbed's spare, and free for a requeued job.
CCBED_BENCH_ROUNDS: how often (1); systems take turns. CCBED_BENCH_SLURM=DIR keeps scripts, outputs and records there.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from ..lab import slurm as lab_slurm
from ..lab.slurm import Slurm
from . import slurm_jobs, table
from .slurm_jobs import REPEAT, REQUEUE, Outcome, System

pytestmark = [pytest.mark.root, pytest.mark.timeout(7200)]

ROUNDS = int(os.environ.get("CCBED_BENCH_ROUNDS", "1"))
OWN = System(name="ccbed run --recovery auto", ccbed=("--recovery", "auto"))
BEST = System(
    name="srun torchrun, best settings", torchrun="--monitor-interval 0.1", environment="TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1",
    conf=",last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=2",
)  # fmt: skip
DEFAULTS = System(name="srun torchrun, its defaults", limit_s=200.0)
KILL, JOIN = "--kill-on-bad-exit=1", "join_timeout=30"
REQUEUED = System(name=f"srun {KILL} torchrun || scontrol requeue", srun=KILL, main=REQUEUE)
SYSTEMS: Mapping[str, tuple[Callable[[Slurm, Path], None], tuple[System, ...]]] = {
    "a worker": (slurm_jobs.kill_worker, (OWN, BEST, DEFAULTS)),
    "all processes of the job on a node": (
        slurm_jobs.kill_processes,
        (
            OWN,
            System(name=f"srun {KILL} torchrun, repeated by the script", srun=KILL, main=REPEAT),
            System(name="ccbed run --launcher torchrun-best", ccbed=("--launcher", "torchrun-best")),
            DEFAULTS,
            REQUEUED,
            System(name=f"srun torchrun --rdzv-conf {JOIN} || scontrol requeue", conf=f",{JOIN}", main=REQUEUE),
        ),
    ),
    "a node, and Slurm is not told": (
        slurm_jobs.kill_silent_node,
        (OWN, DEFAULTS, System(name=f"srun torchrun --rdzv-conf {JOIN} || scontrol requeue", conf=f",{JOIN}", main=REQUEUE, limit_s=600.0)),
    ),
    "a node, and Slurm is told at once": (slurm_jobs.kill_node, (OWN, System(name="sbatch --requeue"))),
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Slurm]:
    if lab_slurm.lack():
        pytest.skip(lab_slurm.lack())
    with lab_slurm.running() as slurm:
        yield slurm


@pytest.mark.parametrize("lost", SYSTEMS)
def test_a_job_of_slurm_comes_back(lost: str, cluster: Slurm, tmp_path: Path) -> None:
    fault, systems = SYSTEMS[lost]
    compare(lost, cluster, fault, systems, tmp_path)


def compare(
    lost: str, slurm: Slurm, fault: Callable[[Slurm, Path], None], systems: tuple[System, ...], folder: Path
) -> None:
    """Measure in turns and write the table; ccbed comes back every time, and no batch job does so sooner."""
    folder = Path(os.environ.get("CCBED_BENCH_SLURM") or folder) / lost.replace(" ", "-").replace(",", "")
    outcomes: dict[str, list[Outcome]] = {system.name: [] for system in systems}
    for number in range(ROUNDS):
        for index, system in enumerate(systems):
            outcomes[system.name].append(slurm_jobs.measure(slurm, system, fault, folder / f"{number}-{index}"))
            _write(lost, outcomes)
    own = _times(outcomes[OWN.name])
    assert len(own) == ROUNDS, outcomes[OWN.name]
    sooner = [
        name for name, others in outcomes.items() if name != OWN.name and min(_times(others), default=1e9) < max(own)
    ]
    assert not sooner


def _times(outcomes: list[Outcome]) -> list[float]:
    return [outcome.back_s for outcome in outcomes if outcome.back_s is not None]


def _write(lost: str, outcomes: Mapping[str, list[Outcome]]) -> None:
    lines = [
        f"Killed: {lost}",
        "",
        "| system | back | seconds | of ccbed's | in the queue again, running again |",
        "|---|---|---|---|---|",
    ]
    lines += [_row(name, results, _times(outcomes[OWN.name])) for name, results in outcomes.items() if results]
    text = "\n".join([*lines, "", f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end.", ""])
    table.OUT.mkdir(exist_ok=True)
    (table.OUT / f"slurm-{lost.replace(' ', '-').replace(',', '')}.md").write_text(text)
    print(f"\n{text}")


def _row(name: str, outcomes: list[Outcome], own: list[float]) -> str:
    times = _times(outcomes)
    seconds = ", ".join(
        f"{outcome.back_s:.2f}" if outcome.back_s is not None else outcome.reason for outcome in outcomes
    )
    ratio = f"{statistics.median(times) / statistics.median(own):.0f}" if times and own else "-"
    queue = ", ".join(
        f"{item.queued_s:.0f} to {item.begun_s:.0f} s" for item in outcomes if item.queued_s and item.begun_s
    )
    return f"| {name} | {len(times)} of {len(outcomes)} | {seconds} | {ratio} | {queue or '-'} |"
