"""The wait for a job: what it asks the controller, how often, and what it shows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model.bed import BedSpec
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.slurm import allocation, job_state, slurm_commands

BED = BedSpec(
    name="lab", provider="slurm", nodes=(), inventory="slurm.yml", workdir="/state/beds/lab", shared_dir="", agent=""
)  # fmt: skip


@dataclass(kw_only=True)
class Queue:
    """A salloc that waits until ``starts_at``, and a controller with its job. ``now``: seconds since the start of the wait."""

    reason: str = "Resources"
    starts_at: float = 600.0
    now: float = 0.0
    job_id: int = 7
    requests: list[tuple[str, float]] = field(default_factory=list)
    process: Any = field(default_factory=lambda: SimpleNamespace(wait=lambda: 0))

    def next_line(self, timeout_s: float) -> bool:
        self.now += max(timeout_s, 0.0)
        return self.now < self.starts_at

    def respond(self, argv: Sequence[str], deadline_s: float | None = None) -> str:
        self.requests.append((argv[0], self.now))
        values = {"PartitionName": "gpu", "Nodes": "8", "Size": "1-infinite"}
        if argv[0] == "squeue":
            values = {"JobID": "7", "State": "PENDING", "NumNodes": "4", "Partition": "gpu", "Reason": self.reason}
        fields = job_state._JOB if argv[0] == "squeue" else job_state._PARTITION
        return "".join(values.get(name, "").ljust(width) for name, width in fields.items()) + "\n"


@pytest.fixture
def wait(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Wait in a queue; the lines that are shown."""

    def run(queue: Queue, wait_s: float | None = None) -> list[str]:
        lines: list[str] = []
        monkeypatch.setattr(slurm_commands, "run", queue.respond)
        allocation._wait(queue, BED, wait_s, lines.append, lambda: queue.now)  # type: ignore[arg-type]
        return lines

    return run


def test_the_controller_is_asked_every_half_minute_at_most(wait: Callable[..., list[str]]) -> None:
    queue = Queue()
    lines = wait(queue)
    times = [at for _, at in queue.requests]
    assert times[0] == 2.0 and len(lines) == len(times) == 20
    assert min(after - before for before, after in itertools.pairwise(times)) >= 30.0
    assert set(lines) == {"job 7 waits in partition gpu: the nodes are busy (Resources); no estimated start"}


def test_the_limits_of_partitions_are_read_once(wait: Callable[..., list[str]]) -> None:
    """While nodes are down, Slurm gives this reason to jobs that will start."""
    queue = Queue(reason="PartitionNodeLimit")
    assert len(wait(queue)) == 20
    assert [(program, at) for program, at in queue.requests if program == "sinfo"] == [("sinfo", 2.0)]


def test_the_limit_of_the_wait_is_kept_between_two_requests(wait: Callable[..., list[str]]) -> None:
    queue = Queue()
    with pytest.raises(InfrastructureError, match="has not started within 40 s: the nodes are busy"):
        wait(queue, wait_s=40.0)
    assert queue.now == 40.0


@pytest.mark.parametrize(
    ("reason", "words"),
    [("PartitionTimeLimit", "its time limit exceeds"), ("PartitionConfig", "it asks for more than the partition has")],
)
def test_a_job_that_never_starts_is_rejected_at_the_first_request(
    reason: str, words: str, wait: Callable[..., list[str]]
) -> None:
    queue = Queue(reason=reason)
    with pytest.raises(UsageError, match=rf"slurm\.yml: bed lab: job 7 would never start: {words}"):
        wait(queue)
    assert queue.now == 2.0
