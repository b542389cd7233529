"""Checkpoints in a single file: rank 0 gathers and encodes the state of all ranks; every rank loads its part."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...model import gang as gang_model
from ...model.frozen import dataclass
from . import tensor_digest


class CheckpointError(Exception):
    kind = "checkpoint"


class Unwritten(CheckpointError):
    """Its files could not be written; a retry may succeed."""


@dataclass(frozen=True, slots=True)
class Personal:
    """The state that differs from rank to rank: random states by name (uint8), and the loss of the last step."""

    states: Mapping[str, torch.Tensor]
    loss: float

    def tensors(self) -> dict[str, torch.Tensor]:
        """All values as tensors by name; ``of`` is the reverse."""
        return {**self.states, "loss": torch.tensor([self.loss], dtype=torch.float64)}

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Personal:
        states = {name: value for name, value in tensors.items() if name != "loss"}
        return cls(states, float(tensors["loss"].item()))


def gather(personal: Personal, rank: int, world: int, device: torch.device) -> dict[int, Personal]:
    """Every rank's Personal on rank 0; empty on the others. A collective of all ranks."""
    if world == 1:
        return {0: personal}
    packed = _pack(personal).to(device)
    parts = [torch.empty_like(packed) for _ in range(world)] if rank == 0 else None
    dist.gather(packed, parts, dst=0)
    sizes = {name: state.numel() for name, state in personal.states.items()}
    return {index: _unpack(part.cpu(), sizes) for index, part in enumerate(parts or [])}


def agree(code: int, world: int, device: torch.device) -> int:
    """The ``code`` of rank 0 on every rank, so that all stop or all continue. A collective of all ranks."""
    if world == 1:
        return code
    flag = torch.tensor([code], device=device)
    dist.broadcast(flag, 0)
    return int(flag.item())


def state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def shards(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, world: int, device: torch.device
) -> dict[int, dict[str, Any]]:
    """Every rank's state on rank 0; empty on the others. A collective of all ranks; states may differ in size."""
    if world == 1:
        return {0: state(model, optimizer)}
    own = torch.frombuffer(bytearray(saved(state(model, optimizer))), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world)]
    dist.all_gather(sizes, torch.tensor([own.numel()], device=device))
    longest = max(int(size.item()) for size in sizes)
    padded = torch.nn.functional.pad(own, (0, longest - own.numel()))
    parts = [torch.empty_like(padded) for _ in range(world)] if rank == 0 else None
    dist.gather(padded, parts, dst=0)
    whole = [part[: int(size.item())].cpu() for part, size in zip(parts or [], sizes, strict=parts is not None)]
    return {index: _loaded(bytes(tensor_digest.raw(part))) for index, part in enumerate(whole)}


def encode(step: int, epoch: int, state: Mapping[str, Any], personal: Mapping[int, Personal]) -> bytes:
    """The content of a ``.pt`` file. ``state``: of model and optimizer, or the shards of all ranks."""
    return saved({**state, **_stacked([personal[rank] for rank in range(len(personal))]), "step": step, "epoch": epoch})


def personal(content: Mapping[str, Any], rank: int) -> Personal | None:
    """The personal state of ``rank``; None if the checkpoint's world had no such rank."""
    if rank >= len(content["loss"]):
        return None
    states = {name: stacked[rank].clone() for name, stacked in content["rng"].items()}
    return Personal(states, float(content["loss"][rank].item()))


def _stacked(parts: Sequence[Personal]) -> dict[str, Any]:
    """One tensor with a row per rank for each random state, and one for the losses: a load takes 0.1 ms for every tensor."""
    rng = {name: torch.stack([part.states[name] for part in parts]) for name in parts[0].states}
    return {"rng": rng, "loss": torch.tensor([part.loss for part in parts], dtype=torch.float64)}


def load(resume: gang_model.Resume) -> dict[str, Any]:
    """The content of a checkpoint: read once, hashed, and decoded from the same bytes. Raises CheckpointError."""
    try:
        data = Path(resume.path).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{resume.path}: {error.strerror}") from error
    sha256 = hashlib.sha256(data).hexdigest()
    if sha256 != resume.sha256:
        raise CheckpointError(f"{resume.path}: SHA-256 is {sha256[:12]}…, chosen was {resume.sha256[:12]}…")
    content = _loaded(data)
    if content["step"] != resume.step:
        raise CheckpointError(f"{resume.path}: holds step {content['step']}, chosen was step {resume.step}")
    return content


def saved(content: Mapping[str, Any]) -> bytes:
    out = io.BytesIO()
    torch.save(content, out)
    return out.getvalue()


def _loaded(data: bytes) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    return content


def _pack(personal: Personal) -> torch.Tensor:
    loss = torch.tensor([personal.loss], dtype=torch.float64).view(torch.uint8)
    return torch.cat([*personal.states.values(), loss])


def _unpack(packed: torch.Tensor, sizes: Mapping[str, int]) -> Personal:
    *states, loss = torch.split(packed, [*sizes.values(), 8])
    named = {name: state.clone() for name, state in zip(sizes, states, strict=True)}
    return Personal(named, float(loss.clone().view(torch.float64).item()))
