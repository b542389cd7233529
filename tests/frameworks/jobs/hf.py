"""Hugging Face's Trainer, resumed as its documentation does: ``resume_from_checkpoint=get_last_checkpoint(…)``."""

import argparse
import os

import notice
import torch
import truth
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--broken", default="")
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--bf16", action="store_true")
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--evaluate", type=int, default=0)
parser.add_argument("--only-model", action="store_true")
parser.add_argument("--dropout", type=float, default=0.1)
parser.add_argument("--warmup", type=int, default=5)
parser.add_argument("--best", action="store_true")
parser.add_argument("--short-workers", action="store_true", help="workers that end with their epoch")
parser.add_argument("--ignore-data-skip", action="store_true")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save", type=int, default=10)
parser.add_argument("--limit", type=int, default=2)
parser.add_argument("--compile", default="", metavar="BACKEND")
parser.add_argument("--preempt", action="store_true", help="save once more after SIGTERM")
options = parser.parse_args()


class Text(torch.utils.data.Dataset):
    def __init__(self, count=400):
        self.x = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(3))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        return {"input_ids": self.x[place], "labels": self.x[place]}


class Record(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, optimizer=None, **_):
        optimizers = [getattr(optimizer, "optimizer", optimizer)]
        truth.log(state.global_step, model=model, optimizers=optimizers, batch=trainer.batch)
        if options.preempt and notice.came():
            control.should_save = control.should_training_stop = True


class Recorded(Trainer):
    def training_step(self, model, inputs, *rest):
        self.batch = inputs["input_ids"]
        return super().training_step(model, inputs, *rest)


set_seed(0)
drop = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), options.dropout)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_layer=2, n_head=2, n_embd=32, **drop))
more = {}
if options.evaluate:
    more |= {"eval_strategy": "steps", "eval_steps": options.evaluate}
if options.best:
    more |= {"load_best_model_at_end": True}
if options.workers:
    more |= {"dataloader_num_workers": options.workers, "dataloader_persistent_workers": not options.short_workers}
if options.compile:
    more |= {"torch_compile": True, "torch_compile_backend": options.compile}
if options.preempt:
    notice.expect()
last = get_last_checkpoint("out") if os.path.isdir("out") else None
size = 2 if options.broken == "batch" and last else 4
arguments = TrainingArguments(
    "out", use_cpu=True, ddp_backend="gloo", max_steps=options.steps, per_device_train_batch_size=size, gradient_accumulation_steps=options.accumulate,
    bf16=options.bf16, save_steps=options.save, save_total_limit=options.limit, logging_steps=10, report_to=[], disable_tqdm=True, dataloader_pin_memory=False,
    seed=0, lr_scheduler_type="cosine", warmup_steps=options.warmup, save_only_model=options.only_model,
    ignore_data_skip=options.ignore_data_skip, learning_rate=1e-3, **more,
)  # fmt: skip
trainer = Recorded(model=model, args=arguments, train_dataset=Text(), eval_dataset=Text(32), callbacks=[Record()])
if options.broken == "optimizer":
    trainer._load_optimizer_and_scheduler = lambda *_: None
if options.broken == "rng":
    trainer._load_rng_state = lambda *_: None
if options.broken == "early" and last:
    steps = sorted(int(name.split("-")[1]) for name in os.listdir("out") if name.startswith("checkpoint-"))
    last = f"out/checkpoint-{steps[-2]}" if len(steps) > 1 else last
if options.broken == "fixed" and last:
    last = "out/checkpoint-10"
if options.broken == "weights-only" and last:
    from safetensors.torch import load_file

    model.load_state_dict(load_file(f"{last}/model.safetensors"), strict=False)
    last = None
if options.broken == "scratch":
    last = None
trainer.train(resume_from_checkpoint=last)
