"""Pair sweeps: how often exactly the slow parts are named.

CCBED_BENCH_SWEEPS (default 100) says how many; CCBED_BENCH_SEED is the first seed. The rows are printed and written to out/sweeps.md.
"""

from __future__ import annotations

import functools
import os
from collections import Counter

import pytest

from orchestrator.nightly import classes
from orchestrator.nightly.statistics import pair_sweeps

from . import table
from .pair_sweeps import sweep

SWEEPS = int(os.environ.get("CCBED_BENCH_SWEEPS", "100"))
SEED = int(os.environ.get("CCBED_BENCH_SEED", "9000000"))


report = functools.partial(table.report, "sweeps.md")


@pytest.mark.bench
@pytest.mark.timeout(36_000)
@pytest.mark.parametrize(
    ("size", "reach"), [(0.0, "none named"), (0.05, "none"), (0.075, "none"), (0.1, "95 %"), (0.15, "none"), (0.2, "99 %")]
)  # fmt: skip
def test_culprits(size: float, reach: str) -> None:
    """Right: the parts that are named, and no others. By the number of slow parts."""
    right, total, undecided = Counter[int](), Counter[int](), 0
    for seed in range(SEED, SEED + SWEEPS):
        case = sweep(seed, size or 0.1, defects=None if size else 0)
        result = pair_sweeps.solve(case.rates, case.nodes, classes.of("link beta", classes.read()), case.groups)
        total[len(case.truth)] += 1
        right[len(case.truth)] += {(culprit.kind, culprit.parts) for culprit in result.culprits} == case.truth
        undecided += bool(result.alternatives)
    by_number = ", ".join(f"{right[count] / total[count]:.1%} with {count} slow" for count in sorted(total))
    report(
        f"| pair sweeps at {size:.1%}: exactly the slow parts | {right.total() / SWEEPS:.1%} ({by_number}; "
        f"{undecided} cannot tell) | {reach} | "
        f"{SWEEPS} sweeps from seed {SEED} |"
    )
    assert right
