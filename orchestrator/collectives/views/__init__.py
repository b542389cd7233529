"""Collectives measured: cases and links, samples as arrays, statistics, and where delays were. numpy is loaded on demand."""

from ...views.statistics import DEFINITION, ENOUGH_FOR_P99, Spread
from .bounds import Bound, least_bytes, lower_bound
from .directions import Direction
from .experiment import Auto, Case, Link, Setting, factor, setting
from .fastest import Fastest
from .measurements import OUTLIER, OVER, Measured, Row, Slow, SlowChunk, measured
from .phrases import shares
from .replay_gaps import ReplayGap, ReplayGaps, replay_gaps
