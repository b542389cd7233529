"""A node whose power was off gets a new job step: once it can start, and in no other case."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.model.act import Act
from orchestrator.model.bed import HostSpec, Machine
from orchestrator.model.errors import KeeperGoneError
from orchestrator.model.event import Command, command
from orchestrator.model.events import FaultAct
from orchestrator.providers import external_keeper
from orchestrator.providers.hosts_provider import HostsProvider
from orchestrator.providers.ssh.connection_errors import HostError
from orchestrator.slurm import allocation as allocations
from orchestrator.slurm import job_steps, slurm_provider
from orchestrator.slurm.job_state import JobState, LostNode
from orchestrator.slurm.slurm_commands import SlurmError
from orchestrator.slurm.slurm_provider import SlurmProvider

from .test_job_steps import ALLOCATION, bed

HOST = HostSpec(name="h1", connection="slurm")
RUNNING = JobState(kind="running", reason="")
ACT = Act(inject=(), verify=(), heal=(), verify_heal=(), lease_s=60.0, safety="cluster", disables=("host",))
POWER_OFF = command(FaultAct(id="f0", fault="power-off", act=ACT), "f/f0/act", node="n1", deadline_s=60.0)


@dataclass
class Cluster:
    """What the provider sees of the host: its connection, its slurmd, its job, step by step. ``started``: the steps."""

    connected: Iterator[bool | None]
    is_up: bool = True
    state: JobState | None = RUNNING
    started: list[str] = field(default_factory=list)

    @property
    def is_connected(self) -> bool:
        answer = next(self.connected)
        if answer is None:
            raise HostError("its job step has ended")
        return answer


def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: Cluster) -> SlurmProvider:
    made = SlurmProvider(tmp_path)
    made._bed = bed(tmp_path)
    monkeypatch.setattr(slurm_provider, "READ_S", 0.0)
    monkeypatch.setattr(slurm_provider, "ABSENT_S", 0.0)
    monkeypatch.setattr(allocations, "read", lambda workdir: ALLOCATION)
    monkeypatch.setattr(slurm_provider, "_read_state", lambda allocation: cluster.state)
    monkeypatch.setattr(slurm_provider, "_accepts_connections", lambda machine: cluster.is_up)
    monkeypatch.setattr(made, "_site", lambda bed, host: cluster)
    monkeypatch.setattr(job_steps, "abandon", lambda bed, host, deadline_s: None)
    monkeypatch.setattr(slurm_provider, "_start_step", lambda bed, known, host, path: cluster.started.append(host))
    made._without_power.add("h1")
    return made


def restart(made: SlurmProvider, deadline_s: float = 60.0) -> None:
    made._restart_step(made._bound, HOST, deadline_s, made._closed)


def restart_until_closed(made: SlurmProvider, monkeypatch: pytest.MonkeyPatch, *, reads: int) -> None:
    """The run ends after its host was read so many times."""
    answers = iter([False] * reads + [True])
    monkeypatch.setattr(made._closed, "wait", lambda timeout: next(answers))
    restart(made)


def test_a_connection_whose_silence_is_not_noticed_yet_does_not_keep_the_step_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A heal may follow the cut of the power within a second: then the dead connection still counts as one."""
    cluster = Cluster(connected=iter([True, True, False]))
    made = provider(tmp_path, monkeypatch, cluster)
    restart(made)
    assert cluster.started == ["h1"]
    assert made._without_power == set()


def test_a_host_without_a_connection_of_this_process_gets_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(connected=iter([None]))
    restart(provider(tmp_path, monkeypatch, cluster))
    assert cluster.started == ["h1"]


@pytest.mark.parametrize(
    "state",
    [
        None,
        JobState(kind="cancelled", reason=""),
        JobState(kind="pending", reason=""),
        JobState(kind="running", reason="", lost=(LostNode(name="a2", kind="down"),)),
    ],
)
def test_no_step_starts_in_a_job_that_has_ended_or_on_a_node_that_slurm_does_not_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: JobState | None
) -> None:
    cluster = Cluster(connected=iter([False] * 3), state=state)
    made = provider(tmp_path, monkeypatch, cluster)
    restart_until_closed(made, monkeypatch, reads=2)
    assert cluster.started == []


def test_no_step_starts_while_the_host_does_not_answer_and_none_where_it_stays_connected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for cluster in (Cluster(connected=iter([False] * 3), is_up=False), Cluster(connected=iter([True] * 3))):
        made = provider(tmp_path, monkeypatch, cluster)
        restart_until_closed(made, monkeypatch, reads=2)
        assert cluster.started == []


