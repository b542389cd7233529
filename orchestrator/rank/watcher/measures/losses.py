"""The loss of this rank: the scalar whose backward pass begins, before a gradient scaler has scaled it."""

from __future__ import annotations

import functools
import importlib
import weakref
from typing import Any

from .. import record, steps

#: Nodes of the first graph that are looked through.
GRAPH = 1000


class Losses:
    """The losses of the backward passes since the last step."""

    def __init__(self) -> None:
        self._values: list[float] = []
        self._passes = 0
        #: Whether the first backward pass changes the type of numbers; None before it.
        self._is_mixed: bool | None = None
        self._is_reported = False
        self._scaled: dict[int, tuple[weakref.ref[Any], float]] = {}

    def add_scaled(self, loss: Any, scaled: Any) -> None:
        """A scaler has scaled ``loss``."""
        if _is_scalar(loss) and _is_scalar(scaled) and loss.device.type == "cpu":
            self._scaled[id(scaled)] = (weakref.ref(scaled), float(loss.detach()))

    def add(self, tensors: Any) -> None:
        """A backward pass begins from ``tensors``. On a GPU reading a loss would wait for all its work: there it is absent."""
        self._passes += 1
        tensor = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if self._is_mixed is None:
            self._is_mixed = _changes_types(getattr(tensor, "grad_fn", None))
        if not _is_scalar(tensor):
            return
        if not tensor.is_cpu:
            record.unknown(
                "loss", f"a loss on a device of type {tensor.device.type} is not read: that would wait for its work"
            )
            return
        if self._scaled:
            reference, value = self._scaled.pop(id(tensor), (None, 0.0))
            if reference is not None and reference() is tensor:
                self._values.append(value)
                return
        self._values.append(tensor.item())

    def take(self) -> dict[str, Any]:
        """The fields of the step that has just ended: the sum over its backward passes, and their number if not 1."""
        values, self._values, passes, self._passes = self._values, [], self._passes, 0
        if self._scaled:
            self._scaled.clear()
        is_news, self._is_reported = bool(self._is_mixed) and not self._is_reported, True
        fields = {**({"passes": passes} if passes > 1 else {}), **({"mixed": True} if is_news else {})}
        return {"loss": float(sum(values)).hex(), **fields} if values else fields


def _changes_types(function: Any) -> bool:
    """Return whether a graph of autograd casts tensors, as under autocast. Its first nodes show it:
    autocast casts the weights of each layer.
    """
    pending, visited = [function], set[Any]()
    while pending and len(visited) < GRAPH:
        node = pending.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        if node.name() == "ToCopyBackward0":
            return True
        pending += [following for following, _ in node.next_functions]
    return False


def _is_scalar(tensor: Any) -> bool:
    return hasattr(tensor, "numel") and tensor.numel() == 1 and tensor.is_floating_point()


losses = Losses()
_add_scaled = record.guarded("loss")(losses.add_scaled)


def watch() -> None:
    """Remember what gradient scalers scale; the backward passes call ``add``."""
    scaler: Any = importlib.import_module("torch.amp.grad_scaler").GradScaler
    original = scaler.scale

    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        scaled = original(self, outputs)
        _add_scaled(outputs, scaled)
        return scaled

    scaler.scale = scale
    steps.measure("loss", losses.take)
