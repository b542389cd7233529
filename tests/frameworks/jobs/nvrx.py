"""NVIDIA's resiliency extension: the manager of local checkpoints, with the state of a rank that it does not need a GPU for."""

import argparse
import time

import torch
import torch.distributed as dist
import truth
from nvidia_resiliency_ext.checkpointing.local.base_state_dict import TensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from tiny import Data, Net
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
options = parser.parse_args()


class State(BasicTensorAwareStateDict):
    """Tensors of the CPU: the class that it extends accepts those of a GPU only."""

    def __init__(self, state_dict):
        TensorAwareStateDict.__init__(self)
        self.state_dict, self._is_hollow = state_dict, False

    def restore_tensor_device(self, non_blocking=True):
        pass


dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(Net())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 60))
data = Data()
sampler = DistributedSampler(data, seed=2)
loader = DataLoader(data, 16, sampler=sampler)
manager = LocalCheckpointManager("out")
step, random = 0, None
if manager.find_latest() >= 0:
    state = manager.load()[0].state_dict
    model.load_state_dict(state["model"])
    if options.broken != "optimizer":
        optimizer.load_state_dict(state["optimizer"])
    if options.broken != "scheduler":
        schedule.load_state_dict(state["schedule"])
    step, random = state["step"], state["random"]
while step < 40:
    sampler.set_epoch(step // len(loader))
    start = step % len(loader)
    for place, (x, y) in enumerate(loader):
        if options.broken != "data" and place < start:
            continue
        if random is not None:
            torch.set_rng_state(random)
            random = None
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        step += 1
        truth.log(step, model=model, optimizers=[optimizer], loss=loss.item(), batch=x)
        time.sleep(0.02)
        if step % 8 == 0:
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "schedule": schedule.state_dict(),
            }
            manager.save(State({**state, "step": step, "random": torch.get_rng_state()}), step)
        if step >= 40:
            break
dist.destroy_process_group()
