"""Counts of errors, drops and the like: zero on a healthy node, so that ratios have no meaning. More of them than ever is a warning."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from ..gates.finding import Finding
from ..gates.nights import Metric, Record
from ..levels import Level

GATE = "counter"
#: Up to this multiple of its greatest count a node is in its usual range: events come in bursts.
USUAL = 2.0


def judge(
    metric: Metric, label: str, values: Sequence[float], past: Sequence[Record], references: Sequence[Record],
    levels: Iterable[Level], minimum: float = 0.0,
) -> Finding | None:  # fmt: skip
    """A warning on each night with more than is usual, until its level is accepted. None where it is not, or no earlier night says what is.

    ``references``: the records of nodes that are usual for others: a count that most of them have had is usual.
    """
    known = [value for value in values if math.isfinite(value)]
    begin = max((level.night for level in levels if level.covers(label, metric.name)), default=0)
    own = [record for record in past if record.node == label and record.night >= begin]
    if metric.better != "lower" or not known or not own:
        return None
    usual, nights = _greatest(own[0]), sorted({record.night for record in own})
    for record in own:
        usual = max(usual, _greatest(record)) if _greatest(record) <= USUAL * usual else usual
    others: dict[str, float] = {}
    for record in references:
        if record.node != label:
            others[record.node] = max(others.get(record.node, 0.0), _greatest(record))
    limit = USUAL * max(usual, statistics.median_low(others.values()) if others else 0.0)
    if max(known) <= limit or max(known) - usual < minimum:
        return None
    count = f"{len(nights)} earlier nights" if len(nights) > 1 else "the earlier night"
    text = f"{metric.name} is {max(known):g} {metric.unit}; it was {usual:g} at most on {count}; the limit is {limit:g}"
    return Finding(
        gate=GATE, outcome="warn", metric=metric.name, node=label, text=f"{label}: {text}" if label else text
    )


def _greatest(record: Record) -> float:
    return max((value for value in record.values if math.isfinite(value)), default=0.0)
