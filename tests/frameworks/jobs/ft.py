"""torchft: each rank is a replica group with a Manager; a lighthouse gives the quorum. Checkpoints as its example saves them."""

import argparse
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import truth
from tiny import Data, Net
from torch.utils.data import DataLoader
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--heal", action="store_true", help="replica 0 alone loads a checkpoint, the others heal from it")
options = parser.parse_args()
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
limit = timedelta(seconds=120)
lighthouse = LighthouseServer(bind="[::]:0", min_replicas=world, join_timeout_ms=60000) if rank == 0 else None
address = [lighthouse.address() if lighthouse else None]
dist.broadcast_object_list(address)
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(0)
net = Net(0.0)


def load(state):
    net.load_state_dict(state["model"])
    if options.broken != "optimizer":
        optimizer.load_state_dict(state["optimizer"])
    if options.broken != "scheduler":
        schedule.load_state_dict(state["schedule"])


def save():
    return {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}


manager = Manager(
    pg=ProcessGroupGloo(timeout=limit), min_replica_size=world, load_state_dict=load, state_dict=save, use_async_quorum=False,
    timeout=limit, quorum_timeout=limit, connect_timeout=limit, rank=0, world_size=1, store_addr="127.0.0.1",
    store_port=store.port, lighthouse_addr=address[0], replica_id=f"replica_{rank}", init_sync=False,
)  # fmt: skip
model = DistributedDataParallel(manager, net)
inner = torch.optim.AdamW(net.parameters(), lr=1e-3)
optimizer = Optimizer(manager, inner)
schedule = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: min(1, (step + 1) / 60))
data = Data()
sampler = DistributedSampler(
    data, replica_rank=rank, num_replica_groups=world, group_rank=0, num_replicas=1, shuffle=True
)
loader = DataLoader(data, 16, sampler=sampler)
path = f"out/{rank}.pt"
os.makedirs("out", exist_ok=True)
if os.path.exists(path) and not (options.heal and rank):
    state = torch.load(path, weights_only=False)
    load(state["user"])
    manager.load_state_dict(state["manager"])
optimizer.zero_grad()  # it waits for the quorum, and heals
is_open = True
while manager.current_step() < 40:
    sampler.set_epoch(manager.current_step() // len(loader))
    start = 0 if options.broken == "data" else manager.current_step() % len(loader)
    for place, (x, y) in enumerate(loader):
        if place < start:
            continue
        if not is_open:
            optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        is_open, step = False, manager.current_step()
        truth.log(step, model=net, optimizers=[inner], loss=loss.item(), batch=x)
        time.sleep(0.02)
        if step % 8 == 0:
            torch.save({"user": save(), "manager": manager.state_dict()}, f"{path}.new")
            os.replace(f"{path}.new", path)
        if step >= 40:
            break
dist.barrier()
manager.shutdown(wait=False)
if lighthouse:
    lighthouse.shutdown()
dist.destroy_process_group()
