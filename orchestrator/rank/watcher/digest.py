"""The additive digest of tensors: a sum modulo 2**64 over elements, so that shards add up to the full tensor.

An element contributes ``a(name) * c(index // 65536) * m(index % 65536) * bits``: odd multipliers of 64 bits derived by
SHA-256, its row-major index in the full tensor, its bit pattern as an unsigned integer of its width.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

CHUNK = 65536
_MODULUS = 1 << 64


class Undigestible(Exception):
    """The tensor has no digest; the message says why."""


@functools.cache
def name_multiplier(name: str) -> int:
    """The odd multiplier of a tensor's name."""
    return int.from_bytes(hashlib.sha256(name.encode(errors="surrogatepass")).digest()[:8], "little") | 1


def total(tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> tuple[str, int]:
    """(digest in 16 hex digits, number of elements summed) of named tensors. Raises Undigestible."""
    items = tensors.items() if isinstance(tensors, Mapping) else tensors
    value = count = 0
    for name, item in items:
        value += tensor(name, item)
        count += int(local(item).numel())
    return f"{value % _MODULUS:016x}", count


def tensor(name: str, item: Any) -> int:
    """The digest of one tensor, or of this process' shard of it. Raises Undigestible."""
    return name_multiplier(name) * _sum(local(item), 0) % _MODULUS


def local(item: Any) -> Any:
    """The part of a tensor that this process holds."""
    return item.to_local() if hasattr(item, "to_local") else item


def _sum(item: Any, start: int) -> int:
    """The sum of a plain tensor whose first element has the global index ``start``."""
    bits = _bits(item)
    value = 0
    for begin in range(0, int(bits.numel()), CHUNK):
        chunk = bits[begin : begin + CHUNK]
        part = int((chunk.long() * _multipliers()[: chunk.numel()]).sum().item())
        value += part * _odd("chunk", (start + begin) // CHUNK)
    return value % _MODULUS


def _bits(item: Any) -> Any:
    """A flat tensor of integers with the bit patterns of the elements."""
    import torch

    flat = item.detach().contiguous().cpu().flatten()
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


@functools.cache
def _multipliers() -> Any:
    import torch

    return torch.tensor([_signed(_odd("index", index)) for index in range(CHUNK)], dtype=torch.int64)


@functools.lru_cache(maxsize=4096)
def _odd(kind: str, index: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{kind}/{index}".encode()).digest()[:8], "little") | 1


def _signed(value: int) -> int:
    return value - _MODULUS if value >= _MODULUS // 2 else value
