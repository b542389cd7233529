"""Carries out a schedule over torch point-to-point: receives posted before sends, every Work waited for, every chunk timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ..model import schedule as model
from . import record, share


class Exchange:
    """One algorithm on one rank. The scratch buffer is kept between calls; results are bit-exact for a given world.

    ``chunks`` None: nothing is recorded. A record is written by the receiver, so every transfer counts once.
    """

    def __init__(self, schedule: model.Schedule, parts: int, chunks: record.Chunks | None = None) -> None:
        self._schedule, self._parts, self._chunks = schedule, parts, chunks
        self._scratch = torch.empty(0)

    def run(self, flat: torch.Tensor, *, step: int, op: int, first: Callable[[], None] = lambda: None) -> None:
        """Exchange the one-dimensional ``flat`` in place. ``first`` is called after the first step of the schedule."""
        cuts = share.bounds(flat.numel(), self._parts)
        for index, one in enumerate(self._schedule):
            self._step(one, index, flat, cuts, step, op)
            if index == 0:
                first()

    def _step(
        self, one: model.Step, index: int, flat: torch.Tensor, cuts: tuple[tuple[int, int], ...], step: int, op: int
    ) -> None:
        one = _filled(one, cuts)
        targets = self._targets(one, flat, cuts)
        start = time.monotonic()
        receiving, sending = _post(one, targets, [flat[slice(*cuts[send.chunk])] for send in one.sends])
        ends = []
        for work in receiving:
            work.wait()
            ends.append(time.monotonic())
        for work in sending:
            work.wait()
        if self._chunks and flat.is_cuda:
            torch.cuda.synchronize()
            ends = [time.monotonic()] * len(one.recvs)
        for recv, target in zip(one.recvs, targets, strict=True):
            if recv.reduce:
                flat[slice(*cuts[recv.chunk])] += target
        if self._chunks:
            for recv, target, end in zip(one.recvs, targets, ends, strict=True):
                size = target.numel() * target.element_size()
                self._chunks.add(step, op, index, recv.peer, recv.chunk, size, start, end)

    def _targets(self, one: model.Step, flat: torch.Tensor, cuts: tuple[tuple[int, int], ...]) -> list[torch.Tensor]:
        """Where each receive goes: straight into its chunk, or into scratch if it is to be added."""
        sizes = [cuts[recv.chunk][1] - cuts[recv.chunk][0] if recv.reduce else 0 for recv in one.recvs]
        self._fit(sum(sizes), flat)
        offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        return [
            self._scratch[offset : offset + size] if recv.reduce else flat[slice(*cuts[recv.chunk])]
            for recv, offset, size in zip(one.recvs, offsets, sizes, strict=True)
        ]

    def _fit(self, size: int, like: torch.Tensor) -> None:
        scratch = self._scratch
        if scratch.numel() < size or (scratch.dtype, scratch.device) != (like.dtype, like.device):
            self._scratch = torch.empty(size, dtype=like.dtype, device=like.device)


def _filled(one: model.Step, cuts: tuple[tuple[int, int], ...]) -> model.Step:
    """The step without transfers of empty chunks (buffers shorter than the world); both ends leave out the same ones."""
    return model.Step(
        sends=tuple(send for send in one.sends if cuts[send.chunk][0] < cuts[send.chunk][1]),
        recvs=tuple(recv for recv in one.recvs if cuts[recv.chunk][0] < cuts[recv.chunk][1]),
    )


def _post(one: model.Step, targets: list[torch.Tensor], sources: list[torch.Tensor]) -> tuple[list[Any], list[Any]]:
    """Works of the receives and of the sends. NCCL must see what progresses together in one batch; gloo wants receives first."""
    if dist.get_backend() == "nccl":
        ops = [dist.P2POp(dist.irecv, into, recv.peer) for into, recv in zip(targets, one.recvs, strict=True)]
        ops += [dist.P2POp(dist.isend, data, send.peer) for data, send in zip(sources, one.sends, strict=True)]
        return dist.batch_isend_irecv(ops) if ops else [], []
    receiving = [dist.irecv(into, recv.peer) for into, recv in zip(targets, one.recvs, strict=True)]
    return receiving, [dist.isend(data, send.peer) for data, send in zip(sources, one.sends, strict=True)]
