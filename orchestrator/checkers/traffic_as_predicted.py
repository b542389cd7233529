"""A step moves as many bytes through its collectives as the strategy's formula says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from .. import views
from ..model.event import Event
from ..model.events import Traffic
from ..model.run import Run
from ..model.verdict import Verdict

ALWAYS = False
TWIN = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Params:
    """Nothing to choose."""


def check(run: Run, params: Params) -> Verdict:
    """By what every rank of the last gang that did a step counted in its first one, summed over the ranks."""
    doubts = [*views.unended(run.history)]
    gang = next((one for one in reversed(views.gangs(run.history)) if one.complete(Traffic)), None)
    if gang is None:
        doubts = [views.found("no gang of which every rank told what a step moved"), *doubts]
        return views.conclude("traffic-as-predicted", "", doubts=doubts)
    told = gang.by_rank(Traffic)
    first = next(iter(told.values()))
    measured, once = _sum(told.values(), "measured"), _sum(told.values(), "once")
    failures = [
        *_apart(measured, _sizes(first.data.predicted), "in a step of all ranks"),
        *_apart(once, _sizes(first.data.once_predicted), "of all ranks before the first step"),
    ]
    before = f"{_each(once, len(told))} per rank once, " if once else ""
    text = f"{before}{_each(measured, len(told))} per rank and step, as predicted"
    return views.conclude("traffic-as-predicted", text, failures=failures, doubts=doubts)


def _sum(told: Iterable[Event[Traffic]], name: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for event in told:
        found.update(_sizes(getattr(event.data, name)))
    return found


def _each(sizes: Mapping[str, int], ranks: int) -> str:
    return ", ".join(f"{name} {size / ranks:,.0f} bytes" for name, size in sorted(sizes.items()))


def _sizes(told: object) -> dict[str, int]:
    return {name: views.whole(size) or 0 for name, size in views.mapping(told).items()}


def _apart(measured: Mapping[str, int], predicted: Mapping[str, int], where: str) -> Iterator[views.Finding]:
    for name in sorted({*measured, *predicted}):
        found, wanted = measured.get(name, 0), predicted.get(name, 0)
        if found != wanted:
            yield views.found(f"{name}: {found:,} bytes {where}, predicted were {wanted:,}")
