"""Trainings on the device lose a node and come back: ddp, fsdp and the GPT example, on NCCL and with two ranks on one GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from orchestrator.model import events
from orchestrator.model.trial import CheckSpec, Recovery, Trial, World
from orchestrator.store import bundle, index
from tests.e2e import trials
from tests.e2e.conftest import ROOT, Bed, Ran

from . import device

pytestmark = pytest.mark.gpu
TRIAL = """
trial: t
workload: script
params: {{file: {script}, args: [--steps, "40", --save-every, "3", --checkpoint, {checkpoint}], timeout_s: 60}}
world: {{nodes: {nodes}, timeout_s: 60}}
faults: [{fault}]
recovery: {{policy: restart}}
liveness: {{stalled_s: 60, hold_s: 60}}
"""
#: Beside the example: NCCL refuses a GPU that two ranks share, so the example gets gloo, and still the device.
ON_GLOO = """
import torch.distributed as dist
original = dist.init_process_group
dist.init_process_group = lambda backend: original("gloo")
import gpt_ddp
gpt_ddp.main()
"""


@pytest.mark.parametrize("workload", ["train-ddp", "train-fsdp"])
def test_a_node_is_lost_and_the_weights_are_those_of_the_twin(bed: Bed, workload: str) -> None:
    checks = tuple(CheckSpec(name=name) for name in bed.catalogue.workloads[workload].module.CHECKS)
    trial = Trial(
        name=f"gpu-{workload}", workload=workload, params={"epochs": 1}, world=World(nodes=1),
        faults=(trials.crash(0, step=13, phase="backward"),),
        recovery=Recovery(policy=("restart",), max_restarts=3), checks=checks, liveness=trials.LIVENESS,
    )  # fmt: skip
    ran = bed.run(trial)
    assert ran.bad() == []
    assert ran.outcome("bit-exact") == "pass"
    assert len(ran.of("recovery.decided")) == 1
    assert {event.value["backend"] for event in ran.of("rank.joined")} == {device.BACKEND}


def train_gpt(bed: Bed, folder: Path, fault: str, nodes: int, *, on_gloo: bool) -> Ran:
    script = shutil.copytree(ROOT / "orchestrator/jobs/examples", folder / "job") / "gpt_ddp.py"
    if on_gloo:
        script = script.with_name("gpt_on_gloo.py")
        script.write_text(ON_GLOO)
    trial = folder / "trial.yml"
    trial.write_text(TRIAL.format(script=script, checkpoint=folder / "gpt.pt", fault=fault, nodes=nodes))
    code, output = bed.ccbed("run", str(trial), "--runs-dir", str(folder / "runs"))
    ran = Ran(code=code, run=bundle.load(index.resolve("latest", folder / "runs")))
    assert ran.run.verdicts, output
    return ran


def check_recovered(ran: Ran) -> None:
    assert {ran.outcome(name) for name in ("fault-verified", "finished", "resumed-from", "no-step-lost")} == {"pass"}, (
        ran.bad()
    )
    assert "fail" not in {verdict.outcome for verdict in ran.run.verdicts}, ran.bad()
    torch_lines = [line for file in ran.directory.rglob("watch-r*.jsonl") for line in file.read_text().splitlines()]
    assert any(f'"device":"{device.NAME}"' in line.replace(" ", "") for line in torch_lines)


def test_the_gpt_example_loses_its_node(bed: Bed, tmp_path: Path) -> None:
    check_recovered(train_gpt(bed, tmp_path, "crash-node: {node: 0}", 1, on_gloo=False))


def test_the_gpt_example_with_two_ranks_on_one_gpu_loses_a_node(shared: Bed, tmp_path: Path) -> None:
    check_recovered(train_gpt(shared, tmp_path, "crash-node: {node: 1}", 2, on_gloo=True))


def test_a_flipped_bit_in_one_of_two_replicas_is_noticed(shared: Bed, tmp_path: Path) -> None:
    ran = train_gpt(shared, tmp_path, "flip-bit: {node: 1, of: parameter, bit: 22}", 2, on_gloo=True)
    assert ran.outcome("fault-verified") == "pass", ran.bad()
    assert ran.run.history.of(events.FaultVerified)
    assert ran.outcome("replicas-identical") == "fail", ran.bad()
