"""Settings by their value: what a checkpoint's format makes of a number or a sequence is no change of it."""

from __future__ import annotations

from typing import Any


def plain(item: Any) -> Any:
    """Numbers as they compare, sequences as lists, tensors and arrays of one element as numbers; other things as their text.

    ``(0.9, 0.999)``, ``[0.9, 0.999]`` and two tensors on any device are one value, and so are ``1``, ``1.0`` and ``tensor(1.)``.
    """
    if item is None or isinstance(item, (bool, str)):
        return item
    if isinstance(item, (int, float)):
        return int(item) if float(item).is_integer() else float(item)
    if isinstance(item, (tuple, list)):
        return [plain(value) for value in item]
    if hasattr(item, "full_tensor"):  # a DTensor: its shard would do, and this is a number
        item = item.to_local()
    if hasattr(item, "tolist") and hasattr(item, "dtype"):
        return plain(item.tolist())
    return repr(item)
