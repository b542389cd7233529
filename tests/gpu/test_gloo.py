"""Two ranks on one GPU, which NCCL refuses: gloo with CUDA tensors, alone and under DDP."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import ranks

pytestmark = pytest.mark.gpu
COLLECTIVES = """
dist.init_process_group("gloo")
world = dist.get_world_size()
def own():
    return torch.full((1 << 16,), float(RANK + 1), device=DEVICE)
summed, copied = own(), own()
dist.all_reduce(summed)
dist.broadcast(copied, 0)
gathered = [torch.empty_like(copied) for _ in range(world)]
dist.all_gather(gathered, own())
wait()
values = {"sum": summed, "copy": copied, **{f"gathered {rank}": tensor for rank, tensor in enumerate(gathered)}}
report(**{name: [float(tensor.min()), float(tensor.max()), tensor.device.type] for name, tensor in values.items()})
dist.destroy_process_group()
"""
DDP = """
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(64, 8).to(DEVICE))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    optimizer.zero_grad()
    model(torch.full((4, 64), 1.0 + RANK + step, device=DEVICE)).square().mean().backward()
    optimizer.step()
wait()
del model
dist.destroy_process_group()
"""


def test_collectives_of_tensors_on_the_device(tmp_path: Path) -> None:
    for process in ranks.run(tmp_path, COLLECTIVES, world=2, backend="gloo"):
        measured = ranks.values(process)
        assert {value[2] for value in measured.values()} == {"cpu" if "cpu" in measured["sum"] else "cuda"}
        assert {name: value[:2] for name, value in measured.items()} == {
            "sum": [3.0, 3.0], "copy": [1.0, 1.0], "gathered 0": [1.0, 1.0], "gathered 1": [2.0, 2.0],
        }  # fmt: skip


def test_replicas_have_the_same_digests_after_every_step(tmp_path: Path) -> None:
    first, second = ranks.run(tmp_path, DDP, world=2, backend="gloo")
    weights = [[line["weights"] for line in process.of("state")] for process in (first, second)]
    assert weights[0] == weights[1]
    assert len(set(weights[0])) == 5, "the initial state, and that after each of four steps"
    assert [line["n"] for line in first.of("step")] == [1, 2, 3, 4]
