"""A step moves as many bytes through its collectives as the strategy's formula says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .. import views
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
    gang = next((one for one in reversed(views.gangs(run.history)) if one.complete("traffic")), None)
    if gang is None:
        doubts = [views.found("no gang of which every rank told what a step moved"), *doubts]
        return views.conclude("traffic-as-predicted", "", doubts=doubts)
    told = gang.by_rank("traffic")
    first = next(iter(told.values()))
    predicted = _sizes(first.value.get("predicted"))
    measured: Counter[str] = Counter()
    for event in told.values():
        measured.update(
            {name: views.whole(size) or 0 for name, size in views.mapping(event.value.get("measured")).items()}
        )
    failures = list(_apart(measured, predicted))
    each = ", ".join(f"{name} {size / len(told):,.0f} bytes" for name, size in sorted(measured.items()))
    text = f"{each} per rank and step, as predicted"
    return views.conclude("traffic-as-predicted", text, failures=failures, doubts=doubts)


def _sizes(told: object) -> dict[str, int]:
    return {name: views.whole(size) or 0 for name, size in views.mapping(told).items()}


def _apart(measured: Mapping[str, int], predicted: Mapping[str, int]) -> Iterator[views.Finding]:
    for name in sorted({*measured, *predicted}):
        found, wanted = measured.get(name, 0), predicted.get(name, 0)
        if found != wanted:
            yield views.found(f"{name}: {found:,} bytes in a step of all ranks, predicted were {wanted:,}")
