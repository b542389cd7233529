"""Chunk files against the steps that they belong to: whole records, none lost, equally many in steps that are alike."""

from __future__ import annotations

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field

from ..model.event import History
from ..model.events import CollectivePlan
from ..model.run import NodeFiles
from .findings import Finding, found

#: Bytes of a record (``bundle.json`` names the format); the first four are the number of its step.
RECORD = 36
_WORDS = RECORD // 4
#: A rank of an epoch.
Place = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """What a rank of one epoch says of itself. ``steps``: those that it did; ``written``: records, None where it does not say.

    ``finished``: nothing cut it short; of a rank that was killed the last step's records may be missing.
    """

    path: str
    steps: Set[int]
    finished: bool
    written: int | None


@dataclass(slots=True)
class _File:
    """``counts``: step -> its records; ``odd``: step -> (its records, those of steps that are like it)."""

    left: Left
    counts: Counter[int]
    odd: dict[int, tuple[int, int]] = field(default_factory=dict)


def damage(files: NodeFiles, history: History, left: Mapping[Place, Left]) -> Iterator[Finding]:
    """What tells that a chunk file is not what its rank wrote. Every file is read once."""
    cases = _cases(history)
    read: dict[int, list[_File]] = defaultdict(list)
    for _, rank, epoch, content in files.chunk_blocks():
        if (epoch, rank) in left:
            one = _File(left[epoch, rank], _steps(content))
            yield from _whole(one, len(content))
            _compare(one, cases)
            read[epoch].append(one)
    for alike in read.values():
        own = set() if cases else _common(alike)
        for one in alike:
            yield from _uneven(one, own)


def _steps(content: bytes) -> Counter[int]:
    words = array("I")
    words.frombytes(content[: len(content) - len(content) % RECORD])
    if sys.byteorder == "big":
        words.byteswap()
    return Counter(words[::_WORDS])


def _whole(one: _File, size: int) -> Iterator[Finding]:
    left, total = one.left, sum(one.counts.values())
    if size % RECORD and left.finished:
        yield found(f"{left.path}: {size:,} bytes are not whole records of {RECORD}")
    if left.written is not None and total != left.written:
        yield found(f"{left.path}: {total:,} of {left.written:,} transfers recorded")
    strays = sorted(step for step in one.counts if step and step not in left.steps)
    if strays:
        more = f" and of {len(strays) - 1:,} more" if len(strays) > 1 else ""
        yield found(f"{left.path} has {one.counts[strays[0]]:,} records of step {strays[0]}{more}, which were not done")


def _compare(one: _File, cases: Mapping[int, int]) -> None:
    """Steps are alike if they belong to one case; in a training all are."""
    last = max(one.left.steps, default=0)
    groups: dict[int, list[int]] = defaultdict(list)
    for step in one.left.steps:
        if one.left.finished or step != last:
            groups[cases.get(step, -1)].append(step)
    for steps in groups.values():
        usual = Counter(one.counts[step] for step in steps).most_common(1)[0][0]
        one.odd |= {step: (one.counts[step], usual) for step in steps if one.counts[step] != usual}


def _common(files: Iterable[_File]) -> set[int]:
    """Steps in which every rank has other records than usual: the workload's own doing, such as buckets arranged anew."""
    odd = [set(one.odd) for one in files if one.counts]
    return set.intersection(*odd) if len(odd) > 1 else set()


def _uneven(one: _File, own: Set[int]) -> Iterator[Finding]:
    odd = sorted(set(one.odd) - own)
    if odd:
        count, usual = one.odd[odd[0]]
        more = f" ({len(odd) - 1:,} more such steps)" if len(odd) > 1 else ""
        yield found(f"{one.left.path}: {count:,} of {usual:,} transfers of step {odd[0]} recorded{more}")


def _cases(history: History) -> dict[int, int]:
    """Step -> its case, of a run that measures collectives; empty in a training."""
    told = history.last(CollectivePlan)
    found: dict[int, int] = {}
    for number, case in enumerate((told.data.cases if told else None) or ()):
        first, count, stride = case.first_step, case.iterations, case.stride
        if first is not None and count:
            found |= dict.fromkeys(range(first, first + count * (stride or 1), stride or 1), number)
    return found
