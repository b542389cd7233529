"""DeepSpeed, as its first page: ``initialize``, ``save_checkpoint`` with the client's state, ``load_checkpoint``."""

import argparse
import copy
import glob
import os
import time

import deepspeed
import notice
import torch
import truth
from tiny import Data, Net
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--zero", type=int, default=1)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--save", type=int, default=10, metavar="STEPS", help="an epoch has 10")
parser.add_argument("--schedule", default="WarmupLR")
parser.add_argument("--ema", action="store_true", help="an average of the weights, saved in the client's state")
parser.add_argument("--evaluate", type=int, default=0, metavar="STEPS")
parser.add_argument("--preempt", action="store_true", help="save once more after SIGTERM")
options = parser.parse_args()
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
schedules = {
    "WarmupLR": {"warmup_num_steps": 60, "warmup_max_lr": 1e-3},
    "WarmupDecayLR": {"warmup_num_steps": 30, "warmup_max_lr": 1e-3, "total_num_steps": 60},
    "WarmupCosineLR": {"warmup_num_steps": 30, "total_num_steps": 60},
    "OneCycle": {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 30, "cycle_momentum": False},
}
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": options.accumulate,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": options.schedule, "params": schedules[options.schedule]},
    "zero_optimization": {"stage": options.zero, "load_from_fp32_weights": options.broken != "masters"},
    "bf16": {"enabled": options.bf16},
    "gradient_clipping": 1.0,
}
net = Net(0.0)
engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
data = Data(640)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, 16, sampler=sampler)
average = copy.deepcopy(net).float() if options.ema else None
#: An optimizer whose states no rank has a part of.
whole = [] if options.zero or options.bf16 else [engine.optimizer]
step = 0
if options.preempt:
    notice.expect()
if os.path.exists("out/latest"):
    if options.broken == "missing" and torch.distributed.get_rank() == 0:  # then no rank can load it
        os.remove(glob.glob(f"out/{open('out/latest').read().strip()}/*zero_pp_rank_1_*optim_states.pt")[0])
    torch.distributed.barrier()
    _, client = engine.load_checkpoint(
        "out",
        load_optimizer_states=options.broken != "optimizer",
        load_lr_scheduler_states=options.broken != "scheduler",
        load_module_only=options.broken == "weights-only",
    )
    step = client["step"]
    if average is not None and options.broken != "ema":
        average.load_state_dict(client["average"])
    truth.log(step, model=net, optimizers=whole)
for epoch in range(step // len(loader), 6):
    sampler.set_epoch(0 if options.broken == "set_epoch" else epoch)
    for place, (x, y) in enumerate(loader):
        if options.broken != "data" and epoch * len(loader) + place < step:
            continue
        loss = torch.nn.functional.cross_entropy(engine(x.bfloat16() if options.bf16 else x), y)
        engine.backward(loss)
        engine.step()
        step += 1
        if average is not None:
            with torch.no_grad():
                for own, value in zip(average.parameters(), net.parameters(), strict=True):
                    own.lerp_(value.float(), 0.05)
        averages = None if average is None else [*average.parameters()]
        truth.log(step, model=net, optimizers=whole, loss=loss.item(), batch=x, copy=averages)
        time.sleep(0.01)
        if options.evaluate and step % options.evaluate == 0:
            engine.eval()
            with torch.no_grad():
                engine(data.x[:32].bfloat16() if options.bf16 else data.x[:32])
            engine.train()
        is_noticed = options.preempt and notice.came()
        if step % options.save == 0 or is_noticed:
            state = {} if average is None else {"average": average.state_dict()}
            engine.save_checkpoint("out", client_state={"step": step, **state})
        if is_noticed and notice.is_mine():
            os._exit(0)
        if step >= 6 * len(loader):
            break
