"""Figures of events with their ranges, and the values of the events of collectives."""

from __future__ import annotations

from typing import Annotated, Any, TypedDict

from msgspec import Meta

#: Ranks of a run, and steps of one attempt, at most: readers walk through both.
RANKS = 65_536
STEPS = 10_000_000
#: Ranks x steps of a measurement of collectives, at most: readers hold a table of that size.
TABLE = 10_000_000

Rank = Annotated[int, Meta(ge=0, lt=RANKS)]
Step = Annotated[int, Meta(ge=0, le=STEPS)]
Attempt = Annotated[int, Meta(ge=0, le=STEPS)]
Count = Annotated[int, Meta(ge=0)]
Whole = Annotated[int, Meta(ge=-(2**31), lt=2**32)]
Seconds = Annotated[float, Meta(ge=-(10.0**11), le=10.0**11)]
#: A figure, or one as ``float.hex`` (also nan and inf).
Figure = float | str | None


class Case(TypedDict, total=False):
    case: Step
    operation: str
    algorithm: str
    dtype: str
    operator: str
    bytes: Count
    per_rank: Count
    total: Count
    count: Count
    root: Rank
    groups: list[list[Rank]]
    first_step: Step
    stride: Annotated[int, Meta(ge=1, le=STEPS)]
    iterations: Step
    cost: dict[str, Figure] | None
    gap_ms: Seconds
    port_bytes: Count
    uplink_bytes: Count
    shares: list[float]


class CollectivePlan(TypedDict, total=False):
    cases: list[Case]
    over: str
    warmup: Count
    world: Annotated[int, Meta(ge=0, le=RANKS)]
    verify: bool
    bandwidth: str


class OfCase(TypedDict, total=False):
    rank: Rank
    case: Step
    step: Step


class LinkPair(TypedDict, total=False):
    rank: Rank
    peer: Rank
    alpha_s: Seconds | None
    beta_s_per_byte: Seconds | None
    r2: float | None
    samples: list[Any]
