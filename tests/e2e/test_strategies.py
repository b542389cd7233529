"""Every way of training loses a node for real, comes back, and ends with the weights of its twin."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.model.event import Event
from orchestrator.model.trial import CheckSpec, Recovery, Trial, World

from . import trials
from .conftest import Bed, with_damage

pytestmark = pytest.mark.e2e

SHORT = {"epochs": 1}


def made(bed: Bed, workload: str, params: dict[str, Any], **more: Any) -> Trial:
    module: Any = bed.catalogue.workloads[workload].module
    faults = more.pop("faults", (trials.crash(1),))
    return Trial(
        name=f"e2e-{workload}", workload=workload, params=params, faults=faults, world=World(nodes=more.pop("nodes", 4)),
        recovery=Recovery(policy=("spare", "restart"), max_restarts=3),
        checks=tuple(CheckSpec(name=name) for name in module.CHECKS), liveness=trials.LIVENESS,
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
    assert done.verdict("weights-received").text == "4 replicas identical at 2 states"
    assert done.verdict("traffic-as-predicted").text.startswith("broadcast 971,048 bytes per rank once, gather ")
    assert "0 steps" not in done.verdict("replicas-identical").text


def test_layers_are_cut_unevenly_where_the_world_does_not_divide_them(bed: Bed) -> None:
    for workload in ("train-tp", "train-pp", "train-fsdp"):
        done = bed.run(made(bed, workload, SHORT, nodes=3, faults=()))
        assert done.bad() == []


def test_a_world_of_one_sends_nothing_whatever_its_torch_calls(bed: Bed) -> None:
    """FSDP2 gathers and reduces nothing among one rank; earlier versions of it do."""
    done = bed.run(made(bed, "train-fsdp", SHORT, nodes=1, faults=()))
    assert done.bad() == []


@pytest.mark.parametrize("workload", ["train-tp", "train-pp", "infer-dp"])
def test_a_step_of_fewer_samples_moves_what_these_say(bed: Bed, workload: str) -> None:
    """1,280 images in batches of 1,281: the first step is the short one."""
    done = bed.run(made(bed, workload, {"batch": 1281, **({} if workload == "infer-dp" else SHORT)}, faults=()))
    assert done.bad() == []
    assert done.outcome("traffic-as-predicted") == "pass"


def test_a_stage_that_does_not_get_its_optimizers_state_back_is_found_out(bed: Bed) -> None:
    """Of a checkpoint's shards each rank takes its own: with another's, or none, the twin's weights are not reached."""
    done = with_damage(bed).run(trials.damaged(made(bed, "train-tp", SHORT), "optimizer"))
    assert done.outcome("bit-exact") == "fail"


def test_more_stages_than_layers_are_refused_before_anything_starts(bed: Bed) -> None:
    code, output = bed.ccbed("run", "pp", "--ranks-per-node", "2")
    assert (code, "the model has 4 layers: at most 4 ranks (got 8)" in output) == (3, True), output


# --- a checkpoint of a file per rank ----------------------------------------------------------------------------------


def test_of_a_damaged_shard_the_whole_checkpoint_is_skipped_for_the_one_before(bed: Bed) -> None:
    directory: list[Path] = []

    def damage(event: Event) -> None:
        if event.f == "checkpoint.commit" and event.value["step"] == 10:
            shard = Path(bed.spec.shared_dir) / directory[-1].name / "checkpoints/e0-s10/__2_0.distcp"
            shard.write_bytes(shard.read_bytes()[:-100])

    trial = replace(
        made(bed, "train-fsdp", {**SHORT, "step_min_ms": 20}), checks=(CheckSpec(name="bit-exact"),)
    )  # resumed-newest would be right to say that a newer one was committed
    done = bed.run(trial, on_event=damage, on_begin=lambda path: directory.append(Path(path)))
    (skipped,) = done.of("checkpoint.skipped")
    assert skipped.value["name"] == "e0-s10"
    assert skipped.value["reason"].startswith("__2_0.distcp: size ")
    assert [event.value["step"] for event in done.of("resume.chosen")] == [0, 5]
    assert done.bad() == []


@pytest.mark.parametrize("node", [0, 2])
def test_of_a_node_that_is_lost_while_shards_are_written_nothing_is_resumed(bed: Bed, node: int) -> None:
    done = bed.run(made(bed, "train-fsdp", SHORT, faults=(trials.crash(node, step=15, phase="checkpoint"),)))
    assert done.bad() == []
    (skipped,) = done.of("checkpoint.skipped")
    assert skipped.value == {"name": "e0-s15", "reason": "half-written: no e0-s15.json"}
    assert [event.value["step"] for event in done.of("resume.chosen")] == [0, 10]


def test_two_nodes_are_lost_one_after_the_other_and_shards_are_read_twice(bed: Bed) -> None:
    faults = (trials.crash(2), trials.crash(1, id="f1", step=17))
    done = bed.run(made(bed, "train-fsdp", SHORT, faults=faults))
    assert done.bad() == []
    assert [event.value.get("file") for event in done.of("resume.chosen")] == [None, "e0-s10", "e1-s15"]
