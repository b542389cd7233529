"""Calls the backend's collectives over the buffer of a case, blocking or asynchronous."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...model.frozen import dataclass
from . import case_layout

REDUCE = {
    "sum": "SUM", "prod": "PRODUCT", "min": "MIN", "max": "MAX", "avg": "AVG", "band": "BAND", "bor": "BOR", "bxor": "BXOR",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The arguments of a call. ``ranks``: global ranks of the group; ``me`` and ``root``: group ranks."""

    flat: torch.Tensor
    layout: case_layout.Layout
    ranks: Sequence[int]
    me: int
    root: int
    operator: Any
    group: dist.ProcessGroup | None

    @property
    def whole(self) -> torch.Tensor:
        """All blocks, or the whole buffer."""
        return self.flat[: self.layout.parts[-1][1]]

    @property
    def own(self) -> torch.Tensor:
        return self.flat[slice(*self.layout.own)]

    @property
    def at_root(self) -> list[torch.Tensor] | None:
        """The blocks of all ranks, which only the root has."""
        return [self.flat[start:stop] for start, stop in self.layout.parts] if self.me == self.root else None

    @property
    def source(self) -> int:
        """The root as a global rank."""
        return self.ranks[self.root]


def operator(name: str) -> Any:
    return getattr(dist.ReduceOp, REDUCE[name])


def start(operation: str, call: Call, *, asynchronous: bool) -> Callable[[], None]:
    """Start the operation and return a function that waits for its end. A blocking operation has already ended."""
    if operation == "send-recv":
        works = _neighbours(call)
    else:
        works = [_CALLS[operation](call, asynchronous)]
    if not asynchronous:
        _wait(works)
        return lambda: None
    return lambda: _wait(works)


def _wait(works: Sequence[Any]) -> None:
    for work in works:
        if work is not None:
            work.wait()


def _neighbours(call: Call) -> list[Any]:
    """Send to the right, receive from the left. The receive is posted first; NCCL needs both in one batch."""
    (start, middle), (_, stop) = call.layout.parts
    out, into = call.flat[start:middle], call.flat[middle:stop]
    right, left = call.ranks[(call.me + 1) % len(call.ranks)], call.ranks[call.me - 1]
    if call.flat.is_cuda:
        pair = [dist.P2POp(dist.irecv, into, left, call.group), dist.P2POp(dist.isend, out, right, call.group)]
        return list(dist.batch_isend_irecv(pair))
    return [dist.irecv(into, left, call.group), dist.isend(out, right, call.group)]


def _all_gather(call: Call, asynchronous: bool) -> Any:
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its name before torch 2.13
    return gather(call.whole, call.own, group=call.group, async_op=asynchronous)


def _reduce_scatter(call: Call, asynchronous: bool) -> Any:
    scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    return scatter(call.own, call.whole, op=call.operator, group=call.group, async_op=asynchronous)


def _all_to_all(call: Call, asynchronous: bool) -> Any:
    world = len(call.ranks)
    cuts, middle = call.layout.parts, call.layout.parts[world][0]
    into = [stop - start for start, stop in cuts[world : 2 * world]]
    out = [stop - start for start, stop in cuts[:world]]
    return dist.all_to_all_single(
        call.flat[middle : middle + sum(into)], call.flat[:middle], into, out, group=call.group, async_op=asynchronous
    )


_CALLS: Mapping[str, Callable[[Call, bool], Any]] = {
    "all-reduce": lambda call, later: dist.all_reduce(call.whole, call.operator, call.group, async_op=later),
    "all-gather": _all_gather,
    "reduce-scatter": _reduce_scatter,
    "broadcast": lambda call, later: dist.broadcast(call.whole, call.source, call.group, async_op=later),
    "reduce": lambda call, later: dist.reduce(call.whole, call.source, call.operator, call.group, async_op=later),
    "gather": lambda call, later: dist.gather(call.own, call.at_root, call.source, call.group, async_op=later),
    "scatter": lambda call, later: dist.scatter(call.own, call.at_root, call.source, call.group, async_op=later),
    "all-to-all": _all_to_all,
    "barrier": lambda call, later: dist.barrier(call.group, async_op=later),
}
