"""Losses by a real Slurm during a run: each is named, and a spare of the allocation replaces a lost node where the job goes on."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from ...lab.slurm import Slurm
from ...patience import until
from .test_slurm_bed import LIMIT_S, User

pytestmark = pytest.mark.e2e


@pytest.fixture
def user(slurm: Slurm, tmp_path: Path) -> User:
    return User(slurm=slurm, home=tmp_path)


@pytest.fixture
def up(user: User) -> Iterator[Callable[..., int]]:
    """Bring up a bed ``lab``; its job. The bed goes down at the end."""

    def start(nodes: int = 1, spares: int = 0, partition: str = "main", *options: str) -> int:
        user.ccbed("up", user.inventory("lab", nodes, spares, partition), *options)
        return max(user.slurm.jobs())

    yield start
    user.ccbed("down", "lab", "--force")


def run_until_lost(user: User, lose: Callable[[], object], nodes: int = 1, epochs: int = 2000) -> tuple[int, str]:
    """Exit code and output of a run in which ``lose`` is called once it trains."""
    args = f"run dp-ring --nodes {nodes} --no-reference --epochs {epochs} --step-min-ms 10 --bed lab".split()
    args += user.runs("lab")
    before = set(user.home.glob("lab-runs/*/history.jsonl"))

    def trains() -> bool:
        started = set(user.home.glob("lab-runs/*/history.jsonl")) - before
        return any(b'"progress"' in file.read_bytes() for file in started)

    with subprocess.Popen(
        user.argv(*args), env=user.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        until(lambda: trains() or process.poll() is not None)
        assert process.poll() is None, process.communicate()[0].decode()
        lose()
        output, _ = process.communicate(timeout=LIMIT_S)
    return process.returncode, output.decode()


def report(user: User) -> str:
    return max(user.home.glob("lab-runs/2*/report/index.html")).read_text()


def ended(user: User) -> list[str]:
    """The reason of the end of each run."""
    lines = (line for file in user.home.glob("lab-runs/2*/history.jsonl") for line in file.read_text().splitlines())
    return [str(event["value"]["reason"]) for line in lines if (event := json.loads(line))["f"] == "run.end"]


def end_now(slurm: Slurm, job: int) -> None:
    slurm.run("scontrol", "update", f"JobId={job}", "EndTime=now+1")


def take_nodes(slurm: Slurm, job: int) -> None:
    """A job of a partition of higher priority needs all nodes."""
    slurm.run("sbatch", "--partition=main", "--nodes=4", "--exclusive", "--output=/dev/null", "--wrap", "sleep 999")


@pytest.mark.parametrize(
    ("partition", "lose", "kind", "reason"),
    [
        ("main", end_now, "timed out", "it reached its time limit"),
        ("main", Slurm.cancel, "cancelled", "scancel or an administrator ended it|it ends now"),
        ("scavenge", take_nodes, "preempted", "a job of higher priority (takes|took) its nodes"),
        ("grace", take_nodes, "preempted", "a job of higher priority (takes|took) its nodes"),
        ("requeue", take_nodes, "preempted", "a job of higher priority (takes|took) its nodes"),
    ],
    ids=["time limit", "scancel", "preemption", "preemption with a grace time", "preemption by requeue"],
)
def test_the_end_of_the_job_ends_the_run_with_its_reason(
    partition: str, lose: Callable[[Slurm, int], object], kind: str, reason: str, user: User, up: Callable[..., int]
) -> None:
    """The run may end while Slurm still completes the job; afterwards its final state is shown.

    Slurm cancels a job without a batch script where the mode of preemption is to requeue.
    """
    job = up(partition=partition)
    code, output = run_until_lost(user, lambda: lose(user.slurm, job))
    assert code == 4 and re.search(rf"job {job}: [a-z ]+ \(({reason})", output), output
    assert re.search(rf"The run failed.*: job {job}: ", output) and "failovers" not in output, output
    assert f"job {job}: " in report(user)
    (reason,) = ended(user)
    assert reason.startswith(f"job {job}: "), reason
    until(lambda: f"job {job}: {kind} (" in user.ccbed("status", "lab"))


def requeue(slurm: Slurm, job: int) -> None:
    slurm.run("scontrol", "requeue", str(job))


@pytest.mark.parametrize(("partition", "lose"), [("main", requeue), ("requeue", take_nodes)], ids=["", "preemption"])
def test_a_job_of_the_user_that_is_requeued_ends_the_run_with_that_reason(
    partition: str, lose: Callable[[Slurm, int], None], user: User, up: Callable[..., int]
) -> None:
    submit = (
        "sbatch",
        "--parsable",
        "--requeue",
        "--begin=now",
        "--output=/dev/null",
        f"--partition={partition}",
        "--wrap",
        "sleep 3000",
    )
    job = int(user.slurm.run(*submit))
    until(lambda: user.slurm.jobs()[job] == "RUNNING")
    up(1, 0, partition, "--jobid", str(job))
    code, output = run_until_lost(user, lambda: lose(user.slurm, job))
    reason = r"requeued \(it was put back into the queue|[a-z]+ \((a job of higher priority|it ends now)"
    assert code == 4 and re.search(f"job {job}: ({reason})", output), output
    until(lambda: "requeued (it was put back into the queue" in user.ccbed("status", "lab"))


def test_a_run_goes_on_without_slurmd_and_a_spare_replaces_a_node_without_power(
    user: User, up: Callable[..., int]
) -> None:
    """Slurm takes both for nodes that respond, for SlurmdTimeout: the reason is that of ccbed's own heartbeat."""
    up(2, 1)
    code, output = run_until_lost(user, lambda: user.slurm.stop("n2", signal.SIGKILL), 2, epochs=30)
    assert code == 0 and "PASS" in output, output
    user.slurm.start_node("n2")
    code, output = run_until_lost(user, lambda: user.slurm.power_off("n2"), 2, epochs=60)
    assert code == 4 and "n1 lost: spare; rank 1 is now on n2" in output and "1200/1200" in output, output
    assert not user.slurm.tasks_of("n2")
    assert set(user.slurm.jobs().values()) == {"RUNNING"}


