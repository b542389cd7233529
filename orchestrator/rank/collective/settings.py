"""How collectives are measured: what the workloads that do it let their users set. Without torch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...model.bed import LinkSpec

#: What a time is over: every chunk transfer; per iteration the slowest rank, the mean of the ranks, or last end - first start.
OVER = ("chunk", "max_rank", "mean_rank", "cct")
#: ``drain``: as much as the links of the bed need.
BY_LINK = -1
#: Bytes that an untimed transfer sends beyond what a bucket holds: packets under way.
BEYOND = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How it is measured.

    warmup         untimed iterations before each case; at least one is made, so that every edge of the algorithm is warm
    over           what percentiles are over: chunk | max_rank | mean_rank | cct (first start to last end)
    verify         every result is compared with what it must be, and with that of the other ranks
    drain          bytes of an untimed transfer before each timed iteration, which empties the bucket of a shaped link; -1: by the link
    probe          ping-pong between all pairs first: the alpha and beta of the models
    probe_s        seconds that the probe takes, about
    record         every chunk transfer is recorded
    """

    warmup: int = 5
    over: str = "cct"
    verify: bool = True
    drain: int = BY_LINK
    probe: bool = True
    probe_s: float = 3.0
    record: bool = True


def drain(asked: int, link: LinkSpec | None) -> int:
    """Bytes that empty the buckets of ``link`` where the user does not say how many."""
    if asked != BY_LINK:
        return asked
    bucket = max(link.burst if link.rate else 0, link.uplink_burst if link.uplink else 0) if link else 0
    return bucket + BEYOND if bucket else 0


def problems(params: Measuring, *, auto: bool) -> Iterator[str]:
    """What is wrong with the values, each as ``name: what must be (got …)``. ``auto``: the cost model has to choose."""
    if params.warmup < 0:
        yield f"warmup: must be >= 0 (got {params.warmup})"
    if params.over not in OVER:
        yield f"over: must be one of {', '.join(OVER)} (got {params.over!r})"
    if params.drain < BY_LINK:
        yield f"drain: must be >= 0 bytes, or -1 (got {params.drain})"
    if not 0 < params.probe_s < math.inf:
        yield f"probe_s: must be > 0 and finite (got {params.probe_s:g})"
    if auto and not params.probe:
        yield "probe: algorithm auto chooses by what the probe finds (got false)"
    if params.over == "chunk" and not params.record:
        yield "record: over chunk needs the record of every chunk (got false)"
