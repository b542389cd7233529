"""Checkpoints: what is saved of a gang, gathered on rank 0; and how every rank takes its part of it back."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ..model import gang as gang_model


class CheckpointError(Exception):
    """A checkpoint could not be written or read."""

    kind = "checkpoint"


@dataclass(frozen=True, slots=True)
class Personal:
    """What differs from rank to rank: the random states by name (uint8), and the loss of the last step."""

    states: Mapping[str, torch.Tensor]
    loss: float


def gather(mine: Personal, rank: int, world: int, device: torch.device) -> dict[int, Personal]:
    """Every rank's Personal on rank 0; empty on the others. A collective of all ranks."""
    if world == 1:
        return {0: mine}
    packed = _pack(mine).to(device)
    parts = [torch.empty_like(packed) for _ in range(world)] if rank == 0 else None
    dist.gather(packed, parts, dst=0)
    sizes = {name: state.numel() for name, state in mine.states.items()}
    return {index: _unpack(part.cpu(), sizes) for index, part in enumerate(parts or [])}


def agree(code: int, world: int, device: torch.device) -> int:
    """Rank 0's ``code`` on every rank, so that all leave or all go on. A collective of all ranks."""
    if world == 1:
        return code
    flag = torch.tensor([code], device=device)
    dist.broadcast(flag, 0)
    return int(flag.item())


def encode(
    step: int, epoch: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer, personal: Mapping[int, Personal]
) -> bytes:
    """The content of a ``.pt`` file."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": {rank: dict(one.states) for rank, one in personal.items()},
        "loss": {rank: one.loss for rank, one in personal.items()},
        "step": step,
        "epoch": epoch,
    }
    out = io.BytesIO()
    torch.save(state, out)
    return out.getvalue()


def load(resume: gang_model.Resume) -> dict[str, Any]:
    """The state in a checkpoint: read once, hashed, and decoded from those very bytes. Raises CheckpointError."""
    try:
        data = Path(resume.path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{resume.path}: {error.strerror}") from error
    found = hashlib.sha256(data).hexdigest()
    if found != resume.sha256:
        raise CheckpointError(f"{resume.path}: SHA-256 is {found[:12]}…, chosen was {resume.sha256[:12]}…")
    state: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    if state["step"] != resume.step:
        raise CheckpointError(f"{resume.path}: holds step {state['step']}, chosen was step {resume.step}")
    return state


def _pack(one: Personal) -> torch.Tensor:
    loss = torch.tensor([one.loss], dtype=torch.float64).view(torch.uint8)
    return torch.cat([*one.states.values(), loss])


def _unpack(packed: torch.Tensor, sizes: Mapping[str, int]) -> Personal:
    *states, loss = torch.split(packed, [*sizes.values(), 8])
    named = {name: state.clone() for name, state in zip(sizes, states, strict=True)}
    return Personal(named, float(loss.clone().view(torch.float64).item()))
