"""The additive digest of tensors: a sum modulo 2**64 over elements, so that shards add up to the full tensor.

An element contributes ``a(name) * c(index // 65536) * m(index % 65536) * bits``: odd multipliers of 64 bits derived by
SHA-256, its row-major index in the full tensor, its bit pattern as a signed integer of its width. So any single changed bit
changes the digest, and a full tensor, its DTensor or FSDP shards and the files of a sharded checkpoint compare at any world size.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CHUNK = 65536
#: Elements that torch copies without its other threads: their start costs more, and much more where all cores are busy.
SERIAL = 32768
_scratch = threading.local()
#: Elements that a device multiplies at once: 32 MiB of products.
DEVICE_ROWS = 64
#: Sums of a tensor that show how far it moved, and the elements in them.
SUMS, SAMPLE = 4, 1024
_MODULUS = 1 << 64
_MASK = _MODULUS - 1


class Undigestible(Exception):
    """The tensor has no digest; the message says why."""


@dataclass(frozen=True)
class Box:
    """The part of a full tensor that a local tensor holds: ``offsets`` of its first element in a tensor of ``shape``."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def total(tensors: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> tuple[str, int]:
    """(digest in 16 hex digits, number of elements summed) of named tensors. Raises Undigestible."""
    items = tensors.items() if isinstance(tensors, Mapping) else tensors
    value = count = 0
    with undisturbed():
        for name, item in items:
            value += tensor(name, item)
            count += int(local(item).numel())
    return render(value), count


def render(value: int) -> str:
    """A digest as it is written."""
    return f"{value & _MASK:016x}"


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """No gradients, and no mode or subclass of the user sees these operations."""
    import torch
    from torch.utils import _python_dispatch

    pre_dispatch: Any = torch._ops._len_torch_dispatch_stack_pre_dispatch
    has_modes = torch._C._len_torch_dispatch_stack() or pre_dispatch()
    modes: Any = _python_dispatch._disable_current_modes if has_modes else contextlib.nullcontext
    has_gradients = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        with torch._C.DisableTorchFunctionSubclass(), modes():
            yield
    finally:
        torch._C._set_grad_enabled(has_gradients)


def tensor(name: str, item: Any) -> int:
    """The digest of a tensor; of a DTensor: of the shard that this process holds. Raises Undigestible."""
    if type(item).__name__ == "DTensor":
        return piece(name, local(item), box_of(item))
    return piece(name, item)


def piece(name: str, part: Any, box: Box | None = None, start: int = 0) -> int:
    """The digest of a part of the tensor ``name``: the box, or what follows the row-major index ``start``. Raises Undigestible."""
    if hasattr(part, "__tensor_flatten__"):
        return _wrapped(name, part)
    _require_plain(part)
    if box is None:
        value = _sum_run(part, start)
    else:
        start, is_run = _as_run(part, box)
        value = _sum_run(part, start) if is_run else _sum_box(part, box)
    return name_multiplier(name) * value & _MASK


@functools.cache
def name_multiplier(name: str) -> int:
    """The odd multiplier of a tensor's name."""
    return _odd("name", name)


def box_of(item: Any) -> Box:
    """The box of this process' shard of a DTensor. Raises Undigestible where its layout is not a box."""
    layout = _layout()
    for placement in item.placements:
        if placement.is_partial():
            raise Undigestible("a partial DTensor")
        if type(placement).__name__ not in ("Shard", "Replicate"):
            raise Undigestible(f"a DTensor with {type(placement).__name__}")
    _, offsets = layout.compute_local_shape_and_global_offset(item.shape, item.device_mesh, item.placements)
    return Box(tuple(item.shape), tuple(offsets))


@functools.cache
def _layout() -> Any:
    """Torch's functions about shards; torch 2.4 has them elsewhere."""
    for package in ("torch.distributed.tensor", "torch.distributed._tensor"):
        try:
            return importlib.import_module(f"{package}._utils")
        except ImportError:
            continue
    raise Undigestible("a DTensor of a torch that is not known")


def local_pieces(value: Any) -> list[tuple[Any, Box | None]]:
    """Return what this process holds of a tensor, a DTensor or a ShardedTensor. Raises Undigestible."""
    if hasattr(value, "local_shards"):
        shape = tuple(value.size())
        shards = [(shard.tensor, tuple(shard.metadata.shard_offsets)) for shard in value.local_shards()]
        return [(tensor, Box(shape, offsets)) for tensor, offsets in shards]
    return [(local(value), box_of(value))] if type(value).__name__ == "DTensor" else [(value, None)]


def norm(item: Any) -> float:
    """The norm of a local tensor, without a copy of it; 0 of one that is not plain, or has no common floats."""
    import torch

    if not has_floats(item):
        return 0.0
    wide = torch.float64 if item.dtype == torch.float64 else torch.float32
    return float(torch.linalg.vector_norm(item.detach(), dtype=wide))


def is_zero(item: Any) -> bool:
    """Return whether what this process holds of a tensor is known to be 0, or is nothing."""
    held = local(item)
    return not held.numel() or (has_floats(held) and not norm(held))


