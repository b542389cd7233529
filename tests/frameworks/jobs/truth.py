"""What is true after each step of a job, written by itself: truth/<rank>.<time>.jsonl. It shares nothing with ccbed."""

import hashlib
import json
import os
import time

import torch

_file = None


def _norms(tensors, full=False):
    """``full``: of all shards, not of this rank's."""
    local = "full_tensor" if full else "to_local"
    values = [getattr(tensor.detach(), local, lambda tensor=tensor: tensor.detach())().double() for tensor in tensors]
    return [sum(float(value.sum()) for value in values), sum(float(value.pow(2).sum()) for value in values)]


def log(step, *, model=None, optimizers=(), loss=None, batch=None, copy=None, scaler=None, full=False):
    """Add a line: the weights of this rank, states and learning rates of optimizers, the loss, the batch, random state, an average, a scale."""
    global _file
    if _file is None:
        os.makedirs("truth", exist_ok=True)
        _file = open(f"truth/{os.environ.get('RANK', '0')}.{time.time_ns()}.jsonl", "a", buffering=1)
    row = {"step": step, "world": int(os.environ.get("WORLD_SIZE", "1"))}
    if model is not None:
        row["weights"] = _norms(model.parameters(), full)
    if optimizers:
        states = [state for optimizer in optimizers for _, state in sorted(enumerate(optimizer.state.values()))]
        row["optimizer"] = _norms(
            (value for state in states for value in state.values() if torch.is_tensor(value)), full
        )
        row["learning rate"] = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    if loss is not None:
        row["loss"] = float(loss)
    if batch is not None:
        row["data position"] = hashlib.sha256(batch.float().numpy().tobytes()).hexdigest()[:12]
    if copy is not None:
        row["copies"] = _norms(copy)
    if scaler is not None:
        row["scaler"] = scaler
    row["RNG"] = hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()[:12]
    _file.write(json.dumps(row) + "\n")
