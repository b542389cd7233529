"""The digests of many small tensors at once: they are copied one after the other and multiplied as one.

The sum is the one of ``digest.py``. There a tensor costs some 20 microseconds however small it is, and models have hundreds
of biases and norms.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

from . import digest

#: Elements of a tensor that is small, and of all small tensors together: 8 bytes of multipliers for each.
SMALL, TOGETHER = 16384, 1 << 19
#: Elements of which the separate sums are computed at once: no more than torch handles without its other threads.
BATCH = digest.SERIAL


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
        self.targets = [part.view(item.shape) for part, item in zip(parts, self._tensors)]
        self._multipliers = torch.cat([digest.multipliers(name, size) for (name, _), size in zip(items, sizes)])
        self.numel = sum(sizes)

    def digest(self) -> int | None:
        """The sum over the tensors as they are now; None where one of them has changed its type, its shape or its memory."""
        import torch

        if not all(is_small(item) for item in self._tensors):
            return None
        if self._layout != [(item.dtype, item.shape) for item in self._tensors]:
            return None
        torch._foreach_copy_(self.targets, self._tensors)
        return digest.sum_of_products(self._copy, self._multipliers)


def is_small(item: Any) -> bool:
    """Is this a plain tensor of few elements in the memory of this process?"""
    return bool(size_of(item)) and item.untyped_storage().nbytes() > 0


def size_of(item: Any) -> int:
    """The elements of a tensor that is small, if it has memory; of any other 0."""
    torch = sys.modules["torch"]
    if type(item) is not torch.Tensor and type(item) is not torch.nn.Parameter:
        return 0
    is_plain = item.is_cpu and item.layout is torch.strided and not (item.is_complex() or item.is_quantized)
    return size if is_plain and (size := item.numel()) <= SMALL else 0


def group(items: Sequence[tuple[str, Any]]) -> list[SmallTensors]:
    """Small tensors by their type."""
    by_type: dict[Any, list[tuple[str, Any]]] = {}
    for name, item in items:
        by_type.setdefault(item.dtype, []).append((name, item))
    return [SmallTensors(members) for members in by_type.values()]


def separate_sums(items: Sequence[Any]) -> list[int]:
    """The sum of each small tensor as ``digest.piece`` computes it for the name "": one product of a matrix for each size of tensors."""
    by_size: dict[tuple[Any, int], list[int]] = {}
    for position, item in enumerate(items):
        by_size.setdefault((item.dtype, item.numel()), []).append(position)
    sums = [0] * len(items)
    for (_, size), positions in by_size.items():
        count = max(1, BATCH // size)
        for begin in range(0, len(positions), count):
            part = positions[begin : begin + count]
            for position, value in zip(part, _sums_of([items[position] for position in part], size)):
                sums[position] = value
    return sums


def named_sums(items: Sequence[tuple[str, Any]]) -> list[int]:
    """The digest of each small tensor under its name."""
    sums = separate_sums([item for _, item in items])
    unit = pow(digest.name_multiplier(""), -1, 1 << 64)
    return [value * unit * digest.name_multiplier(name) for (name, _), value in zip(items, sums)]


@functools.cache
def _multipliers() -> Any:
    return digest.multipliers("", SMALL)


def _sums_of(items: list[Any], size: int) -> list[int]:
    """The sums of tensors of one type and size."""
    import torch

    rows = digest.bit_patterns(torch._C._nn.flatten_dense_tensors(items)).view(len(items), size)
    sums: list[int] = torch.mv(rows.to(torch.int64), _multipliers()[:size]).tolist()
    return sums
