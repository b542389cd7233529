"""The inputs of the model that is trained, where no DataLoader gives batches: data that a script draws, reads or computes itself.

They are seen where a wrapper of torch for several ranks is called, outermost, with gradients. Inputs on a device are not read:
that would wait for its work.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from .. import importlib_bootstrap, imports, record, steps, tracing
from ..budget import budget
from . import batches

#: Module of torch -> its class that wraps a model.
WRAPPERS = {
    "torch.nn.parallel.distributed": "DistributedDataParallel",
    "torch.distributed.fsdp.fully_sharded_data_parallel": "FullyShardedDataParallel",
}


class Inputs:
    """Hashes of the inputs since the last step."""

    def __init__(self) -> None:
        self._hashes: list[str | None] = []
        self._depth, self._is_used = 0, False
        #: ``callback()`` before the outermost forward pass with gradients.
        self.observers: list[Callable[[], None]] = []

    def enter(self) -> bool:
        """A wrapper is called; whether it is to be observed. Those inside of it get what the outer one computes."""
        self._depth += 1
        return self._depth == 1 and (bool(self.observers) or not batches.batches.is_used())

    def begin(self, value: Any) -> None:
        """A wrapper that is observed is called with ``value``."""
        import torch

        if not torch.is_grad_enabled():
            return
        for callback in self.observers:
            callback()
        if batches.batches.is_used():
            return
        if budget.is_moment_due(steps.completed()) and not any(
            _is_on_device(item) for _, item in batches.leaves(value, "")
        ):
            begin = time.thread_time()
            if not self._is_used:
                self._is_used = True
                steps.measure("inputs", self.take)
            self._hashes.append(batches.fingerprint(value))
            budget.add_cost("batch", time.thread_time() - begin)

    def leave(self) -> None:
        self._depth -= 1

    def take(self) -> dict[str, list[str | None]] | None:
        """The field of the step that has just ended."""
        hashes, self._hashes = self._hashes, []
        return {"inputs": hashes} if hashes else None


def _is_on_device(item: Any) -> bool:
    return hasattr(item, "device") and getattr(item.device, "type", "cpu") != "cpu"


inputs = Inputs()
_begin_call = record.guarded("inputs")(inputs.begin)


def _begin(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    is_observed = not tracing.is_traced()
    if is_observed and inputs.enter():
        _begin_call((args[1:], kwargs))
    return is_observed


def _end(is_observed: bool, result: Any, error: BaseException | None) -> None:
    if is_observed:
        inputs.leave()


def watch() -> None:
    """Observe the wrappers once they are imported."""
    for module, name in WRAPPERS.items():
        imports.when_imported(module, functools.partial(_wrap, name))


def _wrap(name: str, module: Any) -> None:
    wrapper = getattr(module, name, None)
    if wrapper is not None:
        wrapper.forward = importlib_bootstrap.observe(wrapper.forward, _begin, _end)
