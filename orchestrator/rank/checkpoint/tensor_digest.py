"""SHA-256 of tensors, modules, optimizers and random states, to prove that two runs are bit-exact."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def tensor(value: torch.Tensor) -> str:
    """SHA-256 of one tensor: dtype, shape and bytes; of a tensor that is spread over ranks, this rank's part."""
    return named([("", value)])


def named(pairs: Iterable[tuple[str, torch.Tensor]]) -> str:
    """One SHA-256 over tensors with their names, in the given order."""
    sha = hashlib.sha256()
    for name, value in pairs:
        own = value.to_local() if hasattr(value, "to_local") else value
        sha.update(f"{name}:{own.dtype}:{tuple(own.shape)};".encode())
        sha.update(raw(own))
    return sha.hexdigest()


def model(module: torch.nn.Module) -> str:
    """One SHA-256 over all parameters and buffers of a module."""
    return named(module.state_dict().items())


def tensors(prefix: str, state: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """``prefix.name`` -> SHA-256 for every tensor of a state dict."""
    return {f"{prefix}.{name}": tensor(value) for name, value in state.items()}


def optimizer(state: Mapping[str, Any]) -> dict[str, str]:
    """``optimizer.<parameter>.<entry>`` -> SHA-256 for an optimizer's state dict; its hyperparameters under ``optimizer.groups``."""
    digests = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            tensorised = value if isinstance(value, torch.Tensor) else torch.tensor(value)
            digests[f"optimizer.{index}.{name}"] = tensor(tensorised)
    groups = json.dumps(state["param_groups"], sort_keys=True, default=repr)
    return {**digests, "optimizer.groups": hashlib.sha256(groups.encode()).hexdigest()}


def raw(value: torch.Tensor) -> Any:
    """The bytes of a tensor as a buffer; without a copy if it is contiguous on the CPU, and without numpy."""
    flat = value.detach().cpu().contiguous()
    size = flat.numel() * flat.element_size()
    if size == 0:
        return b""
    view = (ctypes.c_char * size).from_address(flat.data_ptr())
    view._owner = flat  # type: ignore[attr-defined]  # keeps the memory alive as long as the view
    return view
