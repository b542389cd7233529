"""The collectives of a training step: by an algorithm of algorithms/ or the backend's own, counted, every transfer recorded."""

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
    """``counted``: what the current step has moved: operation -> [calls, bytes], bytes being the size S of the operation
    as nccl-tests define it (the whole buffer; for blocks of all ranks their total)."""

    def __init__(self, rank: int, world: int, chunks: recorder.Chunks | None) -> None:
        self._rank, self._world, self._chunks = rank, world, chunks
        self._chosen: dict[str, model.Chosen] = {}
        self._exchanges: dict[tuple[str, str, int], schedule_runner.Exchange] = {}
        self._step, self._op = 0, 0
        self.counted: dict[str, list[int]] = {}

    def begin(self, step: int) -> None:
        """From now on everything belongs to ``step``."""
        self._step, self._op, self.counted = step, 0, {}

    def all_reduce(self, flat: torch.Tensor, algorithm: str, first: Passed = lambda: None) -> None:
        """Sum the one-dimensional ``flat`` over all ranks, in place. ``first`` is called after the first exchange of chunks."""
        self.count("all-reduce", flat)
        if algorithm == model.LIBRARY:
            self._library(flat, first)
        else:
            parts = schedule_runner.cut(flat, self._load(algorithm).chunks("all-reduce", self._world))
            self._carry_out("all-reduce", algorithm, parts, first)

    def broadcast(self, flat: torch.Tensor, algorithm: str, first: Passed = lambda: None) -> None:
        """Give every rank rank 0's one-dimensional ``flat``, in place."""
        self.count("broadcast", flat)
        if algorithm == model.LIBRARY:
            dist.broadcast(flat, 0)
            first()
        else:
            parts = schedule_runner.cut(flat, self._load(algorithm).chunks("broadcast", self._world))
            self._carry_out("broadcast", algorithm, parts, first)

    def blocks(
        self, operation: str, blocks: Sequence[torch.Tensor], algorithm: str, first: Passed = lambda: None
    ) -> None:
        """``scatter``: rank r gets block r of rank 0's ``blocks``; ``gather``: rank 0 gets every rank's own; in place."""
        self.count(operation, *blocks)
        self._carry_out(operation, algorithm, blocks, first)

    def all_gather(self, blocks: Sequence[torch.Tensor], algorithm: str, first: Passed = lambda: None) -> None:
        """Every rank's own of the one-dimensional ``blocks`` (one for each rank, sizes may differ) reaches all, in place."""
        self.count("all-gather", *blocks)
        if algorithm == model.LIBRARY:
            for source, block in enumerate(blocks):  # the library's own wants blocks of one size
                dist.broadcast(block, source)
            first()
        else:
            self._carry_out("all-gather", algorithm, blocks, first)

    def all_to_all(
        self, sent: Sequence[torch.Tensor], got: Sequence[torch.Tensor], algorithm: str, first: Passed = lambda: None
    ) -> None:
        """``sent[r]`` goes to rank r, ``got[r]`` comes from it; one-dimensional, sizes may differ."""
        self.count("all-to-all", *sent)
        if algorithm == model.LIBRARY:
            out, into = torch.cat(list(sent)), torch.empty(sum(one.numel() for one in got), dtype=got[0].dtype)
            sizes = [one.numel() for one in got], [one.numel() for one in sent]
            dist.all_to_all_single(into, out, *sizes)
            for one, part in zip(got, torch.split(into, sizes[0]), strict=True):
                one.copy_(part)
            first()
        else:
            self._carry_out("all-to-all", algorithm, [*sent, *got], first)

    def send(self, tensor: torch.Tensor, peer: int) -> Any:
        """Begin to send; the handle's wait() ends it."""
        self.count("send-recv", tensor)
        return dist.isend(tensor, peer)

    def receive(self, into: torch.Tensor, peer: int) -> torch.Tensor:
        """What ``peer`` sends."""
        dist.recv(into, peer)
        return into

    def _carry_out(self, operation: str, algorithm: str, parts: Sequence[torch.Tensor], first: Passed) -> None:
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
        """The backend's own all-reduce, in two calls so that there is a point inside of it."""
        cut = even_shares.bounds(flat.numel(), max(self._world, 2))[0][1]
        dist.all_reduce(flat[:cut])
        if flat.is_cuda:  # it is only queued there; the point between is one when it is done
            torch.cuda.synchronize()
        first()
        dist.all_reduce(flat[cut:])

    def count(self, operation: str, *tensors: torch.Tensor) -> None:
        """One call of ``operation``, with what it moves."""
        found = self.counted.setdefault(operation, [0, 0])
        found[0] += 1
        found[1] += sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every collective is counted into ``comm``. ``passed`` is called after the first one."""

    def __init__(self, comm: Communicator, passed: Callable[[], None]) -> None:
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
