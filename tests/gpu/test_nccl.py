"""Needs an NVIDIA GPU and a torch built for CUDA (make test-gpu): a bed of processes, a GPU for each node, ranks on NCCL."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.model.run import Run
from orchestrator.model.trial import World
from orchestrator.node import warm_up
from orchestrator.store import beds
from tests.e2e import trials
from tests.e2e.conftest import Bed, ccbed

pytestmark = pytest.mark.gpu
INVENTORY = """all:
  hosts: {{localhost: {{ansible_connection: local}}}}
  vars: {{ccbed_bed: gpus, ccbed_nodes: {count}, ccbed_gpus: 1}}
"""
#: A process that was warmed up as a keeper is, and a fork of it that uses the GPU.
FORKED = """
import os, sys
from orchestrator.node import warm_up
warm_up.import_modules()
pid = os.fork()
if pid == 0:
    import torch
    torch.ones(2, device="cuda").sum().item()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def gpus() -> int:
    """How many there are; 0 where the driver's tool is not, or does not answer."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return len([line for line in done.stdout.splitlines() if line.startswith("GPU ")])


@pytest.fixture(scope="module")
def count() -> int:
    uuids = gpus()
    if not uuids:
        pytest.skip("needs an NVIDIA GPU")
    return uuids


@pytest.fixture(scope="module")
def bed(count: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    """As many nodes as there are GPUs."""
    state, inventory = tmp_path_factory.mktemp("state") / "ccbed", tmp_path_factory.mktemp("inventory") / "gpus.yml"
    inventory.write_text(INVENTORY.format(count=count))
    code, output = ccbed(state, "up", str(inventory))
    assert code == 0, output
    spec = beds.read(state, "gpus")
    assert spec is not None
    yield Bed(state=state, runs=tmp_path_factory.mktemp("runs"), spec=spec, catalogue=plugins.discover(()))
    code, output = ccbed(state, "down", "gpus", "--force")
    assert code == 0, output


def world(count: int) -> World:
    return World(nodes=count)


def backends(run: Run) -> set[str]:
    return {event.value["backend"] for event in run.history.of("rank.joined")}


def test_gpu_can_be_used_in_a_fork_of_what_was_warmed_up(count: int) -> None:
    env = {
        **dict.fromkeys(warm_up.ONE_THREAD, "1"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", FORKED], capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("algorithm", ["ring", "library"])
def test_gpu_ranks_lose_a_node_and_come_back_bit_exact(bed: Bed, count: int, algorithm: str) -> None:
    crash = trials.crash(count - 1)
    ran = bed.run(trials.dp(crash, policy=("restart",), world=world(count), params={"algorithm": algorithm}))
    assert ran.bad() == []
    assert backends(ran.run) == {"nccl"}


def test_gpu_random_states_are_part_of_what_is_compared(bed: Bed, count: int) -> None:
    ran = bed.run(trials.dp(world=world(count)))
    digests = [event.value["digest"] for event in ran.of("rank.finished")]
    assert digests and all({"rng.cuda", "rng.generator", "rng.torch"} <= digest.keys() for digest in digests)


def test_gpu_facts_are_in_the_bundle(bed: Bed, count: int) -> None:
    ran = bed.run(trials.dp(world=world(count)))
    for node in ran.directory.glob("nodes/*"):
        facts = json.loads((node / "system.json").read_text())
        assert facts["driver"] and facts["cuda"] and facts["nccl"] and facts["gpus"]
        assert b"<nvidia_smi_log>" in (node / "gpu.xml").read_bytes()
    assert json.loads((ran.directory / "fingerprint.json").read_text())["gpus"]
