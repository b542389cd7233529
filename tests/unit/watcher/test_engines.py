"""Engines that step fp32 tensors of their own: one step for each call of theirs, and digests under the names of the model."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def"
from __future__ import annotations

import importlib
import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from orchestrator.rank.watcher import digest, sharding
from orchestrator.rank.watcher.engines import master_weights
from orchestrator.rank.watcher.engines.master_weights import EngineOptimizer, Fragment

from . import jobs

STEPS = 3


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


class MixedPrecision:
    """The structure of Megatron's Float16OptimizerWithFloat16Params, which itself takes parameters on CUDA only."""

    def __init__(self, model: nn.Module) -> None:
        self.float16_groups = [
            [p for p in model.parameters() if p.dim() > 1],
            [p for p in model.parameters() if p.dim() == 1],
        ]
        self.fp32_from_float16_groups = [[p.detach().clone().float() for p in group] for group in self.float16_groups]
        self.fp32_from_fp32_groups: list[list[Any]] = [[], []]
        self.optimizer = torch.optim.Adam([{"params": group} for group in self.fp32_from_float16_groups], lr=0.01)

    def step_with_ready_grads(self) -> bool:
        for group, mains in zip(self.float16_groups, self.fp32_from_float16_groups, strict=True):
            for parameter, main in zip(group, mains, strict=True):
                assert parameter.grad is not None
                main.grad, parameter.grad = parameter.grad.float(), None
        self.optimizer.step()
        for group, mains in zip(self.float16_groups, self.fp32_from_float16_groups, strict=True):
            for parameter, main in zip(group, mains, strict=True):
                parameter.data.copy_(main)
        return True


class PerGroup(MixedPrecision):
    """The structure of DeepSpeed's ``step``: the inner optimizer steps one group at a time, and not at all after an overflow."""

    has_overflow = False

    def step_with_ready_grads(self) -> bool:
        if self.has_overflow:
            return False
        groups = self.optimizer.param_groups
        for group in groups:
            self.optimizer.param_groups = [group]
            self.optimizer.step()
        self.optimizer.param_groups = groups
        return True


