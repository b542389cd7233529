"""Runs the schedule of an algorithm by torch point-to-point calls: posts receives early and times every message."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any

import torch
import torch.distributed as dist

from ...model import schedule as model
from ..runtime import even_shares, recorder
from . import receive_schedule, step_tensors

#: Combines a received chunk (second) into the own chunk (first), in place.
OPERATORS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "sum": lambda own, got: own.add_(got),
    "prod": lambda own, got: own.mul_(got),
    "min": lambda own, got: torch.minimum(own, got, out=own),
    "max": lambda own, got: torch.maximum(own, got, out=own),
    "band": lambda own, got: own.bitwise_and_(got),
    "bor": lambda own, got: own.bitwise_or_(got),
    "bxor": lambda own, got: own.bitwise_xor_(got),
}


class Exchange:
    """One algorithm on one rank of a group. Scratch is reused between calls; results are bit-exact for a given world.

    ``ranks``: global ranks of the group (None: those of ``group``, or all). ``chunks``: None records nothing. The receiver records
    a message, from its entry into the step of the schedule until the message has arrived; the peer is the sender's global rank.
    Tokens are not recorded.
    """

    def __init__(
        self,
        schedule: model.Schedule,
        *,
        ranks: Sequence[int] | None = None,
        group: dist.ProcessGroup | None = None,
        operator: str = "sum",
        chunks: recorder.Chunks | None = None,
    ) -> None:
        if ranks is None:
            ranks = dist.get_process_group_ranks(group) if group else range(dist.get_world_size())
        self._schedule, self._ranks, self._group, self._chunks = schedule, ranks, group, chunks
        self._operator = OPERATORS[operator]
        self._cached: tuple[Any, list[step_tensors.Row]] = (None, [])

    def run(
        self, parts: Sequence[torch.Tensor], *, step: int, op: int, first: Callable[[], None] = lambda: None
    ) -> None:
        """Exchange in place; ``parts[c]`` is the one-dimensional view of chunk c. Waits for everything started before.

        ``first`` is called after the first step of the schedule.
        """
        _background().settle()
        self._run_steps(parts, _device(parts, self._group), step, op, first)

    def start(self, parts: Sequence[torch.Tensor], *, step: int, op: int) -> Handle:
        """Run in the background, in the order of the calls. The caller must not access the parts before wait()."""
        device = _device(parts, self._group)
        return _background().begin(lambda: self._run_steps(parts, device, step, op, lambda: None))

    def _run_steps(
        self, parts: Sequence[torch.Tensor], device: torch.device, step: int, op: int, first: Callable[[], None]
    ) -> None:
        steps = self._rows(parts, device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # the current device belongs to the thread
        call = _batched if dist.get_backend(self._group) == "nccl" else _early
        start = time.monotonic()
        for index, ends in enumerate(call(steps, self._group, self._operator)):
            if self._chunks:
                for arrival, end in zip(steps[index].arrivals, ends, strict=True):
                    if not arrival.token:
                        self._chunks.add(step, op, index, arrival.peer, arrival.chunk, arrival.size, start, end)
            if index == 0:
                first()
            start = time.monotonic()

    def _rows(self, parts: Sequence[torch.Tensor], device: torch.device) -> list[step_tensors.Row]:
        key = tuple((part.data_ptr(), part.numel(), part.dtype) for part in parts)
        if self._cached[0] != key:
            self._cached = key, step_tensors.rows(self._schedule, parts, self._ranks, device)
        return self._cached[1]


class Handle:
    """An exchange that runs in the background."""

    def __init__(self, future: futures.Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        """Wait for its end. Raises its exception."""
        self._future.result()


def cut(flat: torch.Tensor, parts: int) -> list[torch.Tensor]:
    """The one-dimensional ``flat`` as ``parts`` views, cut by quotient and remainder."""
    return [flat[start:stop] for start, stop in even_shares.bounds(flat.numel(), parts)]


class _Background:
    """One thread that runs exchanges in order."""

    def __init__(self) -> None:
        self._thread = futures.ThreadPoolExecutor(1, thread_name_prefix="exchange")
        self._last: futures.Future[None] | None = None

    def begin(self, call: Callable[[], None]) -> Handle:
        self._last = self._thread.submit(call)
        return Handle(self._last)

    def settle(self) -> None:
        """Wait until nothing runs; the handle has the result."""
        if self._last is not None:
            futures.wait([self._last])
            self._last = None


@functools.cache
def _background() -> _Background:
    """One per process: two threads would mix up the order of messages between two ranks."""
    return _Background()


def _device(parts: Sequence[torch.Tensor], group: dist.ProcessGroup | None) -> torch.device:
    if parts:
        return parts[0].device
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    )


def _early(steps: list[step_tensors.Row], group: dist.ProcessGroup | None, operator: Any) -> Iterator[list[float]]:
    """gloo: post receives as early as the plan allows, always before the sends of the step. Yields the ends of the receives."""
    works: dict[receive_schedule.ReceiveId, Any] = {}
    for row in steps:
        for target, source in row.copies:
            target.copy_(source)
        for post in row.posts:
            if post.into is not None:
                works[post.receive_id] = dist.irecv(post.into, post.peer, group=group)
        for message, pieces in row.packs:
            torch.cat(pieces, out=message)
        sending = _sender().submit(_send_in_turn, row, group).result if row.in_turn else _send_at_once(row, group)
        ends = []
        for arrival in row.arrivals:
            if arrival.into is not None:
                works.pop(arrival.receive_id).wait()
            ends.append(time.monotonic())
        sending()
        _take_effect(row, operator)
        yield ends


def _send_at_once(row: step_tensors.Row, group: dist.ProcessGroup | None) -> Callable[[], None]:
    """Return what waits until the messages of the step have been sent."""
    works = [dist.isend(message, peer, group=group) for message, peer in row.sends]

    def wait() -> None:
        for work in works:
            _wait(work)

    return wait


def _send_in_turn(row: step_tensors.Row, group: dist.ProcessGroup | None) -> None:
    for message, peer in row.sends:
        _wait(dist.isend(message, peer, group=group))


@functools.cache
def _sender() -> futures.ThreadPoolExecutor:
    """The thread that sends in turn, while the rank receives."""
    return futures.ThreadPoolExecutor(1, thread_name_prefix="sender")


def _batched(steps: list[step_tensors.Row], group: dist.ProcessGroup | None, operator: Any) -> Iterator[list[float]]:
    """NCCL: one batch per step; the clock is read when the device has finished."""
    for row in steps:
        for target, source in row.copies:
            target.copy_(source)
        for message, pieces in row.packs:
            torch.cat(pieces, out=message)
        receives = [(arrival.into, arrival.peer) for arrival in row.arrivals if arrival.into is not None]
        ops = [dist.P2POp(dist.irecv, into, peer, group) for into, peer in receives]
        ops += [dist.P2POp(dist.isend, message, peer, group) for message, peer in row.sends]
        for work in dist.batch_isend_irecv(ops) if ops else ():
            work.wait()
        _take_effect(row, operator)
        torch.cuda.synchronize()
        yield [time.monotonic()] * len(row.arrivals)


def _take_effect(row: step_tensors.Row, operator: Any) -> None:
    for target, source in row.unpacks:
        target.copy_(source)
    for own, got in row.reductions:
        operator(own, got)


def _wait(work: Any) -> None:
    if work is not None:
        work.wait()
