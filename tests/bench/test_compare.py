"""Pairs of simulated runs of a collective: a link that is 5 % slower is found, equal runs are not called changed."""

from __future__ import annotations

from pathlib import Path

from orchestrator.model.run import Run
from orchestrator.views import comparison

from ..unit import collective_runs, simulated

OUT = Path(__file__).parent / "out"
PAIRS, ITERATIONS, SIZES = 100, 30, (131_072, 971_048)


def measured(seed: int, slow: float = 1.0) -> Run:
    """An all-reduce by a ring of 4 in two sizes, with 5 % of noise; the link from 1 to 2 has ``slow`` of the rate."""
    parts = [
        collective_runs.Part(
            operation="all-reduce", algorithm="ring", bytes=size, iterations=ITERATIONS,
            gang=simulated.Gang(
                schedules=simulated.ring(4, size), seed=seed, noise=0.05, slow={(1, 2): slow} if slow < 1 else {}
            ),
        )
        for size in SIZES
    ]  # fmt: skip
    return collective_runs.run(parts)


def test_a_slower_link_is_found_and_equal_runs_are_equal() -> None:
    hits = wrong = 0
    for number in range(PAIRS):
        before, same, slower = measured(3 * number), measured(3 * number + 1), measured(3 * number + 2, 0.95)
        wrong += any(row.verdict in ("slower", "faster") for row in comparison.compare(before, same).rows)
        hits += any(row.verdict == "slower" for row in comparison.compare(before, slower).rows)
    text = (
        f"# Comparison of {ITERATIONS} iterations, simulated\n\nOf {PAIRS} pairs with one link 5 % slower {hits} found; "
        f"of {PAIRS} equal pairs {wrong} called changed.\n"
    )
    OUT.mkdir(exist_ok=True)
    (OUT / "compare.md").write_text(text)
    print(text)
    assert hits >= 95
    assert wrong <= 1
