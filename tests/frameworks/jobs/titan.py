"""torchtitan's components under a loop as its trainer's: containers of optimizers and schedulers, its loader, its checkpoint manager."""

import argparse
import os
import time

import torch
import torch.distributed as dist
import truth
from tiny import Data
from torch import nn
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import IterableDataset
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import ParallelAwareDataloader
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer, ParamGroupConfig

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument(
    "--fused", action="store_true", help="a fused weight is saved as three, as torchtitan's FusedQKVLinear does"
)
parser.add_argument("--groups", action="store_true", help="two kinds of optimizers")
parser.add_argument("--asynchronous", action="store_true")
options = parser.parse_args()
dist.init_process_group("cpu:gloo")
torch.manual_seed(0)
rank, world = dist.get_rank(), dist.get_world_size()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wqkv, self.wo = nn.Linear(64, 192), nn.Linear(64, 64)
        if options.fused:
            self.register_state_dict_post_hook(self.split)
            self.register_load_state_dict_pre_hook(self.merge)

    def forward(self, x):
        q, k, v = self.wqkv(x).chunk(3, -1)
        return self.wo(torch.sigmoid(q * k) * v)

    @staticmethod
    def split(module, state, prefix, metadata):
        for name in ("weight", "bias"):
            whole = state.pop(f"{prefix}wqkv.{name}")
            whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
            for part, value in zip(("wq", "wk", "wv"), whole.chunk(3), strict=True):
                state[f"{prefix}{part}.{name}"] = value.contiguous()

    @staticmethod
    def merge(module, state, prefix, *args):
        for name in ("weight", "bias"):
            whole = torch.cat([state.pop(f"{prefix}{part}.{name}") for part in ("wq", "wk", "wv")])
            own = getattr(module.wqkv, name)
            if hasattr(own, "device_mesh"):
                whole = torch.distributed.tensor.distribute_tensor(whole, own.device_mesh, own.placements)
            state[f"{prefix}wqkv.{name}"] = whole


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.attention, self.leave = nn.Linear(32, 64), Attention(), nn.Linear(64, 8)

    def forward(self, x):
        x = torch.relu(self.enter(x))
        return self.leave(x + self.attention(x))


class Text(IterableDataset, Stateful):
    """The rows of this rank, without end."""

    def __init__(self):
        self.data, self.place = Data(), 0

    def __iter__(self):
        while True:
            place = (self.place * world + rank) % len(self.data)
            self.place += 1
            yield self.data[place]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


class Train(Stateful):
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


model, train = Model(), Train()
mesh = init_device_mesh("cpu", (world,))
for module in (model.enter, model.attention, model.leave, model):
    fully_shard(module, mesh=mesh)
rate = {"lr": 1e-3, "weight_decay": 0.1}
groups = [ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs=rate)]
if options.groups:
    groups.insert(0, ParamGroupConfig(pattern=r"bias$", optimizer_name="Adam", optimizer_kwargs={"lr": 3e-3}))
optimizers = OptimizersContainer.Config(param_groups=groups, implementation="foreach").build(model_parts=[model])
schedules = LRSchedulersContainer.Config(warmup_steps=30).build(optimizers=optimizers, training_steps=60)
loader = ParallelAwareDataloader(Text(), rank, world, batch_size=16)
left_out = {"optimizer": ["optimizer"], "scheduler": ["lr_scheduler"], "data": ["dataloader"]}
manager = CheckpointManager.Config(
    enable=True,
    interval=8,
    keep_latest_k=0,
    last_save_model_only=False,
    async_mode="async" if options.asynchronous else "disabled",
    exclude_from_loading=left_out.get(options.broken, []),
).build(
    dataloader=loader, model_parts=[model], optimizers=optimizers, lr_schedulers=schedules, states={"train_state": train},
    sd_adapter=None, base_folder=os.path.abspath("out"),
)  # fmt: skip
manager.load()
rows = iter(loader)
while train.step < 40:
    x, y = next(rows)
    optimizers.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    manager.maybe_wait_for_staging()
    optimizers.step()
    schedules.step()
    train.step += 1
    truth.log(train.step, model=model, optimizers=list(optimizers), loss=loss.item(), batch=x)
    time.sleep(0.02)
    manager.save(train.step, last_step=train.step == 40)
manager.maybe_wait_for_saving()
manager.close()
dist.destroy_process_group()
