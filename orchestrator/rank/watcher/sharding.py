"""Finds which part of which full tensor a parameter holds on this rank: all, a box of a DTensor, or a run of a flat FSDP parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from . import digest, tensor_names


@dataclass(frozen=True)
class Part:
    """A part of the full tensor ``name``. ``select``: its elements in a flat parameter; ``ranks``: those that hold its shards.

    ``reason``: why it has no digest.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    box: digest.Box | None = None
    start: int = 0
    select: tuple[int, int] | None = None
    ranks: tuple[int, ...] = ()
    reason: str | None = None

    @property
    def numel(self) -> int:
        """Elements of the full tensor."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    def holds_first(self) -> bool:
        """Is the first element of the full tensor in this part?"""
        return self.start == 0 and not (self.box and any(self.box.offsets))


def group_of(parts: Iterable[Part]) -> tuple[int, ...]:
    """The ranks whose parts together are the full tensors; empty if every rank holds all of them."""
    return tuple(sorted({rank for part in parts if len(part.ranks) > 1 for rank in part.ranks}))


def counts(part: Part, group: Sequence[int], rank: int) -> bool:
    """Return whether this rank adds the part to the sum: of ranks that hold the same part, only those with the first rank's copy do."""
    return not group or group[0] in (part.ranks or (rank,))


def is_whole(part: Part, group: Sequence[int], rank: int) -> bool:
    """Is this the full tensor, which this rank adds to the sum?"""
    is_part = part.box is not None or part.select is not None or part.start != 0 or part.reason is not None
    return not is_part and counts(part, group, rank)


def by_parameter(modules: Sequence[Any]) -> dict[int, list[Part]]:
    """``id(parameter)`` -> its parts, for the parameters below the root modules."""
    result: dict[int, list[Part]] = {}
    for prefix, module in tensor_names.modules_by_name(modules):
        handle = getattr(module, "_handle", None)
        if handle is not None and hasattr(handle, "flat_param"):
            _add_flat(result, prefix, handle)
            continue
        for name, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in result:
                result[id(parameter)] = [of_tensor(prefix + name, parameter)]
    return result


def of_tensor(name: str, item: Any) -> Part:
    """The part of a plain tensor or of a DTensor."""
    dtype = str(item.dtype).replace("torch.", "")
    if type(item).__name__ != "DTensor":
        return Part(name, dtype, tuple(item.shape))
    try:
        box, reason = digest.box_of(item), None
    except digest.Undigestible as error:
        box, reason = None, str(error)
    return Part(name, dtype, tuple(item.shape), box, ranks=_shard_ranks(item), reason=reason)


def _shard_ranks(item: Any) -> tuple[int, ...]:
    """The ranks of the mesh that hold the other shards of this rank's copy."""
    mesh = item.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return ()
    index = tuple(
        slice(None) if placement.is_shard() else position for placement, position in zip(item.placements, coordinate)
    )
    return tuple(sorted(int(rank) for rank in mesh.mesh[index].reshape(-1).tolist()))


def _add_flat(result: dict[int, list[Part]], prefix: str, handle: Any) -> None:
    """The parts of a flat parameter of FSDP1, and of the original parameters that are views of it."""
    import torch

    flat = handle.flat_param
    group = getattr(handle, "process_group", None)
    ranks = tuple(torch.distributed.get_process_group_ranks(group)) if group and handle.uses_sharded_strategy else ()
    dtype = str(flat.dtype).replace("torch.", "")
    originals = getattr(flat, "_params", None) or [None] * len(flat._fqns)
    parts = result.setdefault(id(flat), [])
    infos = zip(flat._fqns, flat._shapes, flat._shard_param_infos, originals)
    for name, shape, info, original in infos:
        start = info.intra_param_start_idx if info.in_shard else 0
        select = (info.offset_in_shard, info.offset_in_shard + info.numel_in_shard) if info.in_shard else (0, 0)
        part = Part(prefix + tensor_names.normalise(name), dtype, tuple(shape), None, start or 0, select, ranks)
        parts.append(part)
        if original is not None:
            result[id(original)] = [Part(part.name, dtype, part.shape, None, part.start, None, ranks)]


def digest_of(item: Any, parts: Sequence[Part], group: Sequence[int], rank: int) -> tuple[int, int]:
    """(sum, elements) over the parts of a tensor that this rank adds. Raises Undigestible."""
    local = digest.local(item)
    value = count = 0
    for part in parts:
        if part.reason:
            raise digest.Undigestible(f"{part.name}: {part.reason}")
        if counts(part, group, rank):
            selected = local if part.select is None else local.reshape(-1)[slice(*part.select)]
            value += digest.piece(part.name, selected, part.box, part.start)
            count += int(selected.numel())
    return value, count


def digest_of_state(parameter: Any, item: Any, parts: Sequence[Part], group: Sequence[int], rank: int) -> int:
    """The sum of an optimizer state of a parameter: of its shape, or a value that belongs to it as a whole. Raises Undigestible."""
    import torch

    tensor = item if isinstance(item, torch.Tensor) else torch.tensor(float(item), device="cpu")
    local = digest.local(tensor)
    if local.numel() == digest.local(parameter).numel() and tensor.dim() == parameter.dim():
        return digest_of(local, parts, group, rank)[0]
    part = parts[0]
    if not counts(part, group, rank) or not part.holds_first():
        return 0
    return digest.tensor(part.name, tensor)
