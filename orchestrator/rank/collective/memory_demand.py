"""How much memory the buffers of a measurement take on each rank: asked before anything is started. Pure, without torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ...model import algorithm as model
from ...model.free_memory import RequiredMemory
from ..exchange import case_layout, receive_schedule
from . import cases, known_algorithms, settings

#: For these the library copies everything into one piece, or out of it.
_FLATTENED = ("all-gather", "reduce-scatter", "gather")
#: In larger groups no schedule is made for the sake of its scratch: it takes seconds.
_MANY = 64


def of(
    items: Iterable[cases.Item], world: int, params: settings.Measuring, smaller: str, *, in_turn: bool = False
) -> RequiredMemory | None:
    """The cases in turn that take most on any rank; None where nothing is measured. ``smaller``: what may be set to less."""
    beside = 2 * max(params.drain, 0)
    found = [
        RequiredMemory(operation=label(among), ranks=tuple(need(among, rank) + beside for rank in range(world)),
                    size_bytes=among[0].item.bytes, setting=smaller)
        for among in cases.turns(cases.cases(_largest(items), world, in_turn=in_turn))
    ]  # fmt: skip
    return max(found, key=lambda one: (max(one.ranks), sum(one.ranks)), default=None)


def label(among: Sequence[cases.Case]) -> str:
    """What is held at the same time, in words."""
    others = ", ".join(case.item.algorithm for case in among[1:])
    return among[0].label() + (f" in turn with {others}" if others else "")


def need(among: Sequence[cases.Case], rank: int) -> int:
    """Bytes that ``rank`` holds for cases that take turns: what they have in common once, and what each has of its own."""
    common: dict[case_layout.Layout, int] = {}
    own = 0
    for case in among:
        ranks = next((group for group in case.groups if rank in group), None)
        if ranks is not None:
            one, beside = _held(case, ranks, ranks.index(rank))
            width = cases.DTYPES[case.item.dtype]
            common[replace(one, parts=())] = width * _memory(one)
            own += width * beside
    return sum(common.values()) + own


def _memory(one: case_layout.Layout) -> int:
    """Elements of the buffer, of what is put into it, and of what must come out."""
    return one.size + sum(part.size for part in (*one.inputs, *one.outputs))


def _held(case: cases.Case, ranks: Sequence[int], me: int) -> tuple[case_layout.Layout, int]:
    """The layout of the buffer, and how many elements beside it the algorithm, or the making of what must come out, needs."""
    chunks, scratch = _scratch(case.item.algorithm, case.item.operation, case.ranks, me, case.item.root)
    found = case_layout.layout(case, ranks, me, chunks)
    outputs = [one.size for one in found.outputs]
    beside = max((stop - start for start, stop in found.parts), default=0) * scratch
    made = max(outputs) if len(outputs) > 1 else 0
    if case.item.algorithm == model.LIBRARY and case.item.operation in _FLATTENED and outputs:
        beside = case.count
    return found, max(made, beside)


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
    algorithm = known_algorithms.find(text)
    if algorithm is None or ranks > _MANY:
        return 0, 0
    schedule = algorithm.schedule(operation, me, ranks, root)
    return algorithm.chunks(operation, ranks), receive_schedule.scratch(schedule)
