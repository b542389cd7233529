"""Allocations on a real Slurm: granted, refused, waited for, released, lost; whatever happens, no job stays in the queue."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.bed import nodes_from_inventory
from orchestrator.core.inventory import parse_inventory
from orchestrator.model import codec
from orchestrator.model.bed import BedSpec
from orchestrator.model.errors import InfrastructureError, UsageError
from orchestrator.slurm import allocation, job_state, slurm_commands
from orchestrator.slurm.job_state import Job
from orchestrator.slurm.slurm_commands import SlurmError

from ...lab import slurm as lab_slurm
from ...lab.slurm import NODES, Slurm
from ...patience import until

SOON_S = 300.0


@pytest.fixture(name="bed")
def make_bed(tmp_path: Path) -> Callable[..., BedSpec]:
    def bed(nodes: int = 2, name: str = "lab", **variables: Any) -> BedSpec:
        own = {
            "ccbed_provider": "slurm",
            "ccbed_bed": name,
            **{f"ccbed_{key}": value for key, value in variables.items()},
        }
        document = {"all": {"vars": own, "hosts": {"cluster": {"ccbed_nodes": nodes}}}}
        inventory = parse_inventory.parse(yaml.safe_dump(document), str(tmp_path / "slurm.yml"))
        return nodes_from_inventory.assemble_bed(inventory, agent="a" * 12, state=str(tmp_path), home=str(tmp_path))

    return bed


@pytest.fixture(scope="module")
def overtime() -> Iterator[tuple[Slurm, int, float]]:
    """A job at its time limit, and when that was set, on a Slurm of its own, which looks for such jobs every 30 s."""
    if lab_slurm.lack():
        pytest.skip(lab_slurm.lack())
    with lab_slurm.running() as other:
        other.run("salloc", "--no-shell", "--no-kill", "--nodes=2")
        (job_id,) = other.jobs()
        began = time.time()
        other.run("scontrol", "update", f"JobId={job_id}", "EndTime=now+1")
        yield other, job_id, began


def until_shown(lines: list[str]) -> Callable[[], float]:
    """A clock: the wait of 600 s is over as soon as a line shows why the job waits."""
    return lambda: time.monotonic() + 600.0 * bool(lines)


def states(slurm: Slurm) -> list[str]:
    return sorted(slurm.jobs().values())


@pytest.mark.usefixtures("overtime")
def test_a_job_is_acquired_at_once_and_released(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    lab = bed(nodes=3, partition="main", time="30m", gres="gpu:1", sbatch={"mem": "100M"})
    began = time.time()
    held = allocation.acquire(lab)
    assert held.nodes == NODES[:3] and set(held.addresses) == {"127.0.0.1"} and held.is_owned
    assert held.ends_at is not None and 1750 < held.ends_at - began < 1900
    assert [job.job_id for job in allocation.jobs_of(lab)] == [held.job_id]
    assert allocation.read_state(held).kind == "running"
    assert allocation.release(lab, held) == (held.job_id,)
    assert slurm.jobs() == {} and allocation.read_state(held).kind == "cancelled"


def test_two_beds_at_once_have_jobs_of_their_own(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    """A user of the same bed name with another state directory is not this user's bed."""
    red, blue = bed(name="red", sbatch={"exclusive": True}), bed(name="blue", sbatch={"exclusive": True})
    held_red, held_blue = allocation.acquire(red), allocation.acquire(blue)
    assert not set(held_red.nodes) & set(held_blue.nodes)
    submit = (
        "sbatch",
        "--job-name=ccbed-red",
        "--comment=ccbed:/elsewhere",
        "--output=/dev/null",
        "--wrap",
        "sleep 999",
    )
    slurm.run(*submit)
    allocation.release(red, held_red)
    assert len(slurm.jobs()) == 2 and allocation.read_state(held_blue).kind == "running"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"partition": "nope"}, "Slurm has no partition nope"),
        ({"gres": "tpu:1"}, "no node has these resources"),
        ({"gres": "gpu:3"}, "the partition does not have the nodes that the job asks for"),
        ({"constraint": "zzz"}, "no node has these features"),
        ({"nodelist": "zz"}, "Slurm has no node of that name"),
        ({"reservation": "zz"}, "Slurm has no such reservation"),
        ({"sbatch": {"zz": 3}}, "Slurm has no option zz"),
        ({"sbatch": {"mem": "abc"}}, "Slurm rejects the value of --mem"),
        ({"sbatch": {"cpus-per-task": "zz"}}, "Slurm rejects the value of --cpus-per-task"),
    ],
)  # fmt: skip
def test_a_request_that_slurm_rejects_is_an_error_in_words(
    variables: dict[str, Any], words: str, slurm: Slurm, bed: Callable[..., BedSpec]
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        allocation.acquire(bed(**variables))
    assert "slurm.yml: bed lab: " in str(caught.value) and caught.value.hint and slurm.jobs() == {}


def test_a_user_without_permission_is_refused(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    """root may use every partition, so the request is made by another user."""
    argv = allocation.submit_command(bed(partition="closed"))
    done = slurm.attempt(*argv, user="daemon")
    error = slurm_commands.explain(argv, done.stderr)
    assert "your group may not use this partition" in str(error) and error.exit_code == 3


def test_jobs_that_would_never_start_are_refused_at_once(
    slurm: Slurm, bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the scheduler has considered a job, Slurm gives one reason for several."""
    expected: dict[str, tuple[dict[str, Any], str]] = {
        "long": ({"partition": "short", "time": "10m"}, "its time limit exceeds that of the partition"),
        "large": ({"nodes": 5}, "it asks for more nodes than the partition has"),
        "huge": (
            {"nodes": 1024},
            "it asks for more than the partition has or permits (PartitionConfig)",
        ),  # more CPUs, too
        "paid": ({"partition": "paid"}, "Job's account not known"),
    }

    read = job_state.read_job

    def read_considered(job_id: int) -> Job | None:
        end = time.monotonic() + SOON_S
        while (job := read(job_id)) and job.name in ("ccbed-long", "ccbed-large") and job.reason == "PartitionConfig":
            assert time.monotonic() < end, job
            time.sleep(0.1)
        return job

    monkeypatch.setattr(job_state, "read_job", read_considered)

    def refused(name: str) -> str:
        with pytest.raises(UsageError, match=rf"bed {name}: job \d+ would never start") as caught:
            allocation.acquire(bed(name=name, **expected[name][0]))
        return str(caught.value)

    with ThreadPoolExecutor(max_workers=4) as pool:
        texts = dict(zip(expected, pool.map(refused, expected), strict=True))
    assert {name: words in texts[name] for name, (_, words) in expected.items()} == dict.fromkeys(expected, True), texts
    assert slurm.jobs() == {}


def test_a_queue_that_never_starts_ends_with_the_wait(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    lines: list[str] = []
    with pytest.raises(
        InfrastructureError, match=r"not started within 600 s: the partition is down \(PartitionDown\); it is cancelled"
    ):
        allocation.acquire(bed(partition="stopped"), wait_s=600.0, report=lines.append, clock=until_shown(lines))
    assert slurm.jobs() == {} and len(lines) == 1
    assert "waits in partition stopped: the partition is down (PartitionDown); no estimated start" in lines[0]


def test_a_job_that_waits_starts_at_once_when_nodes_are_free(
    slurm: Slurm, bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next question to the controller would come much later."""
    monkeypatch.setattr(allocation, "POLL_S", 2 * SOON_S)
    other = slurm.run(
        "sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 999"
    ).strip()
    reports: list[tuple[str, float]] = []

    def end_the_other(line: str) -> None:
        slurm.run("scancel", other)
        reports.append((line, time.monotonic()))

    held = allocation.acquire(bed(), report=end_the_other)
    assert held.nodes and time.monotonic() - reports[0][1] < SOON_S
    assert "waits in partition main: " in reports[0][0] and "estimated start" in reports[0][0]


def test_a_job_that_is_cancelled_while_it_waits_is_an_error_in_words(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    def cancel(line: str) -> None:
        slurm.run("scancel", line.split()[1])

    with pytest.raises(InfrastructureError, match=r"bed lab: job \d+ was cancelled while it waited"):
        allocation.acquire(bed(partition="stopped"), report=cancel)


PROGRAM = """
import json, sys
from orchestrator.model import codec
from orchestrator.model.bed import BedSpec
from orchestrator.slurm import allocation
allocation.acquire(codec.build(BedSpec, json.loads(sys.argv[1])), report=lambda line: print(line, flush=True))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_killed_while_it_waits_leaves_no_job(
    number: int, slurm: Slurm, bed: Callable[..., BedSpec]
) -> None:
    text = json.dumps(codec.plain(bed(partition="stopped")))
    argv = [sys.executable, "-c", PROGRAM, text]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None and " waits in partition stopped" in process.stdout.readline()
        assert states(slurm) == ["PENDING"]
        process.send_signal(number)
        process.wait(SOON_S)
    until(lambda: not slurm.jobs())


def test_the_next_command_names_the_job_of_a_command_that_was_killed(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    lab = bed()
    held = allocation.acquire(lab)  # and never recorded
    with pytest.raises(
        InfrastructureError, match=rf"job {held.job_id} is in the queue already \(running: it runs on n"
    ) as caught:
        allocation.acquire(lab)
    assert caught.value.hint == f"cancel it: ccbed down {lab.inventory}"
    assert allocation.release(lab, None) == (held.job_id,) and slurm.jobs() == {}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SlurmError("Socket timed out"), OSError(28, "No space left")])
def test_a_failure_after_the_start_of_the_job_leaves_no_job(
    error: BaseException, slurm: Slurm, bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        assert states(slurm) == ["RUNNING"]
        raise error

    monkeypatch.setattr(job_state, "read_nodes", fail)
    monkeypatch.setattr(allocation, "GRANTED_S", 0.0)
    with pytest.raises(type(error)):
        allocation.acquire(bed())
    assert slurm.jobs() == {}


def test_a_controller_that_is_away_for_a_moment_costs_neither_the_place_in_the_queue_nor_the_nodes(
    slurm: Slurm, bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = slurm.run("sbatch", "--parsable", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 999")
    failures = {"read_job": 2, "read_nodes": 1}

    def flaky(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any) -> Any:
            failures[name] -= 1
            if failures[name] >= 0:
                raise SlurmError("Slurm's controller does not respond")
            return read(*args)

        return work

    for name in failures:
        monkeypatch.setattr(job_state, name, flaky(name, getattr(job_state, name)))
    monkeypatch.setattr(allocation, "POLL_S", 0.2)
    held = allocation.acquire(bed(), report=lambda line: slurm.cancel(int(other)))
    assert held.nodes and max(failures.values()) < 0


def test_a_job_that_ends_now_does_not_block_the_next_one(
    slurm: Slurm, bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = allocation.acquire(bed())
    read, kinds = allocation.jobs_of, []

    def record(bed: BedSpec) -> tuple[Job, ...]:
        jobs = read(bed)
        kinds.append([job.kind for job in jobs])
        return jobs

    monkeypatch.setattr(allocation, "jobs_of", record)
    with slurm.jobs_completing():
        slurm.run("scancel", str(held.job_id))
        until(lambda: states(slurm) == ["COMPLETING"])
        following = allocation.acquire(bed())
        assert kinds == [["completing"]] and slurm.jobs()[following.job_id] == "RUNNING"
    assert allocation.release(bed(), following) and slurm.jobs() == {}


def test_a_recorded_job_is_cancelled_only_if_it_is_that_of_the_bed(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    """Job ids are used again; `scontrol update` may alter a comment."""
    held = allocation.acquire(bed(nodes=1))
    other = int(slurm.run("sbatch", "--parsable", "--output=/dev/null", "--wrap", "sleep 999"))
    until(lambda: states(slurm) == ["RUNNING", "RUNNING"])
    assert allocation.release(bed(name="second"), replace(held, job_id=other)) == ()
    slurm.run("scontrol", "update", f"JobId={held.job_id}", "Comment=another")
    with pytest.raises(SlurmError, match=rf"job {held.job_id} is not cancelled: its comment \('another'\)"):
        allocation.release(bed(nodes=1), held)
    assert states(slurm) == ["RUNNING", "RUNNING"]


def test_a_job_of_the_user_is_never_taken_for_one_of_ccbed(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    """Whatever its name and comment are; a newline in a comment is not the end of a row."""
    lab = bed()
    comment = next(option for option in allocation.submit_command(lab) if option.startswith("--comment="))
    submit = ("sbatch", "--parsable", "--nodes=2", "--output=/dev/null", "--wrap", "sleep 999")
    job_id = int(slurm.run(*submit, "--job-name=ccbed-lab", comment))
    two_lines = int(slurm.run(*submit, "--comment=two\n4711 lines"))
    until(lambda: states(slurm) == ["RUNNING", "RUNNING"])
    held = allocation.adopt(lab, job_id)
    assert not held.is_owned and allocation.release(lab, held) == ()
    assert allocation.adopt(lab, two_lines).job_id == two_lines
    assert states(slurm) == ["RUNNING", "RUNNING"]


def test_a_job_waits_for_nodes_that_are_drained(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    slurm.set_node("n1", "drain")
    lines: list[str] = []
    with pytest.raises(InfrastructureError, match="not started within 600 s"):
        allocation.acquire(bed(nodes=4), wait_s=600.0, report=lines.append, clock=until_shown(lines))
    assert len(lines) == 1


def test_a_job_of_the_user_is_adopted_and_not_cancelled(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    job_id = int(slurm.run("sbatch", "--parsable", "--nodes=3", "--output=/dev/null", "--wrap", "sleep 999"))
    until(lambda: states(slurm) == ["RUNNING"])
    held = allocation.adopt(bed(nodes=2), job_id)
    assert held.nodes == NODES[:2] and not held.is_owned
    assert allocation.release(bed(), held) == () and states(slurm) == ["RUNNING"]
    with pytest.raises(UsageError, match=r"job \d+ has 3 nodes \(n\[1-3\]\); bed lab needs 4"):
        allocation.adopt(bed(nodes=4), job_id)
    with pytest.raises(UsageError, match="job 4711 holds no nodes: the controller does not know it"):
        allocation.adopt(bed(), 4711)


def test_losses_of_nodes_are_told_apart_in_a_job_that_goes_on(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    """The first node fails, another is drained: the job goes on with the others, and new steps start there."""
    held = allocation.acquire(bed(nodes=3))
    slurm.power_off(held.nodes[0])
    slurm.set_node(held.nodes[0], "down", "no power")
    slurm.set_node(held.nodes[1], "drain", "bad dimm")
    state = allocation.read_state(held)
    assert state.kind == "running" and [(node.name, node.kind, node.reason) for node in state.lost] == [
        ("n1", "removed", "no power (by root)"), ("n2", "draining", "bad dimm (by root)"),
    ]  # fmt: skip
    step = ("srun", f"--jobid={held.job_id}", "--nodelist=n3", "--nodes=1", "--ntasks=1", "--overlap", "hostname")
    assert slurm.run(*step)


def test_ends_of_jobs_are_told_apart(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    before = time.time() - 2  # Slurm's times are whole seconds
    cancelled = allocation.acquire(bed(nodes=1, name="cancelled"))
    slurm.run("scancel", str(cancelled.job_id))
    preempted = allocation.acquire(bed(nodes=4, name="preempted", partition="scavenge", sbatch={"exclusive": True}))
    allocation.acquire(bed(nodes=4, name="first", partition="main", sbatch={"exclusive": True}))
    failing = int(
        slurm.run("sbatch", "--parsable", "--oversubscribe", "--output=/dev/null", "--wrap", "exit 3", "-p", "short")
    )
    ended = {held.name: allocation.read_state(held) for held in (cancelled, preempted)}
    assert {name: state.kind for name, state in ended.items()} == {
        "ccbed-cancelled": "cancelled",
        "ccbed-preempted": "preempted",
    }
    assert all(state.at is not None and state.at > before for state in ended.values())
    assert allocation.release(bed(name="first"), None)
    until(lambda: failing not in slurm.jobs())
    assert job_state.read_state(failing, ()).reason == "it ended (NonZeroExitCode)"
    whole = slurm.run(
        "sbatch", "--parsable", "--nodes=2", "--no-requeue", "--output=/dev/null", "--wrap", "sleep 999"
    ).strip()
    until(lambda: slurm.jobs().get(int(whole)) == "RUNNING")
    slurm.set_node("n1", "down", "died")
    until(lambda: job_state.read_state(int(whole), ("n1", "n2")).kind != "completing")
    assert job_state.read_state(int(whole), ("n1", "n2")).kind == "node failed"
    requeued = slurm.run(
        "sbatch", "--parsable", "--nodelist=n2", "--requeue", "--output=/dev/null", "--wrap", "sleep 999"
    ).strip()
    until(lambda: slurm.jobs().get(int(requeued)) == "RUNNING")
    slurm.run("scontrol", "requeue", requeued)
    until(lambda: job_state.read_state(int(requeued), ("n2",)).kind != "completing")
    assert job_state.read_state(int(requeued), ("n2",)).kind == "requeued"
    assert job_state.read_state(4711, ()).kind == "absent"


def test_a_job_outlives_its_controller_and_its_state_is_unknown_meanwhile(
    slurm: Slurm, bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm's clients try for minutes to connect; the test does not wait so long."""
    held = allocation.acquire(bed())
    slurm.stop("controller")
    monkeypatch.setattr(slurm_commands, "DEADLINE_S", 2.0)
    with pytest.raises(SlurmError, match="no response from Slurm's controller within 2 s"):
        allocation.read_state(held)
    monkeypatch.setattr(slurm_commands, "DEADLINE_S", 20.0)
    slurm.start_controller()
    assert allocation.read_state(held).kind == "running"


def test_a_machine_without_munge_is_an_error_in_words(slurm: Slurm, bed: Callable[..., BedSpec]) -> None:
    slurm.stop("munge")
    try:
        with pytest.raises(SlurmError, match="munge, which identifies users to Slurm, does not respond") as caught:
            allocation.acquire(bed())
    finally:
        slurm.start_munge()
    assert "munged" in caught.value.hint and slurm.jobs() == {}


def test_a_machine_without_slurm_is_an_error_in_words(
    bed: Callable[..., BedSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SlurmError, match="Slurm's clients are not installed on this machine"):
        allocation.acquire(bed())


def test_a_job_that_reached_its_time_limit_says_so(
    overtime: tuple[Slurm, int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, job_id, began = overtime
    monkeypatch.setenv("SLURM_CONF", other.environment["SLURM_CONF"])
    until(lambda: job_id not in other.jobs())
    state = job_state.read_state(job_id, ("n1", "n2"))
    assert (state.kind, state.reason) == ("timed out", "it reached its time limit")
    assert state.at is not None and int(began) <= state.at <= time.time()
