"""Where the time of a step goes: waiting for data, collectives that Python calls, the rest. What is not measured is absent."""

from __future__ import annotations

import functools
import importlib
import time
from collections.abc import Callable
from typing import Any

from . import imports, record, steps, tracing

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

    def add_data(self, seconds: float) -> None:
        """A batch was fetched."""
        self.data_s = (self.data_s or 0.0) + seconds

    def call(self, name: str, original: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a collective and measure it; those that it calls itself count as part of it."""
        if self._is_inside:
            return original(*args, **kwargs)
        self._is_inside = True
        begin = time.monotonic()
        try:
            return original(*args, **kwargs)
        finally:
            self._is_inside = False
            self.comm_s += time.monotonic() - begin
            entry = self.calls.setdefault(name, [0, 0])
            entry[0] += 1
            entry[1] += _size(args)

    def take(self) -> dict[str, Any]:
        """The fields of the step that has just ended."""
        fields: dict[str, Any] = {}
        if self.data_s is not None:
            fields["data_s"] = round(self.data_s, 6)
            self.data_s = 0.0
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


def watch() -> None:
    """Measure the time of steps."""
    steps.measure(record.guarded("times")(split.take))
    imports.when_imported("torch.distributed.distributed_c10d", _watch_collectives)


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
    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        if tracing.is_traced():
            return original(*args, **kwargs)
        return split.call(name, original, args, kwargs)

    return collective
