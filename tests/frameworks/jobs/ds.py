"""DeepSpeed, as its first page: ``initialize``, ``save_checkpoint`` with the client's state, ``load_checkpoint``."""

import argparse
import os
import time

import deepspeed
import torch
import truth
from tiny import Data, Net
from torch.utils.data import DataLoader, DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--zero", type=int, default=1)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
options = parser.parse_args()
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
config = {
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": options.accumulate,
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 60, "warmup_max_lr": 1e-3}},
    "zero_optimization": {"stage": options.zero},
    "bf16": {"enabled": options.bf16},
    "gradient_clipping": 1.0,
}
net = Net(0.0)
engine, _, _, _ = deepspeed.initialize(model=net, model_parameters=net.parameters(), config=config)
data = Data(640)
sampler = DistributedSampler(data, seed=1)
loader = DataLoader(data, 16, sampler=sampler)
step = 0
if os.path.exists("out/latest"):
    _, client = engine.load_checkpoint(
        "out",
        load_optimizer_states=options.broken != "optimizer",
        load_lr_scheduler_states=options.broken != "scheduler",
        load_module_only=options.broken == "weights-only",
    )
    step = client["step"]
for epoch in range(step // len(loader), 6):
    sampler.set_epoch(0 if options.broken == "set_epoch" else epoch)
    for place, (x, y) in enumerate(loader):
        if options.broken != "data" and epoch * len(loader) + place < step:
            continue
        loss = torch.nn.functional.cross_entropy(engine(x.bfloat16() if options.bf16 else x), y)
        engine.backward(loss)
        engine.step()
        step += 1
        truth.log(step, model=net, loss=loss.item(), batch=x)
        time.sleep(0.01)
        if step % 10 == 0:
            engine.save_checkpoint("out", client_state={"step": step})
        if step >= 6 * len(loader):
            break