def test_what_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(connected=iter([False] * 3))
    made = provider(tmp_path, monkeypatch, cluster)
    problems = iter([SlurmError("the controller is away"), OSError(28, "No space left on device")])

    def start(*about: object) -> None:
        if problem := next(problems, None):
            raise problem
        cluster.started.append("h1")

    monkeypatch.setattr(slurm_provider, "_start_step", start)
    restart(made)
    assert cluster.started == ["h1"]


def test_commands_wait_for_a_host_without_power_as_long_as_the_job_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provider(tmp_path, monkeypatch, Cluster(connected=iter(())))
    monkeypatch.setattr(job_steps, "end_reason", lambda bed, known, host: "its job step on a2 has ended")
    monkeypatch.setattr(made, "_read_job", lambda allocation: None)
    made._job = RUNNING
    made._require_keeper_on(HOST)
    made._job = JobState(kind="cancelled", reason="by hand")
    with pytest.raises(KeeperGoneError, match="job 7: cancelled"):
        made._require_keeper_on(HOST)
    made._job = RUNNING
    made._without_power.clear()
    with pytest.raises(KeeperGoneError, match="its job step on a2 has ended"):
        made._require_keeper_on(HOST)


def test_the_machine_that_runs_ccbed_is_known_by_its_name_in_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not job_steps.machine(ALLOCATION, "h1").is_own
    monkeypatch.setattr(socket, "gethostname", lambda: "a2.example.org")
    assert job_steps.machine(ALLOCATION, "h1").is_own and not job_steps.machine(ALLOCATION, "h0").is_own
    monkeypatch.setenv("SLURMD_NODENAME", "a1")
    assert job_steps.machine(ALLOCATION, "h0") == Machine(name="a1", address="198.51.100.1", port=6818, is_own=True)


def test_a_step_whose_connection_breaks_for_a_moment_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(connected=iter([True, False, True, None, None]))
    made = provider(tmp_path, monkeypatch, cluster)
    monkeypatch.setattr(slurm_provider, "ABSENT_S", 60.0)
    restart_until_closed(made, monkeypatch, reads=5)
    assert cluster.started == []


def test_a_run_that_is_opened_ends_what_waits_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = provider(tmp_path, monkeypatch, Cluster(connected=iter(())))
    earlier = made._closed
    monkeypatch.setattr(HostsProvider, "open", lambda self, bed, run: {})
    made.open(made._bound, "r2")
    made._restart_step(made._bound, HOST, 60.0, earlier)
    assert not made._closed.is_set()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, "not known whether the job still has the node of host h1"),
        (JobState(kind="unknown", reason=""), "not known whether"),
        (JobState(kind="timed out", reason="it reached its time limit"), "job 7: timed out"),
        (JobState(kind="pending", reason="waits"), "job 7: pending"),
        (
            JobState(kind="running", reason="", lost=(LostNode(name="a2", kind="removed"),)),
            "Slurm removed it from the job",
        ),
    ],
)
def test_a_machine_that_slurm_may_have_given_to_others_is_not_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: JobState | None, reason: str
) -> None:
    made = provider(tmp_path, monkeypatch, Cluster(connected=iter(()), state=state))
    made._without_power.clear()
    sent: list[Command] = []
    monkeypatch.setattr(external_keeper, "perform", lambda bed, run, command: sent.append(command))
    with pytest.raises(OSError, match=reason):
        made.perform(POWER_OFF)
    assert sent == [] and made._without_power == set()


@pytest.mark.parametrize("lost", [(), (LostNode(name="a2", kind="draining"),), (LostNode(name="a1", kind="removed"),)])
def test_a_machine_of_the_job_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: tuple[LostNode, ...]
) -> None:
    state = JobState(kind="running", reason="", lost=lost)
    made = provider(tmp_path, monkeypatch, Cluster(connected=iter(()), state=state))
    sent: list[Command] = []
    monkeypatch.setattr(external_keeper, "perform", lambda bed, run, command: sent.append(command))
    made.perform(POWER_OFF)
    assert sent == [POWER_OFF] and made._without_power == {"h1"}


def test_the_machine_that_runs_ccbed_is_known_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name in Slurm may be another one than its host name."""
    assert not job_steps.machine(replace(ALLOCATION, addresses=("198.51.100.1", "198.51.100.2")), "h1").is_own
    assert job_steps.machine(replace(ALLOCATION, addresses=("198.51.100.1", "127.0.0.1")), "h1").is_own
    monkeypatch.setattr(socket, "gethostname", lambda: "a2")
    assert job_steps.machine(replace(ALLOCATION, nodes=("a1.example.org", "a2.example.org")), "h1").is_own
