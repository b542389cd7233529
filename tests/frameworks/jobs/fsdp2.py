"""FSDP2 and torch.distributed.checkpoint, with the state of the loader: ``get_state_dict``, ``async_save``."""

import argparse
import copy
import os
import shutil
import sys
import time

import notice
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
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--compile", default="", metavar="BACKEND")
parser.add_argument("--preempt", action="store_true", help="save once more after SIGTERM")
parser.add_argument("--full", action="store_true", help="record the state of all shards, and what was resumed")
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
if options.compile:
    net.compile(backend=options.compile)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5, enabled=options.scaler)
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
            **({"scaler": scaler.state_dict()} if options.scaler else {}),
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
        if options.scaler and options.broken != "scaler":
            scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        if options.broken != "data" and options.stateful:
            loader.load_state_dict(state[f"loader{rank}"])
        self.random = None if options.broken == "rng" else state[f"random{rank}"].clone()
        for name in average:
            average[name].copy_(net.state_dict()[name] if options.broken == "ema" else state["ema"][name])


def record(loss=None, batch=None):
    averages = average.values() if average else None
    scale = scaler.get_scale() if options.scaler else None
    truth.log(
        app.step,
        model=net,
        optimizers=[optimizer],
        loss=loss,
        batch=batch,
        copy=averages,
        scaler=scale,
        full=options.full,
    )


app = App()
os.makedirs("out", exist_ok=True)
whole = sorted(int(name) for name in os.listdir("out") if os.path.exists(f"out/{name}/.metadata"))
if whole and options.broken == "early":
    whole = whole[: max(1, len(whole) - 1)]
dist.barrier()
if whole and rank == 0 and options.broken == "metadata" and not os.path.exists("removed"):
    os.rename(f"out/{whole[-1]}/.metadata", "removed")
if len(whole) > 1 and rank == 0 and options.broken == "shard":
    shutil.copy(f"out/{whole[-2]}/__1_0.distcp", f"out/{whole[-1]}/__1_0.distcp")
dist.barrier()
if whole:
    app.is_loading = True
    dcp.load({"app": app}, checkpoint_id=f"out/{whole[-1]}")
    app.is_loading = False
    if options.full:
        record()
if options.preempt:
    notice.expect()
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
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        optimizer.zero_grad()
        app.step += 1
        for name, value in net.state_dict().items() if average else ():
            average[name].lerp_(value.detach(), 0.05)
        record(loss.item(), x)
        time.sleep(0.02)
        is_noticed = options.preempt and notice.came()
        if app.step % 8 == 0 or is_noticed:
            if flush:
                flush.result()
            if options.sync:
                dcp.save({"app": app}, checkpoint_id=f"out/{app.step}")
            else:
                flush = dcp.async_save({"app": app}, checkpoint_id=f"out/{app.step}", process_group=group)
        if is_noticed and notice.is_mine():
            sys.exit()
        if app.step >= 40:
            break
    epoch += 1
if flush:
    flush.result()
dist.destroy_process_group()
