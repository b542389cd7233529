"""Every way of training loses a node for real, comes back, and ends with the weights of its twin."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.model.trial import CheckSpec, Recovery, Trial, World

from . import trials
from .conftest import Bed

pytestmark = pytest.mark.e2e

SHORT = {"epochs": 1}


def made(bed: Bed, workload: str, params: dict[str, Any], **more: Any) -> Trial:
    module: Any = bed.catalogue.workloads[workload].module
    faults = more.pop("faults", (trials.crash(1),))
    return Trial(
        name=f"e2e-{workload}", workload=workload, params=params, faults=faults, world=World(nodes=more.pop("nodes", 4)),
        recovery=Recovery(policy=("spare", "restart"), max_restarts=3),
        checks=tuple(CheckSpec(name=name) for name in module.CHECKS),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("workload", "params"),
    [
        ("train-tp", SHORT),
        ("train-ddp", SHORT),
        ("train-ddp", {**SHORT, "algorithm": "halving-doubling"}),
        ("train-fsdp", SHORT),
        ("train-pp", SHORT),
        ("moe-a2a", {"steps": 20}),
    ],
)
def test_a_node_is_lost_and_the_weights_are_those_of_the_twin(bed: Bed, workload: str, params: dict[str, Any]) -> None:
    done = bed.run(made(bed, workload, params))
    assert done.bad() == []
    assert done.outcome("bit-exact") == done.outcome("traffic-as-predicted") == "pass"
    assert len(done.of("recovery.decided")) == 1


def test_inference_begins_again_and_answers_what_one_process_answers(bed: Bed) -> None:
    done = bed.run(made(bed, "infer-dp", {}))
    assert done.bad() == []
    assert done.outcome("equals-reference") == done.outcome("replicas-identical") == "pass"


def test_layers_are_cut_unevenly_where_the_world_does_not_divide_them(bed: Bed) -> None:
    for workload in ("train-tp", "train-pp", "train-fsdp"):
        done = bed.run(made(bed, workload, SHORT, nodes=3, faults=()))
        assert done.bad() == []


@pytest.mark.parametrize("workload", ["train-tp", "train-pp", "infer-dp"])
def test_a_step_of_fewer_samples_moves_what_these_say(bed: Bed, workload: str) -> None:
    """1,280 images in batches of 1,281: the first step is the short one."""
    done = bed.run(made(bed, workload, {"batch": 1281, **({} if workload == "infer-dp" else SHORT)}, faults=()))
    assert done.bad() == []
    assert done.outcome("traffic-as-predicted") == "pass"


def test_a_stage_that_does_not_get_its_optimizers_state_back_is_found_out(bed: Bed) -> None:
    """Of a checkpoint's shards each rank takes its own: with another's, or none, the twin's weights are not reached."""
    done = bed.run(made(bed, "train-tp", {**SHORT, "break_optimizer": True}))
    assert done.outcome("bit-exact") == "fail"


def test_more_stages_than_layers_are_refused_before_anything_starts(bed: Bed) -> None:
    code, said = bed.ccbed("run", "pp", "--ranks-per-node", "2")
    assert (code, "the model has 4 layers: at most 4 ranks (got 8)" in said) == (3, True), said
