"""Accelerate: ``save_state``, ``load_state`` and ``skip_first_batches``."""

import argparse
import os
import sys
import time

import notice
import torch
import truth
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration, set_seed
from tiny import Data, Net

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--precision", default="no")
parser.add_argument("--stateful", action="store_true")
parser.add_argument("--ema", action="store_true")
parser.add_argument("--evaluate", action="store_true")
parser.add_argument("--shadow", action="store_true", help="an average as that of diffusers, saved by a hook")
parser.add_argument("--compile", default="", metavar="BACKEND")
parser.add_argument("--preempt", action="store_true", help="save once more after SIGTERM")
options = parser.parse_args()


class Shadow:
    """An average of weights that is no module."""

    def __init__(self, weights):
        self.step, self.shadow_params = 0, [weight.clone().detach() for weight in weights]

    @torch.no_grad()
    def update_parameters(self, model):
        self.step += 1
        decay = min(0.99, (1 + self.step) / (10 + self.step))
        for shadow, weight in zip(self.shadow_params, model.parameters(), strict=True):
            shadow.sub_((1 - decay) * (shadow - weight))

    def parameters(self):
        return self.shadow_params

    def save(self, models, weights, folder):
        if accelerator.is_main_process:
            torch.save({"optimization_step": self.step, "shadow_params": self.shadow_params}, f"{folder}/ema.pt")

    def load(self, models, folder):
        if options.broken != "shadow":
            state = torch.load(f"{folder}/ema.pt")
            self.step, self.shadow_params = state["optimization_step"], state["shadow_params"]


accelerator = Accelerator(
    cpu=True, gradient_accumulation_steps=options.accumulate, mixed_precision=options.precision,
    project_config=ProjectConfiguration(project_dir="out", total_limit=2),
    dataloader_config=DataLoaderConfiguration(use_stateful_dataloader=options.stateful),
)  # fmt: skip
set_seed(42)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(Data(640), 16, shuffle=True)
held_out = torch.utils.data.DataLoader(Data(64), 16)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=400)
if options.compile:
    model.compile(backend=options.compile)
model, optimizer, loader, held_out, schedule = accelerator.prepare(model, optimizer, loader, held_out, schedule)
average = None
if options.ema:
    mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    average = torch.optim.swa_utils.AveragedModel(accelerator.unwrap_model(model), multi_avg_fn=mean)
    if options.broken != "ema":
        accelerator.register_for_checkpointing(average)
if options.shadow:
    average = Shadow(accelerator.unwrap_model(model).parameters())
    accelerator.register_save_state_pre_hook(average.save)
    accelerator.register_load_state_pre_hook(average.load)
done = 0
os.makedirs("out", exist_ok=True)
folders = [name for name in os.listdir("out") if os.path.exists(f"out/{name}/DONE")]
if folders:
    newest = max(folders, key=lambda name: int(name.split("_")[1]))
    if options.broken == "weights-only":
        from safetensors.torch import load_file

        accelerator.unwrap_model(model).load_state_dict(load_file(f"out/{newest}/model.safetensors"))
    else:
        accelerator.load_state(f"out/{newest}")
    done = int(newest.split("_")[1])
    if options.shadow and options.broken == "shadow":
        average = Shadow(accelerator.unwrap_model(model).parameters())
    if options.broken == "optimizer":
        optimizer.optimizer.state.clear()
    if options.broken == "rng":
        set_seed(42)
if options.preempt:
    notice.expect()
begun, skipped = divmod(done, len(loader))
for epoch in range(begun, 6):
    model.train()
    if options.broken != "set_epoch":
        loader.set_epoch(epoch)
    active = loader
    if epoch == begun and skipped and options.broken != "data" and not options.stateful:
        active = accelerator.skip_first_batches(loader, skipped)
    for x, y in active:
        with accelerator.accumulate(model):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if average and accelerator.sync_gradients:
                average.update_parameters(accelerator.unwrap_model(model))
        done += 1
        copy = average.parameters() if average else None
        truth.log(done, model=model, optimizers=[optimizer.optimizer], loss=loss.item(), batch=x, copy=copy)
        time.sleep(0.01)
        is_noticed = options.preempt and notice.came()
        if done % 8 == 0 or is_noticed:
            accelerator.save_state(f"out/step_{done}")
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                open(f"out/step_{done}/DONE", "w").close()
        if is_noticed and notice.is_mine():
            sys.exit()
    if options.evaluate:
        model.eval()
        with torch.no_grad():
            for x, _ in held_out:
                accelerator.gather_for_metrics(model(x))
accelerator.end_training()