def has_floats(item: Any) -> bool:
    """Return whether it is a plain tensor in memory, with common floats."""
    import torch

    is_plain = type(item) in (torch.Tensor, torch.nn.Parameter) and item.layout is torch.strided
    floats = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
    return is_plain and item.dtype in floats and item.device.type != "meta" and item.untyped_storage().size() > 0


def signed_sums(items: Iterable[Any]) -> list[int]:
    """Return for each local tensor ``SUMS`` sums of some elements with other signs, in units of 2**-40: they show how far tensors differ.

    Integers, so that equal tensors have equal sums. Tensors that are not plain, contiguous floats are left out.
    """
    import torch

    plain = [item.detach().view(-1) for item in items if has_floats(item) and item.is_contiguous()]
    if not plain:
        return []
    some = [flat[:: flat.numel() // SAMPLE | 1][:SAMPLE] for flat in plain]
    rows = torch.zeros(len(some), SAMPLE, dtype=torch.float64, device=some[0].device)
    torch._foreach_copy_([row[: part.numel()] for row, part in zip(rows, some)], some)
    units = rows.clamp_(-(2**11), 2**11).mul_(2**40).round_().to(torch.int64)
    sums: list[int] = (_signs(rows.device) * units.unsqueeze(1)).sum(2).flatten().tolist()
    return sums


def norms(items: Sequence[Any]) -> Iterator[float]:
    """The norm of each plain tensor, as ``norm`` computes it."""
    import torch

    together = [item.detach() for item in items if item.dtype is torch.float32]
    values = iter(torch._foreach_norm(together) if together else ())
    return (float(next(values)) if item.dtype is torch.float32 else norm(item) for item in items)


def local(item: Any) -> Any:
    """The part of a tensor that this process holds."""
    if type(item).__name__ != "DTensor":
        return item
    shard = item.to_local()
    return shard.wait() if hasattr(shard, "wait") else shard  # an unfinished collective


def _wrapped(name: str, item: Any) -> int:
    """The digest of the tensors that a subclass wraps, such as quantised weights. Raises Undigestible."""
    names, _ = item.__tensor_flatten__()
    return sum(tensor(f"{name}/{part}", getattr(item, part)) for part in names) & _MASK


def _require_plain(item: Any) -> None:
    """Raises Undigestible for tensors without plain elements in memory."""
    import torch

    if item.layout is not torch.strided:
        raise Undigestible(f"a tensor of layout {item.layout}")
    if item.is_quantized or item.device.type == "meta":
        raise Undigestible("a quantised tensor" if item.is_quantized else "a tensor without memory (meta)")
    if item.numel() and not item.untyped_storage().size():
        raise Undigestible("a tensor whose memory was released")


def _as_run(part: Any, box: Box) -> tuple[int, bool]:
    """(index of the first element, whether the box is one run of consecutive indices)."""
    shape = tuple(part.shape)
    differing = [axis for axis, size in enumerate(shape) if size != box.shape[axis]]
    last = differing[-1] if differing else 0
    start = sum(offset * stride for offset, stride in zip(box.offsets, strides(box.shape)))
    return start, all(size == 1 for size in shape[:last])


def strides(shape: tuple[int, ...]) -> list[int]:
    """The distance in elements between neighbours along each axis of a row-major tensor."""
    values = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        values[axis] = values[axis + 1] * shape[axis + 1]
    return values


def _sum_run(item: Any, start: int) -> int:
    """The sum over consecutive row-major indices from ``start``."""
    value = 0
    for flat in _flat_parts(item):
        patterns = bit_patterns(flat)
        begin = start * int(patterns.numel()) // max(1, int(flat.numel()))
        value += _sum_bits(patterns, begin)
        start += int(flat.numel())
    return value & _MASK


def _flat_parts(item: Any) -> Iterator[Any]:
    """The elements in row-major order; a tensor that is not contiguous is copied in parts of at most 64 MiB."""
    limit = CHUNK * DEVICE_ROWS
    if item.is_contiguous() or item.numel() <= limit:
        yield item.detach().reshape(-1)
        return
    rows = max(1, limit // max(1, item[0].numel()))
    if rows == 1 and item[0].numel() > limit:
        for row in item:
            yield from _flat_parts(row)
        return
    for begin in range(0, item.shape[0], rows):
        yield item[begin : begin + rows].detach().contiguous().reshape(-1)


def bit_patterns(flat: Any) -> Any:
    """The bit patterns of a flat tensor as signed integers; complex128 as two of them."""
    import torch

    if flat.is_complex():
        flat = torch.view_as_real(flat.resolve_conj()).reshape(-1)
    if flat.is_neg():
        flat = flat.resolve_neg()
    return flat.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()])


def _sum_bits(bits: Any, start: int) -> int:
    """The sum over flat integers whose first has index ``start``: on a CPU in parts for its cache, on a device whole chunks at once."""
    is_device, count = bits.device.type != "cpu", int(bits.numel())
    size = CHUNK if is_device else SERIAL
    until = min(count, -start % size)
    if is_device and count - until >= CHUNK:
        rest = until + (count - until) // CHUNK * CHUNK
        rows = _sum_rows(bits[until:rest].view(-1, CHUNK), (start + until) // CHUNK)
        return _sum_bits(bits[:until], start) + rows + _sum_bits(bits[rest:], start + rest)
    value, table = 0, _table(bits.device)
    for part in (bits[:until], *bits[until:].split(size)):
        if part.numel():
            begin = start % CHUNK
            value += int(_multiply(part, table[begin : begin + part.numel()])) * _odd("chunk", start // CHUNK)
            start += part.numel()
    return value


def _multiply(bits: Any, table: Any) -> Any:
    """The sum of products, on a CPU of at most ``SERIAL``: a copy in the cache and ``dot`` are fastest. Others have no such ``dot``."""
    import torch

    if bits.device.type != "cpu":
        return (bits * table).sum()
    if not hasattr(_scratch, "buffer"):
        _scratch.buffer = torch.empty(SERIAL, dtype=torch.int64, device="cpu")
    return torch.dot(_scratch.buffer[: bits.numel()].copy_(bits), table)


def _sum_rows(bits: Any, first: int) -> int:
    """The sum over whole chunks on a device, many at once."""
    import torch

    table = _table(bits.device)
    parts = (bits[begin : begin + DEVICE_ROWS] * table for begin in range(0, bits.shape[0], DEVICE_ROWS))
    values = torch.cat([part.sum(1) for part in parts]).tolist()
    return sum(value * _odd("chunk", first + index) for index, value in enumerate(values))


def _sum_box(item: Any, box: Box) -> int:
    """The sum over a box that is no run: the index of every element is computed."""
    import torch

    if not item.numel():
        return 0
    steps, value = strides(box.shape), 0
    rows = max(1, CHUNK * 8 // max(1, item[0].numel()))
    for begin in range(0, item.shape[0], rows):
        part = item[begin : begin + rows].detach()
        index = torch.zeros((), dtype=torch.int64, device=part.device)
        for axis, size in enumerate(part.shape):
            first = box.offsets[axis] + (begin if axis == 0 else 0)
            along = (torch.arange(size, device=part.device) + first) * steps[axis]
            index = index + along.view([-1 if other == axis else 1 for other in range(part.dim())])
        value += _sum_indexed(bit_patterns(part.contiguous().reshape(-1)), index.reshape(-1))
    return value


def _sum_indexed(bits: Any, index: Any) -> int:
    import torch

    if bits.numel() != index.numel():  # complex numbers are two values each
        index = torch.stack((2 * index, 2 * index + 1), 1).reshape(-1)
    chunks = torch.div(index, CHUNK, rounding_mode="floor")
    first, last = int(chunks.min()), int(chunks.max())
    odds = torch.tensor([_signed(_odd("chunk", chunk)) for chunk in range(first, last + 1)], device=bits.device)
    return int((bits * _table(bits.device)[index % CHUNK] * odds[chunks - first]).sum())


def multipliers(name: str, count: int) -> Any:
    """The multipliers of the first elements of the tensor ``name``, at most a chunk of them, on the CPU."""
    import torch

    factor = name_multiplier(name) * _odd("chunk", 0) & _MASK
    return _table(torch.device("cpu"))[:count] * _signed(factor)


def sum_of_products(flat: Any, factors: Any) -> int:
    """The sum of the bit patterns of a flat tensor on the CPU times ``factors``, which has their length."""
    patterns = bit_patterns(flat)
    return sum(int(_multiply(*part)) for part in zip(patterns.split(SERIAL), factors.split(SERIAL))) & _MASK


def prepare(devices: Iterable[Any]) -> None:
    """Compute the tables of multipliers before the cost of a digest is measured."""
    with undisturbed():
        for device in devices:
            _table(device)


@functools.cache
def _signs(device: Any) -> Any:
    """1 and -1 for each sum and element."""
    import torch

    blocks = (hashlib.sha256(b"sign/%d" % block).digest() for block in range(SUMS * SAMPLE // 32))
    values = torch.frombuffer(bytearray(b"".join(blocks)), dtype=torch.uint8)
    return ((values & 1).to(torch.int64) * 2 - 1).view(SUMS, SAMPLE).to(device)


@functools.cache
def _table(device: Any) -> Any:
    """The multipliers of the indices within a chunk, 512 KiB: one SHA-256 for four of them."""
    import torch

    blocks = (hashlib.sha256(b"index/%d" % block).digest() for block in range(CHUNK // 4))
    table = torch.frombuffer(bytearray(b"".join(blocks)), dtype=torch.int64) | 1
    return table.to(device)


@functools.lru_cache(maxsize=65536)
def _odd(kind: str, value: int | str) -> int:
    return int.from_bytes(hashlib.sha256(f"{kind}/{value}".encode(errors="surrogatepass")).digest()[:8], "little") | 1


def _signed(value: int) -> int:
    return value - _MODULUS if value >= _MODULUS // 2 else value
