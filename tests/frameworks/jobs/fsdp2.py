"""FSDP2 and torch.distributed.checkpoint, with the state of the loader: ``get_state_dict``, ``async_save``."""

import argparse
import copy
import os
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import truth
from tiny import Data, Net
from torch.distributed.checkpoint.state_dict import get_state_dict, set_model_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--sync", action="store_true")
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--stateful", action="store_true", help="the loader of torchdata, which saves its own position")
options = parser.parse_args()
dist.init_process_group("cpu:gloo")
torch.manual_seed(0)
rank = dist.get_rank()
net = Net()
policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if options.bf16 else {}
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
for module in (net.a, net.b, net.c, net):
    fully_shard(module, mesh=mesh, **policy)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 60))
average = {name: value.detach().clone() for name, value in net.state_dict().items()} if options.ema else {}
sampler = DistributedSampler(Data(), seed=2)
if options.stateful:
    from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader
loader = DataLoader(Data(), 16, sampler=sampler)


class App(Stateful):
    step = 0
    random = None
    is_loading = False

    def state_dict(self):
        model, optim = get_state_dict(net, optimizer)
        if self.is_loading and options.broken == "optimizer":
            optim = copy.deepcopy(optim)  # dcp.load fills the tensors that it gets
        state = {
            "model": model,
            "optim": optim,
            "schedule": schedule.state_dict(),
            "step": self.step,
            **({"ema": average} if average else {}),
        }
        position = {f"loader{rank}": loader.state_dict()} if options.stateful else {}
        return state | position | {f"random{rank}": torch.get_rng_state()}

    def load_state_dict(self, state):
        if options.broken == "optimizer":
            set_model_state_dict(net, state["model"])
        else:
            set_state_dict(net, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
        if options.broken != "scheduler":
            schedule.load_state_dict(state["schedule"])
        self.step = state["step"]
        if options.broken != "data" and options.stateful:
            loader.load_state_dict(state[f"loader{rank}"])
        self.random = None if options.broken == "rng" else state[f"random{rank}"].clone()
        for name in average:
            average[name].copy_(state["ema"][name])


app = App()
os.makedirs("out", exist_ok=True)
whole = sorted(int(name) for name in os.listdir("out") if os.path.exists(f"out/{name}/.metadata"))
if whole:
    app.is_loading = True
    dcp.load({"app": app}, checkpoint_id=f"out/{whole[-1]}")
    app.is_loading = False
group, flush = dist.new_group(backend="gloo"), None
epoch = app.step // len(loader)
while app.step < 40:
    sampler.set_epoch(epoch)
    if (
        app.random is not None and app.step % len(loader) == 0
    ):  # it was saved before the next epoch's loader drew from it
        torch.set_rng_state(app.random)
        app.random = None
    for place, (x, y) in enumerate(loader):
        if not options.stateful and options.broken != "data" and epoch * len(loader) + place < app.step:
            continue
        if app.random is not None:  # it was saved after the loader of this epoch drew from it
            torch.set_rng_state(app.random)
            app.random = None
        loss = torch.nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        app.step += 1
        for name, value in net.state_dict().items() if average else ():
            average[name].lerp_(value.detach(), 0.05)
        averages = average.values() if average else None
        truth.log(app.step, model=net, optimizers=[optimizer], loss=loss.item(), batch=x, copy=averages)
        time.sleep(0.02)
        if app.step % 8 == 0:
            if flush:
                flush.result()
            if options.sync:
                dcp.save({"app": app}, checkpoint_id=f"out/{app.step}")
            else:
                flush = dcp.async_save({"app": app}, checkpoint_id=f"out/{app.step}", process_group=group)
        if app.step >= 40:
            break
    epoch += 1
if flush:
    flush.result()
dist.destroy_process_group()
