"""Counts the collectives that a library calls by itself, by what passes torch's dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from . import communicator

#: Operator of torch's c10d -> operation, and which of its arguments has the size S of that operation.
KNOWN: Mapping[str, tuple[str, int]] = {
    "_allgather_base_": ("all-gather", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "allreduce_": ("all-reduce", 0),
    "alltoall_base_": ("all-to-all", 1),
    "broadcast_": ("broadcast", 0),
}


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every collective is counted into ``comm``. ``passed`` is called after the first one."""

    def __init__(self, comm: communicator.Communicator, passed: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._comm, self.passed = comm, passed

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        namespace, _, name = str(function).partition(".")
        if namespace == "c10d" and (known := KNOWN.get(name.partition(".")[0])):
            operation, place = known
            given = args[place]
            tensors = [given] if isinstance(given, torch.Tensor) else list(given)
            self._comm.count(operation, *tensors)
            self.passed()
        return found
