"""Double binary tree: two trees at once, each for half of the buffer; inner ranks of one are leaves of the other.

About 2L a + 2 n b in segments: a sum to both roots, then a broadcast from them. With k segments per tree, each of the two takes
2k + d slots of a + (n/2k) b, where d < 2L is due to the depth of the trees. The edges of both trees have two colours: a rank
alternates between its two parents when it receives, and between its two children when it sends; even and odd slots.
Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Comput. 35 (2009);
the trees are those of NCCL 2.4 (Jeaugey, 2019).
"""

from __future__ import annotations

import functools

from ..model import schedule as model
from ..model.frozen import dataclass

OPERATIONS = ("all-reduce",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """``segments``: number of pieces into which each half of the buffer is cut."""

    segments: int = 16

    def __post_init__(self) -> None:
        if self.segments < 1:
            raise ValueError(f"segments: must be >= 1 (got {self.segments})")


#: An edge: (tree, parent, child).
Edge = tuple[int, int, int]


def chunks(operation: str, world: int, params: Params) -> int:
    """The segments of both halves."""
    del operation, world
    return 2 * params.segments


def schedule(operation: str, rank: int, world: int, params: Params) -> model.Schedule:
    """The sum is the reverse of the broadcast. Slots without messages of the rank are left out."""
    del operation
    slots = _slots(rank, world, params.segments)
    last = _length(world, params.segments) - 1
    inwards = [_step(slots.get(last - slot, ()), rank, params.segments, up=True) for slot in range(last + 1)]
    outwards = [_step(slots.get(slot, ()), rank, params.segments, up=False) for slot in range(last + 1)]
    return tuple(step for step in (*inwards, *outwards) if step.sends or step.recvs)


def cost(operation: str, world: int, params: Params) -> model.Cost:
    """The slots, each with one message of a segment."""
    del operation
    slots = 2 * _length(world, params.segments)
    return model.Cost(slots, slots / (2 * params.segments))


def _length(world: int, segments: int) -> int:
    """Slots of one broadcast."""
    first = _first(world)
    return _period(world) * (segments - 1) + max(first.values()) + 1 if first else 0


def _period(world: int) -> int:
    """Slots between two segments: one per colour."""
    return len(set(_colours(world).values()))


def _slots(rank: int, world: int, segments: int) -> dict[int, list[tuple[Edge, int]]]:
    """The edges of ``rank`` that carry a segment in each slot of the broadcast."""
    slots: dict[int, list[tuple[Edge, int]]] = {}
    period = _period(world)
    for edge, at in _first(world).items():
        for segment in range(segments) if rank in edge[1:] else ():
            slots.setdefault(at + period * segment, []).append((edge, segment))
    return slots


def _step(carried: list[tuple[Edge, int]] | tuple[()], rank: int, segments: int, up: bool) -> model.Step:
    sends, recvs = [], []
    for (tree, parent, child), segment in carried:
        source, target = (child, parent) if up else (parent, child)
        chunk = (tree * segments + segment,)
        if source == rank:
            sends.append(model.Send(target, chunk))
        else:
            recvs.append(model.Recv(source, chunk, reduce=up))
    return model.Step(tuple(sends), tuple(recvs))


@functools.cache
def _first(world: int) -> dict[Edge, int]:
    """The slot of the broadcast in which each edge carries the first segment: the first of its colour after the parent has it."""
    colours = _colours(world)
    has = {(tree, rank): -1 for tree in (0, 1) for rank in range(world) if _parent(tree, rank, world) is None}
    first: dict[Edge, int] = {}
    while len(first) < len(colours):
        for tree, parent, child in colours.keys() - first.keys():
            if (tree, parent) in has:
                at = has[tree, parent] + 1
                first[tree, parent, child] = has[tree, child] = at + (at + colours[tree, parent, child]) % 2
    begin = min(first.values(), default=0)
    return {edge: at - begin for edge, at in first.items()}


@functools.cache
def _colours(world: int) -> dict[Edge, int]:
    """Colours 0 and 1: the two edges to the parents of a rank differ, and so do those to the children of a rank.

    Edges between the same two ranks in both trees have the same colour where that is possible: in one slot both ranks send,
    while in two slots the word that one is ready waits behind its own segment (4 ranks: 1.14 times the time).
    """
    parents = {(tree, rank): _parent(tree, rank, world) for tree in (0, 1) for rank in range(world)}
    edges = [(tree, parent, child) for (tree, child), parent in parents.items() if parent is not None]
    colours: dict[Edge, int] = {}
    for edge in edges:
        if edge not in colours:
            connected = _alternating(edge, edges)
            equal = [colours[reverse] == colour for (tree, parent, child), colour in connected.items()
                     if (reverse := (1 - tree, child, parent)) in colours]  # fmt: skip
            flip = 2 * sum(equal) < len(equal)
            colours |= {other: colour ^ flip for other, colour in connected.items()}
    return colours


def _alternating(edge: Edge, edges: list[Edge]) -> dict[Edge, int]:
    """The colours of all edges that depend on that of ``edge``, which is 0."""
    colours: dict[Edge, int] = {}
    open_ = [(edge, 0)]
    while open_:
        current, colour = open_.pop()
        if current not in colours:
            colours[current] = colour
            open_ += [(other, 1 - colour) for other in edges if _share_rank(current, other)]
    return colours


def _share_rank(edge: Edge, other: Edge) -> bool:
    return edge != other and (edge[1] == other[1] or edge[2] == other[2])


def _parent(tree: int, rank: int, world: int) -> int | None:
    """Return the parent of a rank. In tree 0 odd ranks are leaves; tree 1 is its mirror image, or shifted by one where the world is odd."""
    if tree == 0:
        return _inner(rank, world)
    turned = world - 1 - rank if world % 2 == 0 else (rank - 1) % world
    parent = _inner(turned, world)
    if parent is None:
        return None
    return world - 1 - parent if world % 2 == 0 else (parent + 1) % world


def _inner(rank: int, world: int) -> int | None:
    """The parent in the binary tree whose nodes in order are the ranks; 0 is the root."""
    if rank == 0:
        return None
    bit = rank & -rank
    above = (rank ^ bit) | (bit << 1)
    return above if above < world else rank ^ bit
