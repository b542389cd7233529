"""Chunk files against the steps of their ranks: whole records, none lost, equally many in comparable steps."""

from __future__ import annotations

import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Set

from ..model import events
from ..model.event import History
from ..model.frozen import dataclass, field
from ..model.run import NodeFiles
from .findings import Finding, finding

#: Bytes of a record (``bundle.json`` names the format); the first four are the number of its step.
RECORD = 36
_WORDS = RECORD // 4
#: (attempt, rank)
RankOfAttempt = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """The report of a rank of one attempt. ``steps``: the steps that it did; ``written``: its records, None if not known.

    ``finished``: it ended by itself; a rank that was killed may lack records of its last step.
    """

    path: str
    steps: Set[int]
    finished: bool
    written: int | None


@dataclass(slots=True)
class _File:
    """``counts``: step -> its records; ``odd``: step -> (its records, those of comparable steps)."""

    report: RankReport
    counts: Counter[int]
    odd: dict[int, tuple[int, int]] = field(default_factory=dict)


def damage(files: NodeFiles, history: History, reports: Mapping[RankOfAttempt, RankReport]) -> Iterator[Finding]:
    """Differences between chunk files and the reports of their ranks. Every file is read once."""
    cases = _cases(history)
    read: dict[int, list[_File]] = defaultdict(list)
    for _, rank, epoch, content in files.chunk_blocks():
        if (epoch, rank) in reports:
            file = _File(reports[epoch, rank], _steps(content))
            yield from _whole(file, len(content))
            _compare(file, cases)
            read[epoch].append(file)
    for files_of_epoch in read.values():
        shared = set() if cases else _common(files_of_epoch)
        for file in files_of_epoch:
            yield from _uneven(file, shared)


def _steps(content: bytes) -> Counter[int]:
    words = array("I")
    words.frombytes(content[: len(content) - len(content) % RECORD])
    if sys.byteorder == "big":
        words.byteswap()
    return Counter(words[::_WORDS])


def _whole(file: _File, size: int) -> Iterator[Finding]:
    report, total = file.report, sum(file.counts.values())
    if size % RECORD and report.finished:
        yield finding(f"{report.path}: {size:,} bytes are not whole records of {RECORD}")
    if report.written is not None and total != report.written:
        yield finding(f"{report.path}: {total:,} of {report.written:,} transfers recorded")
    strays = sorted(step for step in file.counts if step and step not in report.steps)
    if strays:
        more = f" and of {len(strays) - 1:,} more" if len(strays) > 1 else ""
        yield finding(
            f"{report.path} has {file.counts[strays[0]]:,} records of step {strays[0]}{more}, which the rank did not do"
        )


def _compare(file: _File, cases: Mapping[int, int]) -> None:
    """Steps are comparable if they belong to one case; in a training all are."""
    last = max(file.report.steps, default=0)
    groups: dict[int, list[int]] = defaultdict(list)
    for step in file.report.steps:
        if file.report.finished or step != last:
            groups[cases.get(step, -1)].append(step)
    for steps in groups.values():
        usual = Counter(file.counts[step] for step in steps).most_common(1)[0][0]
        file.odd |= {step: (file.counts[step], usual) for step in steps if file.counts[step] != usual}


def _common(files: Iterable[_File]) -> set[int]:
    """Steps in which every rank has other records than usual: the workload caused that, for example with new buckets."""
    odd = [set(file.odd) for file in files if file.counts]
    return set.intersection(*odd) if len(odd) > 1 else set()


def _uneven(file: _File, shared: Set[int]) -> Iterator[Finding]:
    odd = sorted(set(file.odd) - shared)
    if odd:
        count, usual = file.odd[odd[0]]
        more = f" ({len(odd) - 1:,} more such steps)" if len(odd) > 1 else ""
        yield finding(f"{file.report.path}: {count:,} of {usual:,} transfers of step {odd[0]} recorded{more}")


def _cases(history: History) -> dict[int, int]:
    """Step -> its case, of a run that measures collectives; empty in a training."""
    plan = history.last(events.CollectivePlan)
    cases: dict[int, int] = {}
    for number, case in enumerate((plan.data.cases or ()) if plan else ()):
        first, count, stride = case.first_step, case.iterations, case.stride or 1
        if first is not None and count:
            cases |= dict.fromkeys(range(first, first + count * stride, stride), number)
    return cases
