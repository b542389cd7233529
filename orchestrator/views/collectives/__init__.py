"""Collectives measured: cases and links, samples as arrays, statistics, and who was late. numpy is loaded on demand."""

from .blame import Blame
from .bounds import Bound, least_bytes, lower_bound
from .fastest import Fastest
from .habits import Latest, SlowLink
from .measured import OUTLIER, OVER, Measured, Row, Slow, SlowChunk, measured
from .setting import Auto, Case, Link, Pair, Setting, factor, setting
from .statistics import DEFINITION, ENOUGH_FOR_P99, Interval, Spread, change
from .wording import shares

__all__ = [
    "DEFINITION",
    "ENOUGH_FOR_P99",
    "OUTLIER",
    "OVER",
    "Auto",
    "Blame",
    "Bound",
    "Case",
    "Fastest",
    "Interval",
    "Latest",
    "Link",
    "Measured",
    "Pair",
    "Row",
    "Setting",
    "Slow",
    "SlowChunk",
    "SlowLink",
    "Spread",
    "change",
    "factor",
    "least_bytes",
    "lower_bound",
    "measured",
    "setting",
    "shares",
]
