"""One line of advice for a lost part of a training's state, for the framework that the job saves with."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...model import watch
from ...model.run import Run
from ...views import training

#: Part of the state -> what a job that calls torch itself lacks.
TORCH: Mapping[str, str] = {
    "weights": "save model.state_dict(); model.load_state_dict(...) on every rank, into the model that trains, before the first step",
    "buffers": "save model.state_dict(), which has them; model.load_state_dict(...) on every rank, and no forward pass before a step",
    "optimizer": "save optimizer.state_dict(); optimizer.load_state_dict(...) beside model.load_state_dict(...), on every rank",
    "scheduler": "save scheduler.state_dict() after its step(); scheduler.load_state_dict(...) after the optimizer's",
    "scaler": "save scaler.state_dict(); scaler.load_state_dict(...) before the first step",
    "RNG": "save torch.get_rng_state() of each rank (NumPy's too); torch.set_rng_state(...) of its own last before the first step",
    "data position": "save how many batches were used (or the generator that draws them); sampler.set_epoch(epoch), then skip as many",
    "copies of the model": "save ema.state_dict(), or its tensors; ema.load_state_dict(...) before the first step, in place of a copy",
    "accumulated gradients": "save after optimizer.step() and zero_grad(), not between the backward passes of a step",
    "saved state": "load every value that the checkpoint has",
    "other state": "save what the job keeps beside model and optimizer (counters, lists, tensors), and load it before the first step",
}  # fmt: skip
#: Framework -> part of the state -> the advice.
FRAMEWORKS: Mapping[str, Mapping[str, str]] = {
    "transformers": {
        "data position": "Trainer skips the batches that were used: leave ignore_data_skip=False",
        "optimizer": "trainer.train(resume_from_checkpoint=...), without save_only_model=True",
        "RNG": "leave rng_state_*.pth in the checkpoint, one of each rank: save_only_model=False",
    },
    "lightning": {
        "data position": "give the Trainer a stateful loader: torchdata.stateful_dataloader.StatefulDataLoader",
        "optimizer": "trainer.fit(model, ckpt_path=...), without save_weights_only=True",
        "RNG": "Lightning does not save them: a Callback with on_save_checkpoint and on_load_checkpoint, per rank",
    },
    "accelerate": {
        "data position": "accelerator.skip_first_batches(loader, used) for the first epoch after load_state()",
        "scheduler": "give the scheduler to accelerator.prepare() or register_for_checkpointing(), before load_state()",
        "RNG": "accelerator.load_state() last before the first step: it restores random_states_*.pkl of each rank",
    },
    "deepspeed": {
        "optimizer": "engine.load_checkpoint(..., load_optimizer_states=True) on every rank",
        "scheduler": "give the scheduler to deepspeed.initialize(lr_scheduler=...), or save it in client_state",
        "data position": "save the batches used in client_state of engine.save_checkpoint(), and skip them",
        "RNG": "save torch.get_rng_state() of each rank in a file of its own: client_state is written by rank 0",
    },
    "dcp": {
        "optimizer": "get_state_dict(model, optimizer), and set_state_dict(...) after dcp.load()",
        "weights": "set_state_dict(...) or model.load_state_dict(...) after dcp.load()",
    },
}  # fmt: skip
#: Learning rates follow from a scheduler.
_SAME = {"learning rate": "scheduler"}
TORN = "write each checkpoint to another name and os.replace() it at the end; at a start skip what cannot be read"
#: Framework -> the paths that it alone writes.
_PATHS = {
    "accelerate": re.compile(r"(^|/)random_states_\d+\.pkl$"),
    "lightning": re.compile(r"\.ckpt$"),
    "transformers": re.compile(r"(^|/)checkpoint-\d+/(optimizer\.pt|rng_state[^/]*\.pth|scheduler\.pt)$"),
}


def of(run: Run, part: str) -> str:
    """The advice for a part; empty for one of which there is none."""
    part = _SAME.get(part, part)
    return FRAMEWORKS.get(framework(tuple(run.files.watch())), {}).get(part) or TORCH.get(part, "")


def to_know(run: Run) -> str:
    """Return what makes a part of the state known that is not."""
    if run.twin is None:
        return "run it with --reference: an undisturbed run shows what it should be"
    lines = training.lineage_of(run)
    is_due = all(item.step is not None for item in lines.resumptions) and not training.redone(lines)
    return "let the fault act some steps after a save (--at step=N): steps that are done again show it" * is_due


def framework(files: tuple[watch.WatchFile, ...]) -> str:
    """Return what the job saves with; empty for torch itself."""
    saves = [line for file in files for line in file.of(watch.Save)]
    apis = {save.api.partition("-")[0] for save in saves}
    if own := apis & {"deepspeed", "dcp"}:
        return max(own)
    return next((name for name, path in _PATHS.items() if any(path.search(save.path) for save in saves)), "")
