"""Sharded training: the parts of the ranks of a shard group add up to the full tensors, whatever shards them."""

# mypy: disable-error-code="no-untyped-call,unused-ignore,attr-defined"
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from orchestrator.rank.watcher import digest

from . import jobs

WORLD = 2
ITERATIONS = 3


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3))


def mesh() -> Any:
    return dist.init_device_mesh("cpu", (WORLD,))


def fsdp1(use_orig_params: bool) -> tuple[nn.Module, Callable[[], dict[str, Any]]]:
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    model = FullyShardedDataParallel(
        net(),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        use_orig_params=use_orig_params,
        device_id=torch.device("cpu"),
    )

    def full() -> dict[str, Any]:
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {
                name.replace("_fsdp_wrapped_module.", ""): p.detach().clone() for name, p in model.named_parameters()
            }

    return model, full


def fsdp1_original() -> tuple[nn.Module, Callable[[], dict[str, Any]]]:
    return fsdp1(True)


def fsdp1_flat() -> tuple[nn.Module, Callable[[], dict[str, Any]]]:
    return fsdp1(False)


def gathered(model: nn.Module) -> Callable[[], dict[str, Any]]:
    def full() -> dict[str, Any]:
        items = ((name, p.detach()) for name, p in model.named_parameters())
        return {name: p.full_tensor() if hasattr(p, "full_tensor") else p for name, p in items}

    return full


def fsdp2() -> tuple[nn.Module, Callable[[], dict[str, Any]]]:
    from torch.distributed.fsdp import fully_shard

    model = net()
    for layer in model:  # type: ignore[attr-defined]
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh())
    fully_shard(model, mesh=mesh())
    return model, gathered(model)


def tensor_parallel() -> tuple[nn.Module, Callable[[], dict[str, Any]]]:
    """Columns and rows are sharded, one bias is replicated as a DTensor, the norm is a plain tensor on every rank."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    torch.manual_seed(1)
    model = nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    parallelize_module(model, mesh(), {"1": ColwiseParallel(), "3": RowwiseParallel()})
    return model, gathered(model)


def train(rank: int, folder: Path, build: Callable[[], tuple[nn.Module, Callable[[], dict[str, Any]]]]) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    model, full = build()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    digests = []
    for _ in range(ITERATIONS):
        optimizer.zero_grad()
        model(torch.ones(2, 5)).square().mean().backward()
        optimizer.step()
        digests.append(digest.total(full()))
    if rank == 0:
        (folder / "digests").write_text(json.dumps(digests))
    dist.destroy_process_group()


def add(lines: list[dict[str, Any]]) -> tuple[str, int]:
    """What a reader does with the lines of the ranks of one shard group."""
    return digest.render(sum(int(line["weights"], 16) for line in lines)), sum(line["numel"] for line in lines)


@pytest.mark.parametrize(
    "build", [fsdp1_original, fsdp1_flat, fsdp2, tensor_parallel], ids=lambda build: build.__name__
)
def test_the_parts_of_the_ranks_add_up_to_the_full_model(tmp_path: Path, build: Callable[..., Any]) -> None:
    ranks = jobs.fork(tmp_path / "records", lambda rank: train(rank, tmp_path, build), WORLD)
    expected = [tuple(item) for item in json.loads((tmp_path / "digests").read_text())]
    for lines in ranks:
        assert jobs.of(lines, "problem") == []
        assert jobs.of(lines, "unknown") == []
        (owner,) = jobs.of(lines, "owner")
        assert (owner["sharded"], owner["shards"], owner["names"]) == (True, [0, 1], "module")
        assert owner["numel"] == expected[0][1]
        assert [line["n"] for line in jobs.of(lines, "step")] == list(range(1, ITERATIONS + 1))
        inputs = [line.get("inputs", []) for line in jobs.of(lines, "step")]
        assert [*map(len, inputs)] == [int(build is not tensor_parallel)] * ITERATIONS, "one hash a step: the root's"
        assert all(hashes == inputs[0] for hashes in inputs)
    states = [{line["n"]: line for line in jobs.of(lines, "state")} for lines in ranks]
    assert [add([state[n] for state in states]) for n in range(1, ITERATIONS + 1)] == expected


def test_zero_redundancy_steps_count_once(tmp_path: Path) -> None:
    """Its ``step`` calls that of the optimizer of the local shard: one step, of replicated parameters."""

    def body(rank: int) -> None:
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dist.init_process_group("gloo", rank=rank, world_size=WORLD)
        model = nn.parallel.DistributedDataParallel(net())
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
        for _ in range(ITERATIONS):
            optimizer.zero_grad()
            model(torch.ones(2, 5)).square().mean().backward()
            optimizer.step()
        dist.destroy_process_group()

    ranks = jobs.fork(tmp_path, body, WORLD)
    weights = [[(line["n"], line["weights"]) for line in jobs.of(lines, "state")] for lines in ranks]
    assert weights[0] == weights[1]
    assert len({digest_ for _, digest_ in weights[0]}) == ITERATIONS + 1
    ends = [jobs.of(lines, "state")[-1]["optimizer"] for lines in ranks]
    assert all({"exp_avg", "exp_avg_sq"} <= set(end) for end in ends), ends
    assert ends[0]["exp_avg"] != ends[1]["exp_avg"]
    for lines in ranks:
        assert jobs.of(lines, "owner")[0]["sharded"] is False
        assert len(jobs.of(lines, "step")) == ITERATIONS
        assert jobs.of(lines, "joined")[0]["world"] == WORLD
