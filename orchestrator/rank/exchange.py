"""Carries out a schedule over torch point-to-point: receives posted early, every Work waited for, every chunk timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from ..model import schedule as model
from . import posting, record, share


class Exchange:
    """One algorithm on one rank. The scratch buffer is kept between calls; results are bit-exact for a given world.

    ``chunks`` None: nothing is recorded. A transfer is recorded once, by its receiver: from the moment at which the receiver
    enters the step of the schedule to the moment at which it has the chunk.
    """

    def __init__(self, schedule: model.Schedule, parts: int, chunks: record.Chunks | None = None) -> None:
        self._schedule, self._parts, self._chunks = schedule, parts, chunks
        self._plan = posting.plan(schedule)
        self._scratch = torch.empty(0)

    def run(self, flat: torch.Tensor, *, step: int, op: int, first: Callable[[], None] = lambda: None) -> None:
        """Exchange the one-dimensional ``flat`` in place. ``first`` is called after the first step of the schedule."""
        call = _batched if dist.get_backend() == "nccl" else _early
        targets = self._targets(flat)
        steps = call(self._schedule, self._plan, targets, _Cuts(flat, self._parts))
        start = time.monotonic()
        for index, ends in enumerate(steps):
            if self._chunks:
                for recv, target, end in zip(self._schedule[index].recvs, targets[index], ends, strict=True):
                    size = target.numel() * target.element_size()
                    self._chunks.add(step, op, index, recv.peer, recv.chunk, size, start, end)
            if index == 0:
                first()
            start = time.monotonic()

    def _targets(self, flat: torch.Tensor) -> list[list[torch.Tensor]]:
        """Where each receive goes: straight into its chunk, or into a place of its own in scratch if it is to be added."""
        cuts = _Cuts(flat, self._parts)
        size = sum(cuts.size(recv.chunk) for step in self._schedule for recv in step.recvs if recv.reduce)
        self._fit(size, flat)
        rest, targets = self._scratch, []
        for step in self._schedule:
            row = []
            for recv in step.recvs:
                wanted = cuts.size(recv.chunk)
                row.append(rest[:wanted] if recv.reduce else cuts.part(recv.chunk))
                rest = rest[wanted:] if recv.reduce else rest
            targets.append(row)
        return targets

    def _fit(self, size: int, like: torch.Tensor) -> None:
        scratch = self._scratch
        if scratch.numel() < size or (scratch.dtype, scratch.device) != (like.dtype, like.device):
            self._scratch = torch.empty(size, dtype=like.dtype, device=like.device)


class _Cuts:
    """A buffer cut into chunks by quotient and remainder."""

    def __init__(self, flat: torch.Tensor, parts: int) -> None:
        self._flat, self._bounds = flat, share.bounds(flat.numel(), parts)

    def part(self, chunk: int) -> torch.Tensor:
        return self._flat[slice(*self._bounds[chunk])]

    def size(self, chunk: int) -> int:
        start, stop = self._bounds[chunk]
        return stop - start


def _early(
    schedule: model.Schedule,
    plan: tuple[tuple[posting.Place, ...], ...],
    targets: list[list[torch.Tensor]],
    cuts: _Cuts,
) -> Iterator[list[float]]:
    """gloo: receives posted as early as the plan allows, always before the step's sends. Per step the ends of its receives."""
    works: dict[posting.Place, Any] = {}
    for index, step in enumerate(schedule):
        for place in plan[index]:
            target = targets[place[0]][place[1]]
            works[place] = _receive(target, schedule[place[0]].recvs[place[1]].peer)
        sending = [_send(cuts.part(send.chunk), send.peer) for send in step.sends]
        ends = []
        for number in range(len(step.recvs)):
            _wait(works.pop((index, number)))
            ends.append(time.monotonic())
        for work in sending:
            _wait(work)
        _reduce(step, targets[index], cuts)
        yield ends


def _batched(
    schedule: model.Schedule,
    plan: tuple[tuple[posting.Place, ...], ...],
    targets: list[list[torch.Tensor]],
    cuts: _Cuts,
) -> Iterator[list[float]]:
    """NCCL: what progresses together goes into one batch per step; the clock is read after the device is done."""
    del plan
    for index, step in enumerate(schedule):
        pairs = zip(targets[index], step.recvs, strict=True)
        ops = [dist.P2POp(dist.irecv, into, recv.peer) for into, recv in pairs if into.numel()]
        sources = [(cuts.part(send.chunk), send.peer) for send in step.sends]
        ops += [dist.P2POp(dist.isend, data, peer) for data, peer in sources if data.numel()]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        _reduce(step, targets[index], cuts)
        torch.cuda.synchronize()
        yield [time.monotonic()] * len(step.recvs)


def _reduce(step: model.Step, targets: list[torch.Tensor], cuts: _Cuts) -> None:
    for recv, target in zip(step.recvs, targets, strict=True):
        if recv.reduce:
            cuts.part(recv.chunk).add_(target)


def _receive(into: torch.Tensor, peer: int) -> Any:
    """Empty chunks (buffers shorter than the world) are not transferred; both ends leave out the same ones."""
    return dist.irecv(into, peer) if into.numel() else None


def _send(data: torch.Tensor, peer: int) -> Any:
    return dist.isend(data, peer) if data.numel() else None


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()
