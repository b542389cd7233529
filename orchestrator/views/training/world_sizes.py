"""The number of ranks that led to a state: sums over another number of ranks have other last bits, and other shares of the data."""

from __future__ import annotations

from .attempts import Attempt
from .resumption import Lineage, Step

#: (step, ranks): from that step on the job had so many ranks.
Sizes = tuple[tuple[Step, int | None], ...]


def have_same(lines: Lineage, first: Attempt, second: Attempt, step: Step) -> bool:
    """Whether the same numbers of ranks led to ``step`` in both attempts. Both began from a known step."""
    return _until(lines, first, step) == _until(lines, second, step)


def first_change(lines: Lineage) -> Step | None:
    """The step after which the kept lineage had another number of ranks than at first; None if it never had."""
    known = [attempt for attempt in lines.attempts if attempt.index in lines.bases]
    sizes = _sizes(lines, known[-1]) if known else ()
    return sizes[1][0] if len(sizes) > 1 else None


def _until(lines: Lineage, attempt: Attempt, step: Step) -> Sizes:
    return tuple(size for size in _sizes(lines, attempt) if size[0] < step)


def _sizes(lines: Lineage, attempt: Attempt) -> Sizes:
    sizes: Sizes = ()
    for item in (*lines.earlier(attempt), attempt):
        base = lines.bases.get(item.index)
        if base is None:
            continue
        sizes = tuple(size for size in sizes if size[0] < base)
        if not sizes or sizes[-1][1] != item.world:
            sizes += ((base, item.world),)
    return sizes
