"""The collectives of a training step: by a chosen algorithm or the backend's own, counted, with every transfer recorded."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ...model import algorithm as model
from ..runtime import even_shares, recorder
from . import schedule_runner

Passed = Callable[[], None]
#: Operator of torch's c10d -> operation, and which of its arguments has the size S of that operation.
KNOWN: Mapping[str, tuple[str, int]] = {
    "_allgather_base_": ("all-gather", 0),
    "_reduce_scatter_base_": ("reduce-scatter", 1),
    "allreduce_": ("all-reduce", 0),
    "alltoall_base_": ("all-to-all", 1),
    "broadcast_": ("broadcast", 0),
}


class Communicator:
    """Runs collectives. ``counted``: operation -> [calls, bytes] of the current step; bytes as the size S of nccl-tests (the
    whole buffer, or the total of the blocks of all ranks)."""

    def __init__(self, rank: int, world: int, chunks: recorder.Chunks | None) -> None:
        self._rank, self._world, self._chunks = rank, world, chunks
        self._chosen: dict[str, model.Chosen] = {}
        self._exchanges: dict[tuple[str, str, int], schedule_runner.Exchange] = {}
        self._step, self._op = 0, 0
        self.counted: dict[str, list[int]] = {}

    def begin(self, step: int) -> None:
        """Begin ``step``: from now on, calls are recorded for it."""
        self._step, self._op, self.counted = step, 0, {}

    def all_reduce(self, flat: torch.Tensor, algorithm: str, first: Passed = lambda: None) -> None:
        """Sum the one-dimensional ``flat`` over all ranks, in place. ``first`` is called after the first exchange of chunks."""
        self.count("all-reduce", flat)
        if algorithm == model.LIBRARY:
            self._library(flat, first)
        else:
            parts = schedule_runner.cut(flat, self._load(algorithm).chunks("all-reduce", self._world))
            self._run("all-reduce", algorithm, parts, first)

    def broadcast(self, flat: torch.Tensor, algorithm: str, first: Passed = lambda: None) -> None:
        """Give every rank the one-dimensional ``flat`` of rank 0, in place."""
        self.count("broadcast", flat)
        if algorithm == model.LIBRARY:
            dist.broadcast(flat, 0)
            first()
        else:
            parts = schedule_runner.cut(flat, self._load(algorithm).chunks("broadcast", self._world))
            self._run("broadcast", algorithm, parts, first)

    def blocks(
        self, operation: str, blocks: Sequence[torch.Tensor], algorithm: str, first: Passed = lambda: None
    ) -> None:
        """``scatter``: rank r gets block r of rank 0's ``blocks``; ``gather``: rank 0 gets the block of every rank; in place."""
        self.count(operation, *blocks)
        self._run(operation, algorithm, blocks, first)

    def all_gather(self, blocks: Sequence[torch.Tensor], algorithm: str, first: Passed = lambda: None) -> None:
        """Give all ranks every rank's block of the one-dimensional ``blocks`` (sizes may differ), in place."""
        self.count("all-gather", *blocks)
        if algorithm == model.LIBRARY:
            for source, block in enumerate(blocks):  # the backend's all-gather needs blocks of one size
                dist.broadcast(block, source)
            first()
        else:
            self._run("all-gather", algorithm, blocks, first)

    def all_to_all(
        self, sent: Sequence[torch.Tensor], got: Sequence[torch.Tensor], algorithm: str, first: Passed = lambda: None
    ) -> None:
        """Send ``sent[r]`` to rank r and receive ``got[r]`` from it; one-dimensional, sizes may differ."""
        self.count("all-to-all", *sent)
        if algorithm == model.LIBRARY:
            out, into = torch.cat(list(sent)), torch.empty(sum(part.numel() for part in got), dtype=got[0].dtype)
            sizes = [part.numel() for part in got], [part.numel() for part in sent]
            dist.all_to_all_single(into, out, *sizes)
            for target, part in zip(got, torch.split(into, sizes[0]), strict=True):
                target.copy_(part)
            first()
        else:
            self._run("all-to-all", algorithm, [*sent, *got], first)

    def send(self, tensor: torch.Tensor, peer: int) -> Any:
        """Start to send; wait() of the handle completes it."""
        self.count("send-recv", tensor)
        return dist.isend(tensor, peer)

    def receive(self, into: torch.Tensor, peer: int) -> torch.Tensor:
        dist.recv(into, peer)
        return into

    def _run(self, operation: str, algorithm: str, parts: Sequence[torch.Tensor], first: Passed) -> None:
        key = operation, algorithm, len(parts)
        if key not in self._exchanges:
            schedule = self._load(algorithm).schedule(operation, self._rank, self._world)
            self._exchanges[key] = schedule_runner.Exchange(schedule, chunks=self._chunks)
        self._exchanges[key].run(parts, step=self._step, op=self._op, first=first)
        self._op += 1

    def _load(self, algorithm: str) -> model.Chosen:
        if algorithm not in self._chosen:
            package, (name, _) = __name__.split(".")[0], model.parse(algorithm)
            module = importlib.import_module(f"{package}.algorithms.{name.replace('-', '_')}")
            self._chosen[algorithm] = model.choose(algorithm, module)
        return self._chosen[algorithm]

    def _library(self, flat: torch.Tensor, first: Passed) -> None:
        """Run the backend's all-reduce in two calls, so that ``first`` is called in the middle of it."""
        cut = even_shares.bounds(flat.numel(), max(self._world, 2))[0][1]
        dist.all_reduce(flat[:cut])
        if flat.is_cuda:  # the first call is only queued on a GPU
            torch.cuda.synchronize()
        first()
        dist.all_reduce(flat[cut:])

    def count(self, operation: str, *tensors: torch.Tensor) -> None:
        counts = self.counted.setdefault(operation, [0, 0])
        counts[0] += 1
        counts[1] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts into ``comm`` the collectives that torch calls within this context. ``pass_phase`` is called after each."""

    def __init__(self, comm: Communicator, pass_phase: Callable[[], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._comm, self.pass_phase = comm, pass_phase

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        namespace, _, name = str(function).partition(".")
        if namespace == "c10d" and (known := KNOWN.get(name.partition(".")[0])):
            operation, position = known
            argument = args[position]
            tensors = [argument] if isinstance(argument, torch.Tensor) else list(argument)
            self._comm.count(operation, *tensors)
            self.pass_phase()
        return result
