"""What faults do inside of a script's process: flip bits, run out of memory, damage checkpoints; and who can notice it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from .stage import Played, Stage

#: Trains a small model once per cell on two ranks, replicated or sharded; rank 1 is disturbed after two of five steps.
CELLS = """
import gc, hashlib, json, os, sys
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, out = dist.get_rank(), os.environ["CCBED_OUT"]

def train(sharded, act):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    wrapped = fully_shard(model) if sharded else DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1, momentum=0.9)
    for step in range(5):
        if step == 2 and act and rank == 1:
            with open(f"{out}/orders-r1.jsonl", "a") as file:
                file.write(json.dumps({"act": act}) + "\\n")
        optimizer.zero_grad()
        wrapped(torch.ones(1, 8) * (1 + rank + step)).square().mean().backward()
        optimizer.step()
    full = [(p.full_tensor() if sharded else p).detach() for p in model.parameters()]
    return hashlib.sha256(b"".join(p.numpy().tobytes() for p in full)).hexdigest()[:8]

cells = {}
for sharded in (False, True):
    for act in [None, *json.loads(sys.argv[1])]:
        name = f"{'sharded' if sharded else 'replicated'} {act['part'] + ' ' + act['when'] if act else 'undisturbed'}"
        cells[name] = train(sharded, act)
        gc.collect()
print("cells", json.dumps(cells))
dist.destroy_process_group()
"""
PLACES = [("parameter", "after"), ("optimizer", "after"), ("gradient", "after"), ("gradient", "before")]

SINGLE = """
import json, os, sys, torch
out = os.environ["CCBED_OUT"]
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(1, 5):
    if step == 3:
        with open(f"{out}/orders-r0.jsonl", "w") as file:
            file.write(json.dumps({"act": json.loads(sys.argv[1])}) + "\\n")
    model(torch.ones(1, 4)).sum().backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        print("caught", step, error)
    if step < 3 and "save" in sys.argv:
        torch.save(model.state_dict(), f"{out}/{step}.pt")
print("trained", step)
"""


def answers(played: Played, rank: int) -> list[Mapping[str, Any]]:
    return [json.loads(line) for line in (played.out / f"n{rank}/acts-r{rank}.jsonl").read_text().splitlines()]


def act(stage: Stage, order: Mapping[str, Any], *more: str) -> Played:
    played = stage.script(SINGLE, world=1, args=[json.dumps(order), *more])
    assert played.codes == {0: 0}, played.log(0)
    assert "trained 4" in played.log(0)
    return played


def test_a_flipped_bit_is_noticed_by_replicas_only_where_they_differ(stage: Stage) -> None:
    """The others are shown by the undisturbed twin alone: the flip reaches every copy, or there is only one copy."""
    acts = [{"do": "flip", "part": of, "when": when, "bit": 22} for of, when in PLACES]
    played = stage.script(CELLS, world=2, args=[json.dumps(acts)])
    assert played.codes == {0: 0, 1: 0}, played.log(1)
    cells = [json.loads(played.log(rank).partition("cells ")[2].splitlines()[0]) for rank in (0, 1)]

    def shown_by(cell: str, kind: str) -> str:
        values = [cells[rank][f"{kind} {cell}"] for rank in (0, 1)]
        if values[0] != values[1]:
            return "replicas"
        return "nothing" if values[0] == cells[0][f"{kind} undisturbed"] else "twin"

    assert {f"{of} {when}": shown_by(f"{of} {when}", "replicated") for of, when in PLACES} == {
        "parameter after": "replicas", "optimizer after": "replicas", "gradient after": "replicas",
        "gradient before": "twin",
    }  # fmt: skip
    assert {f"{of} {when}": shown_by(f"{of} {when}", "sharded") for of, when in PLACES} == {
        "parameter after": "twin", "optimizer after": "twin", "gradient after": "twin",
        "gradient before": "nothing",
    }  # fmt: skip
    done = answers(played, 1)
    assert len(done) == 8
    assert [item.get("problem") for item in done[:7]] == [None] * 7
    assert "sharded parameter" in done[7]["problem"], "what cannot be done is named, and the fault is not proved"
    assert all(item["before"] != item["after"] for item in done[:7])


def test_a_rank_that_runs_out_of_memory_sees_the_error_of_its_allocator_and_may_go_on(stage: Stage) -> None:
    played = act(stage, {"do": "run-out-of-memory"})
    (done,) = answers(played, 0)
    assert "can't allocate memory" in done["error"]
    assert "caught 3" in played.log(0)


@pytest.mark.parametrize("how", ["truncated", "bit-flipped", "missing"])
def test_the_checkpoint_that_was_committed_last_is_damaged(stage: Stage, how: str) -> None:
    played = act(stage, {"do": "tear", "how": how}, "save")
    (done,) = answers(played, 0)
    newest, older = played.out / "n0/2.pt", played.out / "n0/1.pt"
    assert done["path"] == str(newest)
    size = older.stat().st_size
    assert torch.load(older)
    assert newest.exists() == (how != "missing")
    if how == "bit-flipped":
        assert newest.stat().st_size == done["size_bytes"] == size
    if how == "truncated":
        assert newest.stat().st_size == size // 2


def test_what_a_rank_cannot_do_is_named(stage: Stage) -> None:
    played = act(stage, {"do": "tear", "how": "missing"})
    assert "has committed no checkpoint" in answers(played, 0)[0]["problem"]
