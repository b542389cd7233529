"""Computes the memory that the buffers of a measurement need on each rank, before anything starts. Pure, without torch."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ...model import algorithm as model
from ...model.free_memory import RequiredMemory
from ...rank.exchange import case_layout, cases, receive_schedule
from . import algorithm_choice, known_algorithms, settings
from .replay import pacing

#: For these the backend copies everything into one buffer, or out of one.
_FLATTENED = ("all-gather", "reduce-scatter", "gather")
#: In larger groups the scratch of schedules is not computed: it would take seconds.
_MANY = 64


def of(
    items: Iterable[cases.Item], world: int, params: settings.Measuring, smaller: str, *, in_turn: bool = False
) -> RequiredMemory | None:
    """The need of the largest cases that alternate; None if there are none. ``smaller``: the parameter to reduce."""
    drains = 2 * max(params.drain, 0)
    needs = [
        RequiredMemory(operation=label(among), ranks=tuple(need(among, rank) + drains for rank in range(world)),
                    size_bytes=among[0].item.bytes, setting=smaller)
        for among in pacing.concurrent(cases.cases(_largest(tuple(items)), world, in_turn=in_turn))
    ]  # fmt: skip
    return max(needs, key=lambda required: (max(required.ranks), sum(required.ranks)), default=None)


def label(among: Sequence[cases.Case]) -> str:
    """The cases that are in memory at the same time, as text."""
    if len(among) > 1 and pacing.is_paced(among) and among[0].stride == 1:
        return f"a sequence of {len(among)} cases, {among[0].label()} first"
    others = ", ".join(case.item.algorithm for case in among[1:])
    return among[0].label() + (f" in turn with {others}" if others else "")


def need(among: Sequence[cases.Case], rank: int) -> int:
    """Bytes that ``rank`` needs for cases at the same time: shared buffers once, and the scratch of every case."""
    common: dict[object, int] = {}
    own = 0
    for case in _with_candidates(among):
        ranks = next((group for group in case.groups if rank in group), None)
        if ranks is not None:
            layout, extra = _layout(case, ranks, ranks.index(rank))
            width = cases.DTYPES[case.item.dtype]
            reduced = case.item.operator if case.item.operation in cases.REDUCING else ""
            common[replace(layout, parts=()), ranks, case.item.dtype, reduced] = width * _elements(layout)
            own += width * extra
    return sum(common.values()) + own


def _with_candidates(among: Iterable[cases.Case]) -> Iterator[cases.Case]:
    """In place of auto all of its candidates, because it measures them in turn."""
    for case in among:
        if case.item.algorithm == model.AUTO:
            yield from (cases.chosen(case, candidate.name) for candidate in algorithm_choice.candidates(case))
        else:
            yield case


def _elements(layout: case_layout.Layout) -> int:
    """Elements of the buffer, of its inputs, and of its expected outputs."""
    return layout.size + sum(part.size for part in (*layout.inputs, *layout.outputs))


def _layout(case: cases.Case, ranks: Sequence[int], me: int) -> tuple[case_layout.Layout, int]:
    """The layout of the buffer, and the further elements that the algorithm or the expected outputs need."""
    chunks, scratch = _scratch(case.item.algorithm, case.item.operation, case.ranks, me, case.item.root)
    layout = case_layout.layout(case, ranks, me, chunks)
    outputs = [segment.size for segment in layout.outputs]
    extra = max((stop - start for start, stop in layout.parts), default=0) * scratch
    made = max(outputs) if len(outputs) > 1 else 0
    if case.item.algorithm == model.LIBRARY and case.item.operation in _FLATTENED and outputs:
        extra = case.count
    return layout, max(made, extra)


def _largest(items: Sequence[cases.Item]) -> Sequence[cases.Item]:
    """Of the items that differ only in size, the largest; all items if they may be a sequence, whose buffers exist together."""
    if any(item.after or any(item.gaps) for item in items):
        return items
    largest: dict[object, cases.Item] = {}
    for item in items:
        key = (item.operation, item.algorithm, item.dtype, item.groups, item.root, item.shares)
        if key not in largest or item.bytes > largest[key].bytes:
            largest[key] = item
    return list(largest.values())


@functools.lru_cache(maxsize=4096)
def _scratch(text: str, operation: str, ranks: int, me: int, root: int) -> tuple[int, int]:
    """(chunks of the buffer, most chunks of scratch at a time); 0 where they are not known."""
    algorithm = known_algorithms.find(text)
    if algorithm is None or ranks > _MANY:
        return 0, 0
    schedule = algorithm.schedule(operation, me, ranks, root)
    return algorithm.chunks(operation, ranks), receive_schedule.scratch(schedule)
