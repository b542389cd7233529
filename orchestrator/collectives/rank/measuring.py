"""Parameters of how collectives are measured, for all workloads, and when a case is known precisely enough. Without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from ...model import ratio
from ...model.bed import LinkSpec
from ...model.frozen import dataclass

#: What percentiles are over: chunk transfers; or per iteration the slowest rank, the mean of the ranks, last end - first start.
OVER = ("chunk", "max_rank", "mean_rank", "cct")
#: ``drain``: by the links of the bed.
BY_LINK = -1
#: Bytes that an untimed transfer sends in addition to the size of a bucket, for packets in flight.
BEYOND = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """Parameters of every measurement.

    warmup         untimed iterations before each case; at least one runs, so that every connection of the algorithm is warm
    over           what percentiles are over: chunk | max_rank | mean_rank | cct (first start to last end)
    verify         compare every result with the expected one and with those of the other ranks
    drain          bytes of an untimed transfer before each timed iteration, which empties the bucket of a shaped link; -1: by the link
    probe          first measure alpha and beta of the links, in both directions of all pairs
    probe_s        approximate duration of the probe in seconds; slow links and many ranks need longer, and up to as long again
                   goes to shaped links that a busy machine left known only roughly
    auto_s         seconds per case in which algorithm auto measures, in the warm-up, the algorithms that its cost model cannot tell
                   apart; 0: the model alone decides
    fresh_probe    measure the links even if the probe of an earlier run on the same nodes and links is confirmed
    record         record every chunk transfer
    precision      such as 2%: a case has as many iterations, at least 12 and at most 100 times iterations, as make the interval
                   of 95 % of its median narrower than that share of it; empty: as many as iterations says
    precision_s    about how many seconds a precision may take for each size, with all of its algorithms
    """

    warmup: int = 5
    over: str = "cct"
    verify: bool = True
    drain: int = BY_LINK
    probe: bool = True
    probe_s: float = 3.0
    fresh_probe: bool = False
    auto_s: float = 2.0
    record: bool = True
    precision: str = ""
    precision_s: float = 30.0


def drain(setting: int, link: LinkSpec | None) -> int:
    """The bytes that empty the buckets of ``link``, unless the user sets a number."""
    if setting != BY_LINK:
        return setting
    bucket = max(link.burst if link.rate else 0, link.uplink_burst if link.uplink else 0) if link else 0
    return bucket + BEYOND if bucket else 0


def problems(params: Measuring, *, auto: bool) -> Iterator[str]:
    """Problems with the values, each as ``name: what must be (got …)``. ``auto``: the cost model chooses."""
    if params.warmup < 0:
        yield f"warmup: must be >= 0 (got {params.warmup})"
    if params.over not in OVER:
        yield f"over: must be one of {', '.join(OVER)} (got {params.over!r})"
    if params.drain < BY_LINK:
        yield f"drain: must be >= 0 bytes, or -1 (got {params.drain})"
    for name in ("probe_s", "precision_s"):
        if not 0 < getattr(params, name) < math.inf:
            yield f"{name}: must be > 0 and finite (got {getattr(params, name):g})"
    if not 0 <= params.auto_s < math.inf:
        yield f"auto_s: must be >= 0 and finite (got {params.auto_s:g})"
    yield from _precision_problems(params)
    if auto and not params.probe:
        yield "probe: algorithm auto needs the probe (got false)"
    if params.over == "chunk" and not params.record:
        yield "record: over chunk needs the record of every chunk (got false)"


def _precision_problems(params: Measuring) -> Iterator[str]:
    try:
        if not 0 <= parse(params.precision) < 1:
            yield f"precision: must be below 100 % (got {params.precision})"
    except ValueError:
        yield f"precision: must be a share such as 2% (got {params.precision!r})"


#: No case stops before so many iterations.
LEAST = 12
#: The interval is computed again when there are so many times as many iterations: frequent checks would stop by chance.
GROWTH = 1.3
#: With a precision a case may have so many times the iterations that the user set.
MOST_TIMES = 100


def is_within(median: ratio.Interval | None, share: float) -> bool:
    """Return whether the interval is narrower than this share of the median."""
    return median is not None and median.high - median.low < share * median.value


def most_iterations(iterations: int, share: str) -> int:
    """The iterations that are planned; those that the precision does not need are left out."""
    return iterations * MOST_TIMES if share and iterations > 0 else iterations


def check_counts(iterations: int) -> frozenset[int]:
    """The numbers of iterations after which the interval is computed."""
    made, count = set(), LEAST
    while count < iterations:
        made.add(count)
        count = math.ceil(count * GROWTH)
    return frozenset(made)


def is_reached(medians: Iterable[ratio.Interval | None], share: float) -> bool:
    """Return whether all cases that alternate can stop."""
    return all(is_within(median, share) for median in medians)


def parse(text: str) -> float:
    """A share from ``2%`` or ``0.02``; 0: all iterations run. Raises ValueError."""
    number = float(text.strip().removesuffix("%").rstrip() or "0")
    return number / 100 if text.strip().endswith("%") else number
