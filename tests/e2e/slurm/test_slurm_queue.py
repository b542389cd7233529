"""Beds on a real Slurm that get no job, or lose the command that had it: nothing stays in the queue, and the next one knows."""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from orchestrator.slurm import allocation
from orchestrator.slurm.slurm_commands import SlurmError

from ...lab.slurm import Slurm
from ...patience import until
from ..conftest import ROOT, ccbed

pytestmark = pytest.mark.e2e

#: The limit of a hang.
LIMIT_S = 600.0


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Where ``XDG_STATE_HOME`` puts it for a command of its own process."""
    return tmp_path / "ccbed"


def inventory(folder: Path, name: str, nodes: int = 2, **variables: str) -> str:
    own = {"ccbed_provider": "slurm", "ccbed_bed": name, **{f"ccbed_{key}": value for key, value in variables.items()}}
    file = folder / f"{name}.yml"
    file.write_text(yaml.safe_dump({"all": {"vars": own, "hosts": {"cluster": {"ccbed_nodes": nodes}}}}))
    return str(file)


def test_plan_submits_nothing(slurm: Slurm, state: Path, tmp_path: Path) -> None:
    code, text = ccbed(state, "plan", inventory(tmp_path, "lab", partition="main"))
    assert code == 0 and re.search(
        "salloc --no-shell --no-kill --job-name=ccbed-lab --comment=ccbed:[0-9a-f]{32} --nodes=2", text
    )
    assert slurm.jobs() == {} and not list(state.glob("beds/*.json"))


@pytest.mark.parametrize(
    ("partition", "expected", "words"),
    [
        ("stopped", 4, "the partition is down (PartitionDown); it is cancelled"),
        ("nope", 3, "Slurm has no partition nope"),
    ],
)
def test_up_without_a_job_leaves_no_bed(
    partition: str, expected: int, words: str, slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    code, text = ccbed(state, "up", inventory(tmp_path, "never", partition=partition), "--wait", "8s")
    assert (code, words in text, "nothing of bed never is left running" in text) == (expected, True, True), text
    assert slurm.jobs() == {} and not list(state.glob("beds/*.json"))


def test_the_next_run_names_uses_and_releases_the_job_of_a_run_that_was_killed(
    slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    run = (
        "run", "barrier", "--nodes", "2", "-i", inventory(tmp_path, "lab", time="10m"), "--runs-dir", str(tmp_path / "runs"),
    )  # fmt: skip
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    record, output = state / "beds/lab/allocation.json", tmp_path / "output"
    argv = [sys.executable, "-m", "orchestrator.cli", *run]
    with output.open("wb") as file, subprocess.Popen(argv, env=environment, stdout=file, stderr=file) as process:
        while not record.exists():
            assert process.poll() is None, output.read_text()
            time.sleep(0.05)
        process.kill()
    (job_id,) = slurm.jobs()
    code, text = ccbed(state, *run)
    assert f"job {job_id} of bed lab was left by a command that was killed; it is used and released" in text
    assert code == 0 and slurm.jobs() == {} and not record.exists(), text


def submit_as_planned(slurm: Slurm, state: Path, file: str) -> int:
    """The bed's job, as a command that was killed before it recorded anything leaves it."""
    _, text = ccbed(state, "plan", file)
    slurm.run(*shlex.split(next(line for line in text.splitlines() if line.startswith("  salloc "))))
    (job_id,) = slurm.jobs()
    return job_id


@pytest.mark.parametrize("record", ["", "{damaged"])
def test_down_of_an_inventory_cancels_a_job_that_only_the_queue_knows(
    record: str, slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    file = inventory(tmp_path, "lab")
    job_id = submit_as_planned(slurm, state, file)
    if record:
        (state / "beds/lab").mkdir(parents=True)
        (state / "beds/lab/allocation.json").write_text(record)
    else:
        code, text = ccbed(state, "up", file)
        assert code == 4 and f"job {job_id} is in the queue already" in text and f"ccbed down {file}" in text
        assert f"left running: job {job_id} (running: " in text and "nothing of bed lab is left" not in text
    code, text = ccbed(state, "down", file)
    assert code == 0 and slurm.jobs() == {}, text


def test_a_job_that_cannot_be_recorded_is_cancelled(
    slurm: Slurm, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        assert list(slurm.jobs().values()) == ["RUNNING"]
        raise OSError(errno.ENOSPC, "No space left on device", "allocation.json")

    monkeypatch.setattr(allocation, "write", fail)
    code, text = ccbed(state, "up", inventory(tmp_path, "lab"))
    assert code == 4 and "No space left on device" in text
    assert slurm.jobs() == {} and not list(state.glob("beds/*.json"))


def test_a_bed_stays_known_while_its_job_cannot_be_cancelled(
    slurm: Slurm, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise SlurmError("Socket timed out")

    with monkeypatch.context() as patch:
        patch.setattr(allocation, "write", fail)
        patch.setattr(allocation, "_cancel", fail)
        code, text = ccbed(state, "up", inventory(tmp_path, "lab"))
    (job_id,) = slurm.jobs()
    assert code == 4 and "the job of bed lab may be left: Socket timed out" in text
    assert f"left running: job {job_id} (running: " in text and "nothing of bed lab is left" not in text
    assert ccbed(state, "down", "lab")[0] == 0 and slurm.jobs() == {}


def test_a_detached_run_whose_job_waits_says_so_and_ends_with_its_job(
    slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    command = ("run", "barrier", "--nodes", "2", "--detach", "-i", inventory(tmp_path, "lab", partition="stopped"))
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-m", "orchestrator.cli", *command]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (job_id,) = slurm.jobs()
    assert f"job {job_id} waits in partition stopped: the partition is down" in done.stdout
    match = re.search(r"detached, pid (\d+) +it begins with its job; to end it: kill \1 ", done.stdout)
    assert match, done.stdout
    os.kill(int(match[1]), signal.SIGTERM)
    until(lambda: not (slurm.jobs() or list(state.glob("beds/*.json"))), slurm.jobs)
