"""Ranks on NCCL, each with a GPU of its own: a world of one where the machine has one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.model.run import Run
from orchestrator.model.trial import World
from orchestrator.node import warm_up
from tests.e2e import trials
from tests.e2e.conftest import Bed

from . import device, ranks

pytestmark = pytest.mark.gpu
#: A process that was warmed up as a keeper is, and a fork of it that uses the device.
FORKED = """
import os, sys
from orchestrator.node import warm_up
warm_up.import_modules()
pid = os.fork()
if pid == 0:
    import torch
    torch.ones(2, device=sys.argv[1]).sum().item()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
#: The operations of the watcher's time split, whose result in a world of one is their input.
COLLECTIVES = """
dist.init_process_group(BACKEND)
flat = torch.arange(1 << 20, dtype=torch.float32, device=DEVICE)
whole, same = flat.clone(), {}
for name, call in {
    "all-reduce": lambda: dist.all_reduce(whole),
    "broadcast": lambda: dist.broadcast(whole, 0),
    "reduce": lambda: dist.reduce(whole, 0),
    "all-gather": lambda: dist.all_gather_into_tensor(whole, flat),
    "reduce-scatter": lambda: dist.reduce_scatter_tensor(whole, flat),
    "all-to-all": lambda: dist.all_to_all_single(whole, flat),
    "barrier": dist.barrier,
}.items():
    call()
    wait()
    same[name] = bool(torch.equal(whole, flat))
objects = [None]
dist.all_gather_object(objects, {"rank": 0})
report(same=same, objects=objects)
dist.destroy_process_group()
"""


def backends(run: Run) -> set[str]:
    return {event.value["backend"] for event in run.history.of("rank.joined")}


def test_gpu_can_be_used_in_a_fork_of_what_was_warmed_up() -> None:
    env = {
        **dict.fromkeys(warm_up.ONE_THREAD, "1"),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", FORKED, device.NAME], capture_output=True, text=True, env=env, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_collectives_of_a_world_of_one(tmp_path: Path) -> None:
    (process,) = ranks.run(tmp_path, COLLECTIVES)
    assert ranks.values(process)["objects"] == [{"rank": 0}]
    assert set(ranks.values(process)["same"].values()) == {True}


@pytest.mark.parametrize("algorithm", ["ring", "library"])
def test_a_node_is_lost_and_comes_back_bit_exact(bed: Bed, algorithm: str) -> None:
    trial = trials.dp(
        trials.crash(0, step=13, phase="backward"),
        policy=("restart",),
        world=World(nodes=1),
        params={"algorithm": algorithm},
    )
    ran = bed.run(trial)
    assert ran.bad() == []
    assert backends(ran.run) == {device.BACKEND}


def test_random_states_are_part_of_what_is_compared_and_facts_of_the_bundle(bed: Bed) -> None:
    ran = bed.run(trials.dp(world=World(nodes=1)))
    digests = [event.value["digest"] for event in ran.of("rank.finished")]
    states = {"rng.generator", "rng.torch"} | (set() if device.IS_REHEARSAL else {"rng.cuda"})
    assert digests and all(states <= digest.keys() for digest in digests)
    assert {"torch", "cores"} <= json.loads((ran.directory / "fingerprint.json").read_text()).keys()


@device.needs_cuda
def test_driver_and_libraries_are_facts_of_the_bundle(bed: Bed) -> None:
    ran = bed.run(trials.dp(world=World(nodes=1)))
    for node in ran.directory.glob("nodes/*"):
        facts = json.loads((node / "system.json").read_text())
        assert facts["driver"] and facts["cuda"] and facts["nccl"] and facts["gpus"]
        assert b"<nvidia_smi_log>" in (node / "gpu.xml").read_bytes()
    assert json.loads((ran.directory / "fingerprint.json").read_text())["gpus"]
