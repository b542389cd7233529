"""Runs side by side: two of them by their iterations and steps, or two groups of repeated runs by one figure of each run."""

from __future__ import annotations

from .groups import LEVEL as GROUP_LEVEL
from .groups import Figure, Grouped, Groups, compare_figures, compare_groups
from .run_pairs import FLOOR, LEVEL, OVER, REPEAT, Compared, Comparison, compare, of_samples