def test_a_run_goes_on_while_the_controller_restarts_and_without_munge(user: User, up: Callable[..., int]) -> None:
    """Without munge the state of the job is not known, no bed comes up, and `down` fails in words and can be repeated."""
    job = up(2)
    code, output = run_until_lost(user, user.slurm.restart_controller, 2, epochs=30)
    assert code == 0 and "PASS" in output, output
    assert user.slurm.jobs() == {job: "RUNNING"}
    try:
        code, output = run_until_lost(user, lambda: user.slurm.stop("munge"), 2, epochs=30)
        assert code == 0 and "PASS" in output, output
        assert f"{job} on n1 n2" in user.ccbed("status", "lab")
        for verb in (["up", user.inventory("other", 1)], ["down", "lab", "--force"]):
            assert "munge, which identifies users to Slurm, does not respond here" in user.ccbed(*verb, code=4)
    finally:
        user.slurm.start_munge()
    assert user.slurm.jobs() == {job: "RUNNING"}
    user.require_nothing_left("other")


def test_a_node_that_slurm_drains_finishes_the_run_and_is_named(user: User, up: Callable[..., int]) -> None:
    """A node that fails afterwards is replaced by the spare of the job; `up` asks for another job."""
    up(2, 1)
    code, output = run_until_lost(user, lambda: user.slurm.set_node("n2", "drain", "bad dimm"), 2, epochs=30)
    assert code == 0 and "PASS" in output, output
    assert "node n2 is draining (bad dimm (by root))" in user.ccbed("status", "lab")
    user.slurm.set_node("n2", "resume")
    code, output = run_until_lost(user, lambda: user.slurm.set_node("n2", "down", "no power"), 2, epochs=60)
    assert code == 4 and "n1 lost: spare; rank 1 is now on n2" in output and "1200/1200" in output, output
    # What srun says is shown if it had said it when the loss was noticed.
    lost = ("node n2 failed, and Slurm removed it from the job", "its job step on n2 has ended")
    assert any(text in output for text in lost) and any(text in report(user) for text in lost), output
    assert "ccbed down lab, then: ccbed up" in user.ccbed("up", user.inventory("lab", 2, 1), code=4)


NVIDIA_SMI = """#!/bin/sh
case "$*" in
*ecc*) for gpu in 0 1; do echo "$gpu, GPU-$0-$gpu, Test, 0, No"; done ;;
*) for gpu in 0 1; do echo "$gpu, GPU-test-$gpu"; done ;;
esac
"""
SHOW_GPUS = """import json, os, pathlib, sys
names = ("CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "SLURM_STEP_GPUS", "LOCAL_RANK")
pathlib.Path(sys.argv[1], "rank-" + os.environ["RANK"]).write_text(json.dumps({name: os.environ.get(name) for name in names}))
"""


def test_ranks_have_the_gpu_that_slurm_gave_and_not_the_one_of_another_job(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GPU 0 of n1 belongs to another job, so that the step of the bed gets GPU 1."""
    programs = user.home / "bin"
    programs.mkdir()
    (programs / "nvidia-smi").write_text(NVIDIA_SMI)
    (programs / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    share = ("--nodelist=n1", "--gres=gpu:1", "--mem=100M", "--output=/dev/null")
    busy = int(user.slurm.run("sbatch", "--parsable", *share, "--wrap", "sleep 3000"))
    until(lambda: user.slurm.jobs()[busy] == "RUNNING")
    inventory = Path(user.inventory("lab", 1))
    document = yaml.safe_load(inventory.read_text())
    more = {"ccbed_gpus": 1, "ccbed_gres": "gpu:1", "ccbed_nodelist": "n1", "ccbed_sbatch": {"mem": "100M"}}
    document["all"]["vars"] |= more
    inventory.write_text(yaml.safe_dump(document))
    script = user.home / "show.py"
    script.write_text(SHOW_GPUS)
    try:
        user.ccbed("up", str(inventory))
        args = [
            "--bed",
            "lab",
            "--backend",
            "gloo",
            "--no-reference",
            "--env",
            "CUDA_VISIBLE_DEVICES=0,1",
            *user.runs("lab"),
        ]
        user.ccbed("run", str(script), *args, "--", str(user.home))
    finally:
        user.ccbed("down", "lab", "--force")
        user.slurm.cancel(busy)
    ranks = [json.loads(file.read_text()) for file in user.home.glob("rank-*")]
    assert ranks == [
        {"CUDA_VISIBLE_DEVICES": "1", "GPU_DEVICE_ORDINAL": "1", "SLURM_STEP_GPUS": "1", "LOCAL_RANK": "0"}
    ]
