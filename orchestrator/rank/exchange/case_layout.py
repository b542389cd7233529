"""The layout of a case's buffer: chunks of the algorithm, inputs, and expected outputs. Pure, without torch."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ...model.frozen import dataclass
from ..runtime import even_shares
from .cases import Case

#: The inputs of all ranks of the group, combined by the operator.
COMBINED = -1


@dataclass(frozen=True, slots=True)
class Segment:
    """``size`` elements at offset ``at``: those of rank ``of`` (or COMBINED) from element ``index``."""

    at: int
    size: int
    of: int
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A buffer of ``size`` elements, 0 outside of the inputs. ``parts``: start and stop of every chunk.

    ``own``: the separate block of this rank, for calls of the backend that need one. ``outputs`` are contiguous.
    """

    size: int
    parts: tuple[tuple[int, int], ...] = ()
    own: tuple[int, int] = (0, 0)
    inputs: tuple[Segment, ...] = ()
    outputs: tuple[Segment, ...] = ()

    @property
    def checked(self) -> tuple[int, int]:
        """Start and stop of the result."""
        if not self.outputs:
            return 0, 0
        return self.outputs[0].at, self.outputs[-1].at + self.outputs[-1].size


def layout(case: Case, ranks: Sequence[int], me: int, chunks: int = 0) -> Layout:
    """The layout for ``ranks[me]``. ``chunks``: number of chunks of the algorithm; 0: the backend's call."""
    operation = case.item.operation
    if operation == "barrier":
        return Layout(size=0)
    if operation in ("all-reduce", "reduce", "broadcast"):
        return _whole(case, ranks, me, chunks)
    if operation == "send-recv":
        return _pair(case, ranks, me)
    return _all_to_all(case, ranks, me, chunks) if operation == "all-to-all" else _blocks(case, ranks, me, chunks)


def _whole(case: Case, ranks: Sequence[int], me: int, chunks: int) -> Layout:
    count, root = case.count, case.item.root
    reducing, rooted = case.item.operation != "broadcast", case.item.operation == "reduce"
    inputs = (Segment(0, count, ranks[me], 0),) if reducing or me == root else ()
    outputs = (Segment(0, count, COMBINED if reducing else ranks[root], 0),) if not rooted or me == root else ()
    return Layout(size=count, parts=even_shares.bounds(count, max(chunks, 1)), inputs=inputs, outputs=outputs)


def _pair(case: Case, ranks: Sequence[int], me: int) -> Layout:
    count, left = case.count, ranks[me - 1]
    return Layout(
        size=2 * count,
        parts=((0, count), (count, 2 * count)),
        inputs=(Segment(0, count, ranks[me], 0),),
        outputs=(Segment(count, count, left, 0),),
    )


def _blocks(case: Case, ranks: Sequence[int], me: int, chunks: int) -> Layout:
    count, edges = case.count, _edges(case.blocks)
    start, stop = edges[me]
    own = (count, count + stop - start) if not chunks else (start, stop)
    operation, root = case.item.operation, case.item.root
    everything = tuple(Segment(low, high - low, ranks[index], low) for index, (low, high) in enumerate(edges))
    own_block = Segment(own[0], stop - start, ranks[me], start)
    inputs, outputs = {
        "all-gather": ((own_block,), everything),
        "gather": ((own_block,), everything if me == root else ()),
        "reduce-scatter": ((Segment(0, count, ranks[me], 0),), (Segment(own[0], stop - start, COMBINED, start),)),
        "scatter": (
            (Segment(0, count, ranks[root], 0),) if me == root else (),
            (Segment(own[0], stop - start, ranks[root], start),),
        ),
    }[operation]
    return Layout(size=max(count, own[1]), parts=edges, own=own, inputs=inputs, outputs=outputs)


def _all_to_all(case: Case, ranks: Sequence[int], me: int, chunks: int) -> Layout:
    """Input by destination, output by source, and scratch in chunks with the sizes of the input."""
    count, blocks = case.count, case.blocks
    edges, own = _edges(blocks), blocks[me]
    out = tuple((count + index * own, count + (index + 1) * own) for index in range(len(ranks)))
    spare = max(chunks - 2 * len(ranks), 0)
    more = [blocks[index % len(blocks)] for index in range(spare)]
    after = count + own * len(ranks)
    scratch = tuple((after + low, after + high) for low, high in _edges(more))
    return Layout(
        size=after + sum(more),
        parts=(*edges, *out, *scratch),
        inputs=(Segment(0, count, ranks[me], 0),),
        outputs=tuple(Segment(out[index][0], own, rank, edges[me][0]) for index, rank in enumerate(ranks)),
    )


def _edges(blocks: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple(itertools.pairwise(itertools.accumulate(blocks, initial=0)))
