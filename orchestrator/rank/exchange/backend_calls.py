"""The backend's own collectives over the buffer of a case, blocking or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from . import case_layout

REDUCE = {
    "sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a call needs. ``ranks``: the group's, as global ranks; ``me`` and ``root``: places in it."""

    flat: torch.Tensor
    layout: case_layout.Layout
    ranks: Sequence[int]
    me: int
    root: int
    operator: Any
    group: dist.ProcessGroup | None

    @property
    def whole(self) -> torch.Tensor:
        """All blocks, or the one buffer."""
        return self.flat[: self.layout.parts[-1][1]]

    @property
    def own(self) -> torch.Tensor:
        return self.flat[slice(*self.layout.own)]

    @property
    def blocks(self) -> list[torch.Tensor]:
        return [self.flat[start:stop] for start, stop in self.layout.parts]

    @property
    def source(self) -> int:
        """The root as a global rank."""
        return self.ranks[self.root]


def operator(name: str) -> Any:
    """torch's name of a reduction."""
    return getattr(dist.ReduceOp, REDUCE[name])


def call(operation: str, one: Call, *, asynchronous: bool) -> Callable[[], None]:
    """Begin the operation; what waits for its end. A blocking one has ended already."""
    if operation == "send-recv":
        works = _neighbours(one)
    else:
        works = [_CALLS[operation](one, asynchronous)]
    if not asynchronous:
        _wait(works)
        return lambda: None
    return lambda: _wait(works)


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _neighbours(one: Call) -> list[Any]:
    """The receive is posted before the send. NCCL wants both in one batch."""
    (start, middle), (_, stop) = one.layout.parts
    out, into = one.flat[start:middle], one.flat[middle:stop]
    right, left = one.ranks[(one.me + 1) % len(one.ranks)], one.ranks[one.me - 1]
    if one.flat.is_cuda:
        pair = [dist.P2POp(dist.irecv, into, left, one.group), dist.P2POp(dist.isend, out, right, one.group)]
        return list(dist.batch_isend_irecv(pair))
    return [dist.irecv(into, left, one.group), dist.isend(out, right, one.group)]


def _all_reduce(one: Call, later: bool) -> Any:
    return dist.all_reduce(one.whole, one.operator, one.group, async_op=later)


def _all_gather(one: Call, later: bool) -> Any:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
    return gather(one.whole, one.own, group=one.group, async_op=later)


def _reduce_scatter(one: Call, later: bool) -> Any:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(one.own, one.whole, op=one.operator, group=one.group, async_op=later)


def _broadcast(one: Call, later: bool) -> Any:
    return dist.broadcast(one.whole, one.source, one.group, async_op=later)


def _reduce(one: Call, later: bool) -> Any:
    return dist.reduce(one.whole, one.source, one.operator, one.group, async_op=later)


def _gather(one: Call, later: bool) -> Any:
    parts = one.blocks if one.me == one.root else None
    return dist.gather(one.own, parts, one.source, one.group, async_op=later)


def _scatter(one: Call, later: bool) -> Any:
    parts = one.blocks if one.me == one.root else None
    return dist.scatter(one.own, parts, one.source, one.group, async_op=later)


def _all_to_all(one: Call, later: bool) -> Any:
    world = len(one.ranks)
    cuts, middle = one.layout.parts, one.layout.parts[world][0]
    into = [stop - start for start, stop in cuts[world : 2 * world]]
    out = [stop - start for start, stop in cuts[:world]]
    return dist.all_to_all_single(
        one.flat[middle : middle + sum(into)], one.flat[:middle], into, out, group=one.group, async_op=later
    )


def _barrier(one: Call, later: bool) -> Any:
    return dist.barrier(one.group, async_op=later)


_CALLS: Mapping[str, Callable[[Call, bool], Any]] = {
    "all-reduce": _all_reduce,
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "gather": _gather,
    "scatter": _scatter,
    "all-to-all": _all_to_all,
    "barrier": _barrier,
}
