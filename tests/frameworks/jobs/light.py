"""Lightning: ``ModelCheckpoint(save_last=True)``, ``trainer.fit(ckpt_path="last")``."""

import argparse
import os
import sys
import time

import lightning
import notice
import torch
import truth
from lightning.pytorch.callbacks import ModelCheckpoint
from tiny import Data, Net

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--precision", default="32-true")
parser.add_argument("--dropout", type=float, default=0.0)
parser.add_argument("--stateful", action="store_true")
parser.add_argument("--evaluate", type=int, default=0)
parser.add_argument("--ema", action="store_true")
parser.add_argument("--average", action="store_true", help="an average of the weights in the module itself")
parser.add_argument("--scaler", action="store_true")
parser.add_argument("--compile", default="", metavar="BACKEND")
parser.add_argument("--preempt", action="store_true", help="save once more after SIGTERM")
parser.add_argument("--no-shuffle", action="store_true")
options = parser.parse_args()


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net(options.dropout)
        self.average = None
        if options.average:
            self.average_anew()

    def average_anew(self):
        mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.95)
        self.average = torch.optim.swa_utils.AveragedModel(self.net, multi_avg_fn=mean).requires_grad_(False)

    def on_train_start(self):
        if options.preempt:
            notice.expect()
        if options.broken == "average":
            self.average_anew()

    def training_step(self, batch, _):
        time.sleep(0.01)
        self.x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(self.x), y)
        self.loss = loss.item()
        return loss

    def validation_step(self, batch, _):
        self.log("val", torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 40))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def optimizer_step(self, *arguments, **options_of_step):
        super().optimizer_step(*arguments, **options_of_step)
        if self.average and options.broken != "late":
            self.average.update_parameters(self.net)

    def on_load_checkpoint(self, checkpoint):
        if options.broken == "ema":
            checkpoint["state_dict"] = checkpoint.pop("current_model_state")
            self.load_state_dict(checkpoint["state_dict"])
        if options.broken == "scaler":
            checkpoint.pop("MixedPrecision")
        if options.broken == "optimizer":
            for state in checkpoint["optimizer_states"]:
                state["state"] = {}
        if options.broken == "scheduler":
            checkpoint["lr_schedulers"] = [
                dict(state, last_epoch=0, _step_count=1) for state in checkpoint["lr_schedulers"]
            ]

    def on_train_batch_end(self, *_):
        optimizers = [getattr(optimizer, "optimizer", optimizer) for optimizer in self.trainer.optimizers]
        if self.average and options.broken == "late":  # the callback that saves was called before
            self.average.update_parameters(self.net)
        copy = self.average.parameters() if self.average else None
        for callback in callbacks:
            if options.ema and callback is callbacks[-1]:
                copy = callback._average_model.parameters()
        scale = self.trainer.precision_plugin.scaler.get_scale() if options.scaler else None
        if (self.trainer.global_step, options.accumulate) != (getattr(self, "last", 0), 1):
            truth.log(
                self.trainer.global_step,
                model=self,
                optimizers=optimizers,
                loss=self.loss,
                batch=self.x,
                copy=copy,
                scaler=scale,
            )
        self.last = self.trainer.global_step


class Preempted(lightning.Callback):
    """After ``ModelCheckpoint``, at whose moment it saves."""

    def on_train_batch_end(self, trainer, *_):
        if notice.came():
            trainer.save_checkpoint("out/last.ckpt")
            if notice.is_mine():
                sys.exit()


lightning.seed_everything(1)
loaders = torch.utils.data.DataLoader
if options.stateful:
    from torchdata.stateful_dataloader import StatefulDataLoader as loaders
callbacks = [ModelCheckpoint("out", every_n_train_steps=8, save_last=True, save_top_k=1, filename="{step}")]
if options.ema:
    from lightning.pytorch.callbacks import EMAWeightAveraging

    callbacks.append(EMAWeightAveraging(decay=0.9))
if options.preempt:
    callbacks.append(Preempted())
precision = {"precision": options.precision}
if options.scaler:
    from lightning.pytorch.plugins import MixedPrecision

    scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=5)
    precision = {"plugins": MixedPrecision("16-mixed", "cpu", scaler)}
local, world = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["WORLD_SIZE"])
trainer = lightning.Trainer(
    accelerator="cpu", devices=local, num_nodes=world // local, strategy="ddp", max_steps=60, **precision,
    accumulate_grad_batches=options.accumulate, callbacks=callbacks, logger=False, enable_progress_bar=False,
    enable_model_summary=False, val_check_interval=options.evaluate or None,
)  # fmt: skip
module = Module()
if options.compile:
    module.net.compile(backend=options.compile)
last = "last" if os.path.exists("out/last.ckpt") else None
if options.broken == "weights-only" and last:
    module.load_state_dict(torch.load("out/last.ckpt", weights_only=False)["state_dict"])
    last = None
if options.broken == "scratch":
    last = None
validation = torch.utils.data.DataLoader(Data(64), 16) if options.evaluate else None
trainer.fit(
    module, loaders(Data(), 16, shuffle=not (options.no_shuffle or options.stateful)), validation, ckpt_path=last
)
