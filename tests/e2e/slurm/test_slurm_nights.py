"""Nights and sweeps on beds of a real Slurm that live as long as the command: allocated, run, released, whatever happens."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nightly import night_files

from ...lab.slurm import NODES, Slurm
from ...patience import until
from .test_slurm_bed import LIMIT_S, User

pytestmark = pytest.mark.e2e

WAITS = """\
import pathlib, time
folder = pathlib.Path({folder!r})
(folder / "waits").touch()
while not (folder / "go").exists():
    time.sleep(0.05)
"""
#: The seed runs ``waits`` first.
SUITE = "suite: s\nseed: {seed}\ntrials: [waits.py, {{trial: gemm, world: {{nodes: all}}, params: {{repeats: 1}}}}]\n"
SEED = 0


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return User(slurm=slurm, home=tmp_path)


def suite(user: User) -> str:
    """A trial that ends once ``go`` exists, then one that measures all nodes."""
    (user.home / "waits.py").write_text(WAITS.format(folder=str(user.home)))
    file = user.home / "s.yml"
    file.write_text(SUITE.format(seed=SEED))
    return str(file)


def start(user: User, *args: str) -> subprocess.Popen[str]:
    argv = user.argv(*args, *user.runs("night"))
    return subprocess.Popen(
        argv, env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=user.home
    )


def until_it_waits(user: User, process: subprocess.Popen[str]) -> None:
    until(lambda: (user.home / "waits").exists() or process.poll() is not None)
    assert process.poll() is None, end(process)


def end(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=LIMIT_S)
    return output


def night(user: User) -> Path:
    (directory,) = night_files.nights(user.home / "night-runs")
    return directory


def rows(user: User) -> dict[str, tuple[str, str]]:
    """Cell -> state and reason."""
    return {row.cell: (row.state, row.reason) for row in night_files.read_rows(night(user))}


def judged(user: User) -> str:
    """The files of the judgement, which name what passed."""
    return (night(user) / "findings.json").read_text()


def require_nothing_left(user: User, name: str) -> None:
    """Nights keep two files for the next bed of the name."""
    folder = user.home / "ccbed/beds" / name
    for file in ("quarantine.json", "night.lock"):
        (folder / file).unlink(missing_ok=True)
    if folder.exists():
        folder.rmdir()
    user.require_nothing_left(name)
    assert not list(folder.parent.glob("*.json"))


def test_a_night_allocates_runs_all_cells_and_releases(user: User) -> None:
    """A second one that does not fit into its job, by what the first one took, is rejected before a job is submitted."""
    (user.home / "go").touch()
    inventory = user.inventory("lab", nodes=2, spares=1)
    argv = user.argv("nightly", suite(user), "-i", inventory, "--record", "--json", *user.runs("night"))
    done = subprocess.run(argv, env=user.environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode in (0, 2), done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert {row["cell"]: row["state"] for row in document["rows"]} == {"waits": "passed", "gemm": "passed"}
    hosts: dict[str, str] = json.loads((night(user) / "night.json").read_text())["hosts"]
    assert len(hosts) == 2 and set(hosts.values()) <= set(NODES)
    for plan in night(user).glob("runs/*/plan.json"):
        machines: dict[str, Any] = json.loads(plan.read_text())["nodes"]
        assert {name: node["machine"] for name, node in machines.items() if name in hosts}.items() <= hosts.items()
    require_nothing_left(user, "lab")
    Path(inventory).write_text(Path(inventory).read_text().replace("30m", "1m"))
    journal = night(user) / "night.jsonl"  # as if the trials had taken longer
    journal.write_text(re.sub(r'"duration_s":[0-9.]+', '"duration_s":40.5', journal.read_text()))
    output = user.ccbed("nightly", suite(user), "-i", inventory, *user.runs("night"), code=3)
    assert "the night took 81 s in earlier nights, and the job of bed lab has 60 s (ccbed_time)" in output
    require_nothing_left(user, "lab")


@pytest.mark.parametrize(
    ("named", "is_cancelled"), [(False, False), (True, False), (False, True)], ids=["", "with -i", "after scancel"]
)
def test_a_night_that_was_killed_is_resumed_on_its_job_or_another_which_is_released(
    named: bool, is_cancelled: bool, user: User
) -> None:
    """The run that was open goes on if its job does; else it is run anew, whatever the end of the job did to its ranks."""
    inventory = user.inventory("lab", nodes=2)
    with start(user, "nightly", suite(user), "-i", inventory) as process:
        until_it_waits(user, process)
        process.kill()
    (job,) = user.slurm.jobs()
    output = user.ccbed("nightly", suite(user), "-i", inventory, *user.runs("night"), code=3)
    assert f"job {job} of bed lab was left by a command that was killed, with run " in output
    assert f"ccbed nightly --resume {night(user)}" in output
    assert user.slurm.jobs() == {job: "RUNNING"}
    if is_cancelled:
        user.slurm.run("scancel", str(job))
        until(lambda: not user.slurm.jobs())
    (user.home / "go").touch()
    resumed = ["nightly", "--resume", str(night(user)), *(["-i", inventory] if named else [])]
    done = subprocess.run(
        user.argv(*resumed, *user.runs("night")), env=user.environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    output = done.stdout + done.stderr
    assert done.returncode in (0, 2), output  # on a busy machine nothing is compared, and what ran has still passed
    assert {cell: state for cell, (state, _) in rows(user).items()} == {"waits": "passed", "gemm": "passed"}, output
    assert len(list(night(user).glob("runs/*-waits-*"))) == 1 + is_cancelled
    assert (f"job {job} of bed lab holds no nodes any more" in output) is is_cancelled, output
    require_nothing_left(user, "lab")


@pytest.mark.parametrize("verb", [["nightly", "quick"], ["sweep", "gemm", "--each-node"]], ids=["nightly", "sweep"])
def test_ctrl_c_and_a_limit_of_the_wait_leave_no_job(verb: list[str], user: User) -> None:
    inventory = user.inventory("lab", nodes=2, partition="stopped")
    with start(user, *verb, "-i", inventory) as process:
        until(lambda: list(user.slurm.jobs().values()) == ["PENDING"])
        process.send_signal(signal.SIGINT)
        output = end(process)
    assert process.returncode == 130 and "Traceback" not in output, output
    require_nothing_left(user, "lab")
    output = user.ccbed(*verb, "-i", inventory, "--wait", "8s", *user.runs("night"), code=4)
    assert "its job has not started within 8 s: the partition is down (PartitionDown); it is cancelled" in output
    require_nothing_left(user, "lab")
    assert not (user.home / "night-runs").exists()


def test_a_night_whose_job_is_cancelled_ends_and_what_did_not_run_is_no_pass(user: User) -> None:
    """Who cancels a job wants its end: the night submits no other one."""
    with start(user, "nightly", suite(user), "-i", user.inventory("lab", nodes=2)) as process:
        until_it_waits(user, process)
        (job,) = user.slurm.jobs()
        user.slurm.run("scancel", str(job))
        output = end(process)
    assert process.returncode == 4, output
    cancelled = f"job {job}: cancelled (scancel or an administrator ended it; the queue does not record by whom)"
    assert rows(user)["gemm"] == ("error", f"not run: {cancelled}")
    state, reason = rows(user)["waits"]
    assert state == "error" and f"job {job}: " in reason, reason
    assert '"pass"' not in judged(user)
    jobs = user.slurm.run("squeue", "--noheader", "--states=all", "--name=ccbed-lab", "--Format=JobID").split()
    assert max(map(int, jobs)) == job
    require_nothing_left(user, "lab")


def test_a_night_whose_job_is_preempted_goes_on_with_another_one(user: User) -> None:
    """The trial that was lost is an error of its own; those that follow have the nodes of the other job."""
    inventory = user.inventory("lab", nodes=2, partition="scavenge")
    with start(user, "nightly", suite(user), "-i", inventory) as process:
        until_it_waits(user, process)
        (job,) = user.slurm.jobs()
        submit = (
            "sbatch",
            "--parsable",
            "--partition=main",
            "--nodes=4",
            "--exclusive",
            "--output=/dev/null",
            "--wrap",
            "sleep 999",
        )
        other = user.slurm.run(*submit).strip()
        until(lambda: "PENDING" in [state for number, state in user.slurm.jobs().items() if number > int(other)])
        user.slurm.run("scancel", other)
        output = end(process)
    assert process.returncode == 4, output
    preempted = f"job {job} of bed lab holds no nodes any more: a job of higher priority took its nodes"
    assert preempted in output and "another one is requested" in output
    states = rows(user)
    assert (states["waits"][0], states["gemm"][0]) == ("error", "passed"), states
    require_nothing_left(user, "lab")
