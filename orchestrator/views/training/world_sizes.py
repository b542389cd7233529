"""The number of ranks that led to a state: sums over another number of ranks have other last bits, and other shares of the data."""

from __future__ import annotations

from .attempts import Attempt
from .resumption import Lineage, Step

#: (step, ranks): from that step on the job had so many ranks.
Sizes = tuple[tuple[Step, int], ...]


def have_same(lines: Lineage, first: Attempt, second: Attempt, step: Step) -> bool:
    """Whether the same numbers of ranks led to ``step`` in both attempts. Both began from a known step."""
    return _until(lines, first, step) == _until(lines, second, step)


def changes(lines: Lineage) -> Sizes:
    """Those after the first on the kept lineage: after which step it had how many ranks."""
    known = [attempt for attempt in lines.attempts if attempt.index in lines.bases]
    return _sizes(lines, known[-1])[1:] if known else ()


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
