"""A step moves as many bytes through its collectives as the strategy's formula says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from .. import views
from ..model import events
from ..model.plugin import NoParams as Params
from ..model.run import Run
from ..model.verdict import Verdict


def check(run: Run, params: Params) -> Verdict:
    """Judge by the bytes that the ranks of the last gang counted in their first step, summed over the ranks."""
    doubts = [*views.not_ended(run.history)]
    gang = next((gang for gang in reversed(views.gangs(run.history)) if gang.is_complete(events.Traffic)), None)
    if gang is None:
        doubts = [views.finding("no worker group has a traffic report of every rank"), *doubts]
        return views.conclude("traffic-as-predicted", "", doubts=doubts)
    reports = [event.data for event in gang.by_rank(events.Traffic).values()]
    measured, once = _sum(report.measured for report in reports), _sum(report.once for report in reports)
    failures = [
        *_differences(measured, _sum([reports[0].predicted]), "in a step of all ranks"),
        *_differences(once, _sum([reports[0].once_predicted]), "of all ranks before the first step"),
    ]
    before = f"{_per_rank(once, len(reports))} per rank once, " if once else ""
    text = f"{before}{_per_rank(measured, len(reports))} per rank and step, as predicted"
    return views.conclude("traffic-as-predicted", text, failures=failures, doubts=doubts)


def _sum(reports: Iterable[Mapping[str, float | str] | None]) -> Counter[str]:
    """Bytes by operation, whole numbers."""
    total: Counter[str] = Counter()
    for sizes in reports:
        total.update({name: views.whole(size) or 0 for name, size in (sizes or {}).items()})
    return total


def _per_rank(sizes: Mapping[str, int], ranks: int) -> str:
    return ", ".join(f"{name} {size / ranks:,.0f} bytes" for name, size in sorted(sizes.items()))


def _differences(measured: Mapping[str, int], predicted: Mapping[str, int], where: str) -> Iterator[views.Finding]:
    for name in sorted({*measured, *predicted}):
        size, expected = measured.get(name, 0), predicted.get(name, 0)
        if size != expected:
            yield views.finding(f"{name}: {size:,} bytes {where}, predicted were {expected:,}")
