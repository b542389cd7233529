"""Measures where the time of a step goes: waiting for data, forward and backward, collectives. What is not measured is absent.

Forward and backward: from the return of the DataLoader to that of the last backward pass, without collectives that Python calls.
It includes what DDP reduces meanwhile; DDP measures that itself, at some steps (line ``ddp``).
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import importlib_bootstrap, imports, record, steps

#: Collectives and transfers of torch.distributed whose calls are timed. DDP's own are made in C++ and are not among them.
COLLECTIVES = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "recv", "reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send",
)  # fmt: skip


class TimeSplit:
    """Seconds of the step that is under way, by their kind, and what its collectives moved."""

    def __init__(self) -> None:
        self.data_s: float | None = None
        self.comm_s = 0.0
        self.calls: dict[str, list[int]] = {}
        self._is_inside = False
        #: Since when the script computes on a batch, and its collectives until then; None before a batch was fetched.
        self._computes_since: tuple[float, float] | None = None
        self.compute_s: float | None = None

    def add_data(self, seconds: float) -> None:
        """A batch was fetched; forward and backward passes on it begin."""
        self.data_s = (self.data_s or 0.0) + seconds
        self._computes_since = (time.monotonic(), self.comm_s)

    def is_computing(self) -> bool:
        """Does the script compute on a batch?"""
        return self._computes_since is not None

    def end_backward(self) -> None:
        """A backward pass has returned."""
        if self._computes_since is None:
            return
        (begin, before), now = self._computes_since, time.monotonic()
        self.compute_s = (self.compute_s or 0.0) + max(0.0, now - begin - (self.comm_s - before))
        self._computes_since = (now, self.comm_s)

    def begin_call(self) -> float | None:
        """A collective begins: its time; None for one that another collective calls, and which is part of that one."""
        if self._is_inside:
            return None
        self._is_inside = True
        return time.monotonic()

    def end_call(self, name: str, begin: float, size: int) -> None:
        """A collective has returned."""
        self._is_inside = False
        self.comm_s += time.monotonic() - begin
        entry = self.calls.setdefault(name, [0, 0])
        entry[0] += 1
        entry[1] += size

    def take(self) -> dict[str, float | list[list[str | int]]]:
        """The fields of the step that has just ended."""
        fields: dict[str, float | list[list[str | int]]] = {}
        if self.data_s is not None:
            fields["data_s"] = round(self.data_s, 6)
            self.data_s = 0.0
        if self.compute_s is not None:
            fields["compute_s"] = round(self.compute_s, 6)
        self.compute_s = self._computes_since = None
        if self.calls:
            fields["comm_s"] = round(self.comm_s, 6)
            fields["collectives"] = [[name, *counts] for name, counts in self.calls.items()]
        self.comm_s, self.calls = 0.0, {}
        return fields


def _size(args: Any) -> int:
    """Bytes of the first tensor, or list of tensors, of a call."""
    tensors = args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
    return sum(int(item.numel()) * int(item.element_size()) for item in tensors if hasattr(item, "element_size"))


split = TimeSplit()
_note_error = record.guarded("steps")(steps.note_error)


def watch() -> None:
    """Measure the time of steps."""
    steps.measure("times", split.take)
    imports.when_imported("torch.distributed.distributed_c10d", _watch_collectives)


def end_backward() -> None:
    """A backward pass has returned. On a GPU it has been issued only."""
    if split.is_computing() and not sys.modules["torch"].cuda.is_initialized():
        split.end_backward()


@record.guarded("times")
def _watch_collectives(c10d: Any) -> None:
    distributed: Any = importlib.import_module("torch.distributed")
    for name in COLLECTIVES:
        original = getattr(c10d, name, None)
        if original is None:
            continue
        timed = _timed(name, original)
        for module in (c10d, distributed):
            if getattr(module, name, None) is original:
                setattr(module, name, timed)


def _timed(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[float, int] | None:
        started = None if steps.is_traced() else split.begin_call()
        return None if started is None else (started, _size(args))

    def finish(call: tuple[float, int] | None, result: Any, error: BaseException | None) -> None:
        if call is not None:
            split.end_call(name, *call)
            if error is not None:
                _note_error(name, error)

    return importlib_bootstrap.observe(original, begin, finish)


#: Field -> DDP's average over the iterations that it has timed, in nanoseconds.
_TIMES = {
    "forward_s": "avg_forward_compute_time",
    "backward_s": "avg_backward_compute_time",
    "comm_s": "avg_backward_comm_time",
    "overlap_s": "avg_backward_compute_comm_overlap_time",
}


def read_ddp_timers(modules: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """The fields of a ``ddp`` line of each module that has timed an iteration; ``iteration``: the last one that it has timed."""
    for module in modules:
        if not hasattr(module, "_get_ddp_logging_data"):
            continue
        data = module._get_ddp_logging_data()
        times = {name: int(data[key]) / 1e9 for name, key in _TIMES.items() if data.get(key)}
        if times:
            sizes = str(data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes") or "")
            buckets = [int(size) for size in sizes.replace(",", " ").split()]
            yield {**times, "buckets": buckets, "iteration": data.get("iteration")}