def train(model: nn.Module, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        model(torch.ones(2, 5).bfloat16()).float().pow(2).sum().backward()
        optimizer.step_with_ready_grads()


def watch(cls: Any) -> None:
    master_weights.watch_steps(cls, master_weights.tensors_of_megatron, master_weights.STEP)


def train_as_megatron(rank: int) -> None:
    watch(MixedPrecision)
    model = net().bfloat16()
    optimizer = MixedPrecision(model)
    names = {id(p): name for name, p in model.named_parameters()}
    pairs = zip(optimizer.float16_groups, optimizer.fp32_from_float16_groups, strict=True)
    mains = {names[id(p)]: main for group, masters in pairs for p, main in zip(group, masters, strict=True)}
    expected = [digest.total(mains)[0]]
    for _ in range(STEPS):
        train(model, optimizer, 1)
        expected.append(digest.total(mains)[0])
    Path(os.environ["EXPECTED"]).write_text(json.dumps(expected))


def test_the_fp32_copies_of_a_model_have_its_names(tmp_path: Path) -> None:
    (lines,) = jobs.fork(tmp_path / "r", train_as_megatron, EXPECTED=str(tmp_path / "expected"))
    (owner,) = jobs.of(lines, "owner")
    assert (owner["names"], owner["optimizer"]) == ("module", "MixedPrecision")
    assert {kind for kind, _ in owner["parameters"].values()} == {"float32"}
    states = {line["n"]: line["weights"] for line in jobs.of(lines, "state")}
    assert [states[n] for n in range(STEPS + 1)] == json.loads((tmp_path / "expected").read_text())
    assert [line["n"] for line in jobs.of(lines, "step")] == [1, 2, 3]


def train_by_groups(rank: int) -> None:
    watch(PerGroup)
    model = net().bfloat16()
    optimizer = PerGroup(model)
    for mains in optimizer.fp32_from_float16_groups:
        for main in mains:
            main.grad = torch.ones_like(main)
    train(model, optimizer, 2)
    optimizer.has_overflow = True
    train(model, optimizer, 1)
    optimizer.has_overflow = False
    train(model, optimizer, 1)


def test_groups_that_are_stepped_one_by_one_are_one_step_and_an_overflow_is_none(tmp_path: Path) -> None:
    (lines,) = jobs.fork(tmp_path, train_by_groups)
    assert [line["n"] for line in jobs.of(lines, "step")] == [1, 2, 3], "of four iterations one overflowed"
    assert {len(line["lr"]) for line in jobs.of(lines, "state") if "lr" in line} == {2}, "both groups, at any time"
    assert {line["numel"] for line in jobs.of(lines, "state")} == {sum(p.numel() for p in net().parameters())}


def step_by_groups_unwatched(rank: int) -> None:
    model = net().bfloat16()
    optimizer = PerGroup(model)
    for mains in optimizer.fp32_from_float16_groups:
        for main in mains:
            main.grad = torch.ones_like(main)
    train(model, optimizer, 2)


def test_without_its_adapter_such_an_engine_counts_too_many_steps(tmp_path: Path) -> None:
    """Negative control: each group would be a step."""
    (lines,) = jobs.fork(tmp_path, step_by_groups_unwatched)
    assert jobs.of(lines, "end")[0]["n"] == 4


def test_flat_shards_of_two_ranks_add_up_to_the_full_parameters() -> None:
    """A padded flat tensor, cut in the middle of the second parameter."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    parameters = dict(model.named_parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters.values()] + [torch.full((3,), 9.0)])
    size, value = -(-flat.numel() // 2), 0
    for rank in range(2):
        begin, fragments, at = rank * size, [], 0
        for parameter in parameters.values():
            start, end = max(at, begin), min(at + parameter.numel(), begin + size)
            if end > start:
                fragments.append(
                    Fragment(parameter, tuple(parameter.shape), start - at, start - begin, end - start, (0, 1))
                )
            at += parameter.numel()
        shard = flat[begin : begin + size]
        by_id = sharding.by_parameter([model])
        EngineOptimizer("Zero", None, [(0, shard, fragments)]).add_parts(by_id)
        value += sharding.digest_of(shard, by_id[id(shard)], (0, 1), rank)[0]
    assert digest.render(value) == digest.total(parameters)[0]


def test_a_tensor_that_is_not_in_memory_has_no_digest() -> None:
    """As where the engine has moved it to a disk."""
    parameter = nn.Parameter(torch.ones(4))
    by_id = {id(parameter): [sharding.of_tensor("w", parameter)]}
    empty = torch.empty(0)
    EngineOptimizer("Zero", None, [(0, empty, [Fragment(parameter, (4,), 0, 0, 4)])]).add_parts(by_id)
    assert by_id[id(empty)][0].reason == "its fp32 tensor is not in memory"


def train_with_deepspeed(rank: int) -> None:
    """Five steps with two parameter groups, saved after every second; the second process of a rank resumes."""
    deepspeed = importlib.import_module("deepspeed")
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined] # no C++ compiler
    os.environ["LOCAL_RANK"] = str(rank)  # without it DeepSpeed asks MPI
    deepspeed.init_distributed("gloo")
    model, stage, dtype = net(), int(os.environ["STAGE"]), os.environ["DTYPE"]
    names = ("weight", "bias")
    groups = [{"params": [p for n, p in model.named_parameters() if n.endswith(name)]} for name in names]
    config = {
        "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False, "bf16": {"enabled": dtype == "bfloat16"},
    }  # fmt: skip
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(groups, lr=0.01), config=config)
    path, client = engine.load_checkpoint(os.environ["CHECKPOINTS"])
    for step in range(client["step"] if path else 0, int(os.environ["STEPS"])):
        for part in range(2):
            torch.manual_seed(100 * step + 10 * rank + part)
            loss = engine(torch.randn(2, 5).to(getattr(torch, dtype))).float().pow(2).mean()
            engine.backward(loss)
            engine.step()
        if step % 2:
            engine.save_checkpoint(os.environ["CHECKPOINTS"], tag=f"step{step + 1}", client_state={"step": step + 1})
    dist.destroy_process_group()


def total(attempt: list[list[dict[str, Any]]], n: int) -> str:
    """The sum of the digests of the ranks after n steps."""
    states = [next(line for line in jobs.of(lines, "state") if line["n"] == n) for lines in attempt]
    return digest.render(sum(int(state["weights"], 16) for state in states))


if find_spec("deepspeed"):  # not a need of ccbed; where it is installed, its adapter is tried
    import pytest

    @pytest.mark.parametrize(("stage", "dtype"), [("1", "float32"), ("2", "bfloat16"), ("3", "float32")])
    def test_a_job_of_deepspeed_resumes_from_its_newest_checkpoint(tmp_path: Path, stage: str, dtype: str) -> None:
        os.environ["DS_ACCELERATOR"] = "cpu"
        importlib.import_module("deepspeed")  # once for all forked ranks
        variables = {"STAGE": stage, "DTYPE": dtype, "CHECKPOINTS": str(tmp_path / "c")}
        first = jobs.fork(tmp_path / "first", train_with_deepspeed, 2, STEPS="5", **variables)
        second = jobs.fork(tmp_path / "second", train_with_deepspeed, 2, STEPS="6", **variables)
        for lines in (*first, *second):
            assert not [*jobs.of(lines, "problem"), *jobs.of(lines, "unknown")]
        assert [line["n"] for line in jobs.of(first[0], "step")] == [1, 2, 3, 4, 5]
        assert (jobs.of(first[0], "owner")[0]["names"], jobs.of(first[0], "owner")[0]["shards"]) == ("module", [0, 1])
        assert len({total(first, n) for n in range(6)}) == 6
        assert total(second, 0) == total(first, 4) != total(first, 5)
        assert total(second, 1) == total(first, 5), "the redone step is equal"
        commits = [(Path(line["path"]).name, line["how"]) for line in jobs.of(first[0], "committed")]
        assert commits == [("step2", "latest"), ("step4", "latest")]
        saved = [lines_of["weights"] for lines in first for lines_of in jobs.of(lines, "saved")[1:]]
        assert digest.render(sum(int(weights, 16) for weights in saved)) == total(first, 4)
        (load,) = jobs.of(second[0], "load")
        assert (load["api"], Path(load["path"]).name) == ("deepspeed", "step4")
