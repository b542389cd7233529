"""How much memory the buffers of a measurement take on each rank: asked before anything is started. Pure, without torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from ..model import algorithm as model
from ..model import room
from . import buffer, cases, known, posting, settings

#: For these the library copies everything into one piece, or out of it.
_FLATTENED = ("all-gather", "reduce-scatter", "gather")
#: In larger groups no schedule is made for the sake of its scratch: it takes seconds.
_MANY = 64


def of(items: Iterable[cases.Item], world: int, params: settings.Measuring, smaller: str) -> room.Demand | None:
    """The case that takes most on any rank; None where nothing is measured. ``smaller``: what may be set to less."""
    beside = 2 * max(params.drain, 0)
    found = [
        room.Demand(what=case.label(), ranks=tuple(need(case, rank) + beside for rank in range(world)), size=case.item.bytes,
                    smaller=smaller)
        for case in cases.cases(_largest(items), world)
    ]  # fmt: skip
    return max(found, key=lambda one: (max(one.ranks), sum(one.ranks)), default=None)


def need(case: cases.Case, rank: int) -> int:
    """Bytes of the buffer of ``rank``, of what is put into it, of what must come out, and of the scratch that the algorithm needs."""
    ranks = next((group for group in case.groups if rank in group), None)
    if ranks is None:
        return 0
    me = ranks.index(rank)
    chunks, scratch = _scratch(case.item.algorithm, case.item.operation, case.ranks, me, case.item.root)
    found = buffer.layout(case, ranks, me, chunks)
    outputs = [one.size for one in found.outputs]
    held = found.size + sum(one.size for one in found.inputs) + sum(outputs)
    beside = max((stop - start for start, stop in found.parts), default=0) * scratch
    made = max(outputs) if len(outputs) > 1 else 0
    if case.item.algorithm == model.LIBRARY and case.item.operation in _FLATTENED and outputs:
        beside = case.count
    return cases.DTYPES[case.item.dtype] * (held + max(made, beside))


def _largest(items: Iterable[cases.Item]) -> list[cases.Item]:
    """Of those that differ in nothing else the one with the most bytes."""
    found: dict[object, cases.Item] = {}
    for item in items:
        key = (item.operation, item.algorithm, item.dtype, item.groups, item.root, item.shares)
        if key not in found or item.bytes > found[key].bytes:
            found[key] = item
    return list(found.values())


@functools.lru_cache(maxsize=4096)
def _scratch(text: str, operation: str, ranks: int, me: int, root: int) -> tuple[int, int]:
    """(chunks of the buffer, chunks of scratch at one time); of a library nothing is known."""
    algorithm = known.find(text)
    if algorithm is None or ranks > _MANY:
        return 0, 0
    schedule = algorithm.schedule(operation, me, ranks, root)
    return algorithm.chunks(operation, ranks), posting.scratch(schedule)
