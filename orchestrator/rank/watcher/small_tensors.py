"""The digest of many small tensors at once: they are copied one after the other and multiplied as one.

The sum is the one of ``digest.py``. There a tensor costs some 60 microseconds however small it is, and models have hundreds
of biases and norms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import digest

#: Elements of a tensor that is small, and of all small tensors together: 8 bytes of multipliers for each.
SMALL, TOGETHER = 16384, 1 << 19


class SmallTensors:
    """Named tensors in the memory of this process, of one type of elements."""

    def __init__(self, items: Sequence[tuple[str, Any]]) -> None:
        """``items``: (name, tensor); all of the same type, each of at most ``SMALL`` elements."""
        import torch

        self._tensors = [item for _, item in items]
        self._layout = [(item.dtype, item.shape) for item in self._tensors]
        sizes = [int(item.numel()) for item in self._tensors]
        self._copy = torch.empty(sum(sizes), dtype=self._tensors[0].dtype, device="cpu")
        parts = self._copy.split(sizes)  # type: ignore[no-untyped-call]
        self._targets = [part.view(item.shape) for part, item in zip(parts, self._tensors)]
        self._multipliers = torch.cat([digest.multipliers(name, size) for (name, _), size in zip(items, sizes)])
        self.numel = sum(sizes)

    def digest(self) -> int | None:
        """The sum over the tensors as they are now; None where one of them has changed its type, its shape or its memory."""
        import torch

        if not all(is_small(item) for item in self._tensors):
            return None
        if self._layout != [(item.dtype, item.shape) for item in self._tensors]:
            return None
        torch._foreach_copy_(self._targets, self._tensors)
        return digest.sum_of_products(self._copy, self._multipliers)


def is_small(item: Any) -> bool:
    """Is this a plain tensor of few elements in the memory of this process?"""
    import torch

    return (
        type(item) in (torch.Tensor, torch.nn.Parameter)
        and item.device.type == "cpu"
        and item.layout is torch.strided
        and 0 < item.numel() <= SMALL
        and not (item.is_complex() or item.is_quantized)
        and item.untyped_storage().size() > 0
    )


def group(items: Sequence[tuple[str, Any]]) -> list[SmallTensors]:
    """Small tensors by their type."""
    by_type: dict[Any, list[tuple[str, Any]]] = {}
    for name, item in items:
        by_type.setdefault(item.dtype, []).append((name, item))
    return [SmallTensors(members) for members in by_type.values()]
