"""The types of fields of payloads, with their ranges: the border to the files checks them, readers rely on them."""

from __future__ import annotations

from typing import Annotated

from ..frozen import dataclass

#: Ranks of a run, and steps of one attempt, at most: readers walk through both.
RANKS = 65_536
STEPS = 10_000_000
#: Ranks x steps of a measurement of collectives, at most: readers hold a table of that size.
TABLE = 10_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """The values that a number may have: at least ``ge``, at most ``le``, less than ``lt``."""

    ge: float | None = None
    le: float | None = None
    lt: float | None = None


Rank = Annotated[int, Range(ge=0, lt=RANKS)]
Ranks = Annotated[int, Range(ge=0, le=RANKS)]
Step = Annotated[int, Range(ge=0, le=STEPS)]
Stride = Annotated[int, Range(ge=1, le=STEPS)]
Attempt = Annotated[int, Range(ge=0, le=STEPS)]
Port = Annotated[int, Range(ge=0, lt=65_536)]
Count = Annotated[int, Range(ge=0)]
Whole = Annotated[int, Range(ge=-(2**31), lt=2**32)]
Seconds = Annotated[float, Range(ge=-(10.0**11), le=10.0**11)]
#: A number, or its ``float.hex`` (also nan and inf).
Figure = float | str
