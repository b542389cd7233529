"""A step moves as many bytes through its collectives as the strategy's formula says."""

from __future__ import annotations

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
    """By what rank 0 counted in its first step of every gang, operation by operation."""
    told = run.history.of("traffic")
    failures, texts = [], []
    for event in told:
        measured, predicted = views.mapping(event.value.get("measured")), views.mapping(event.value.get("predicted"))
        texts = [f"{operation} {size:,} bytes" for operation, size in measured.items()]
        failures += [
            views.found(
                f"{operation}: {measured.get(operation, 0):,} bytes in a step, predicted were {predicted.get(operation, 0):,}",
                event,
            )
            for operation in sorted({*measured, *predicted})
            if measured.get(operation, 0) != predicted.get(operation, 0)
        ]
    doubts = [] if told else [views.found("no rank told what a step moved"), *views.unended(run.history)]
    text = f"{', '.join(texts)} in a step, as predicted"
    return views.conclude("traffic-as-predicted", text, failures=failures, doubts=doubts)
