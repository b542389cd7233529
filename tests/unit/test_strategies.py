"""What the training workloads say that they move, and what they refuse."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from orchestrator.collectives.sizing import gpu_memory, layout, model_description, traffic
from orchestrator.rank.reference_models import classifier
from orchestrator.workloads import infer_dp, moe_a2a, train_fsdp, train_pp, train_tp
from tests.unit import history
from tests.unit.verdicts import ask

NAMES = ("train_dp", "train_ddp", "train_fsdp", "train_tp", "train_pp", "moe_a2a", "infer_dp")


def test_the_classifier_has_the_parameters_of_the_reference() -> None:
    assert classifier.parameters() == 242_762
    assert [(inputs + 1) * outputs * 4 for inputs, outputs in ((64, 10), (128, 64), (256, 128), (784, 256))] == [
        2_600, 33_024, 131_584, 803_840,
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_traffic_is_told_for_any_world(name: str) -> None:
    module: Any = importlib.import_module(f"orchestrator.workloads.{name}")
    for world in (1, 2, 3, 4):
        assert all(size > 0 for size in module.traffic(module.Params(), world, 64).values())


@pytest.mark.parametrize("name", ["train_dp", "train_ddp"])
def test_data_parallel_traffic_is_what_sizing_says(name: str) -> None:
    module: Any = importlib.import_module(f"orchestrator.workloads.{name}")
    model = model_description.classifier()
    collectives = traffic.of_step(model, layout.arrange("dp", 4, {}, model), gpu_memory.OPTIMIZERS["adam"], 64)
    assert module.traffic(module.Params(), 4, 64)["all-reduce"] == 4 * sum(
        item.size * item.count for item in collectives
    )


def test_fully_sharded_traffic_is_three_times_the_model_where_the_world_divides_its_rows() -> None:
    result = train_fsdp.traffic(train_fsdp.Params(), 2, 64)
    assert result == {"all-gather": 2 * 2 * 971_048, "reduce-scatter": 2 * 971_048}
    assert train_fsdp.traffic(train_fsdp.Params(reshard=False), 2, 64)["all-gather"] == 2 * 971_048
    assert train_fsdp.traffic(train_fsdp.Params(), 4, 64)["reduce-scatter"] == 4 * (971_048 + 2 * 65 * 4)


def test_tensor_parallel_traffic_grows_with_the_batch() -> None:
    assert train_tp.traffic(train_tp.Params(), 4, 64) == {"all-reduce": 4 * 65_536, "all-gather": 4 * 16_384}
    assert train_tp.traffic(train_tp.Params(), 4, 128)["all-reduce"] == 8 * 65_536


def test_a_pipeline_moves_what_lies_between_its_stages() -> None:
    assert train_pp.traffic(train_pp.Params(), 4, 64) == {"send-recv": 2 * 64 * (256 + 128 + 64) * 4}
    assert train_pp.traffic(train_pp.Params(), 2, 64) == {"send-recv": 2 * 64 * 128 * 4}
    assert train_pp.traffic(train_pp.Params(), 1, 64) == {}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_pipeline_moves_what_sizing_says(world: int) -> None:
    """Every boundary twice for each microbatch, forward and back."""
    model = model_description.classifier()
    arranged = layout.arrange("pp", world, {"microbatches": 4}, model)
    collectives = traffic.of_step(model, arranged, gpu_memory.OPTIMIZERS["adam"], 8192)
    expected = train_pp.traffic(train_pp.Params(batch=8192, microbatches=4), world, 8192)
    assert expected == {"send-recv": sum(item.step_bytes * len(item.groups) for item in collectives)}
    assert all(item.count == 2 * 4 for item in collectives)


def test_a_short_batch_moves_what_it_has() -> None:
    """The first step of a gang that resumed may be the last one of an epoch."""
    assert train_tp.traffic(train_tp.Params(batch=100), 4, 80)["all-reduce"] == 4 * 2 * 128 * 80 * 4
    assert train_pp.traffic(train_pp.Params(batch=100), 2, 80) == {"send-recv": 2 * 80 * 128 * 4}
    assert infer_dp.traffic(infer_dp.Params(batch=100), 4, 80) == {"scatter": 4 * 80 * 784 * 4, "gather": 4 * 80 * 40}
    assert moe_a2a.traffic(moe_a2a.Params(), 4, 0) == moe_a2a.traffic(moe_a2a.Params(), 4, 80)


def test_what_cannot_be_is_refused_by_name() -> None:
    assert train_pp.fits(train_pp.Params(), 4) == []
    assert train_pp.fits(train_pp.Params(), 5) == ["the model has 4 layers: at most 4 ranks (got 5)"]
    assert moe_a2a.fits(moe_a2a.Params(topk=3), 2) == ["topk 3 needs at least 3 ranks, with one expert each (got 2)"]
    assert train_pp.check(train_pp.Params(microbatches=65)) == ["microbatches: must be 1 to the batch of 64 (got 65)"]
    assert infer_dp.check(infer_dp.Params(scatter="library")) == [
        "scatter: must be a scatter of algorithms/ (got 'library')"
    ]
    assert train_tp.check(train_tp.Params(all_gather="star")) == [
        "all_gather: must be an all-gather of algorithms/ or library (got 'star')"
    ]


def test_more_bytes_than_the_formula_fail() -> None:
    run = history.changed(history.clean(), "traffic", 2, value={"measured": {"all-reduce": 971_052}})
    verdict = ask(run, "traffic-as-predicted")
    assert (verdict.outcome, "3,884,196 bytes in a step of all ranks, predicted were 3,884,192" in verdict.text) == (
        "fail",
        True,
    )
    assert ask(history.without(history.clean(), "traffic"), "traffic-as-predicted").outcome == "unknown"


def test_weights_far_from_those_of_one_process_fail() -> None:
    run = history.changed(history.clean(), "reference.compared", value={"difference": 0.5})
    assert ask(run, "equals-reference").outcome == "fail"
    run = history.changed(history.clean(), "reference.compared", value={"difference": float("nan")})
    assert ask(run, "equals-reference").outcome != "pass"
    assert ask(history.without(history.clean(), "reference.compared"), "equals-reference").outcome == "unknown"


def test_what_is_moved_before_the_first_step_is_compared_as_well() -> None:
    assert infer_dp.once(infer_dp.Params(), 4) == {"broadcast": 4 * 971_048}
    run = history.clean()
    for rank in range(4):
        expected = {"once": {"broadcast": 971_048}, "once_predicted": {"broadcast": 4 * 971_048}}
        run = history.changed(run, "traffic", rank, value=expected)
    good = ask(run, "traffic-as-predicted")
    assert (good.outcome, good.text) == (
        "pass",
        "broadcast 971,048 bytes per rank once, all-reduce 971,048 bytes per rank and step, as predicted",
    )
    bad = ask(history.changed(run, "traffic", 2, value={"once": {}}), "traffic-as-predicted")
    assert (bad.outcome, "2,913,144 bytes of all ranks before the first step" in bad.text) == ("fail", True)
