"""Beds on a real Slurm that get no job, or lose the command that had it: nothing stays in the queue, and the next one knows."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from ..lab.slurm import Slurm
from .conftest import ROOT, ccbed

pytestmark = pytest.mark.e2e


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
    assert (
        code == 0
        and f"salloc --no-shell --no-kill --job-name=ccbed-lab --comment=ccbed:{state}/beds/lab --nodes=2" in text
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
    code, text = ccbed(state, "up", inventory(tmp_path, "never", partition=partition), "--wait", "3s")
    assert (code, words in text, "nothing of bed never is left running" in text) == (expected, True, True), text
    assert slurm.jobs() == {} and not list(state.glob("beds/*.json"))


def test_the_next_run_names_uses_and_releases_the_job_of_a_run_that_was_killed(
    slurm: Slurm, state: Path, tmp_path: Path
) -> None:
    run = (
        "run",
        "barrier",
        "--nodes",
        "2",
        "-i",
        inventory(tmp_path, "lab", time="10m"),
        "--runs-dir",
        str(tmp_path / "runs"),
    )
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
