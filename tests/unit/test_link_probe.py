"""How the link probe spends its time, and how round trips become one-way times."""

from __future__ import annotations

import pytest

from orchestrator.rank import probe

TOKEN = 200e-6
SLOW, FAST = 8 / 95.7e6, 8 / 20e9


def spent(plan: list[tuple[int, int]], per_byte: float, drain: int = 0) -> float:
    return sum((times + 1) * (TOKEN + per_byte * (size + drain)) for size, times in plan)


def test_a_fast_link_is_measured_at_every_size() -> None:
    plan = probe.repetitions(TOKEN, FAST, 0, 0.5)
    assert [size for size, _ in plan] == list(probe.SIZES[1:])
    assert all(probe.LEAST <= times <= probe.MOST for _, times in plan)


@pytest.mark.parametrize("left", [0.25, 0.5, 2.0])
def test_a_slow_link_leaves_out_what_would_take_too_long(left: float) -> None:
    plan = probe.repetitions(TOKEN, SLOW, 0, left)
    assert spent(plan, SLOW) <= 1.3 * left and len(plan) >= 3 and plan[-1][0] >= 1 << 16


def test_what_a_bucket_could_hold_is_not_measured_and_three_sizes_always_are() -> None:
    drain = 81920
    plan = probe.repetitions(TOKEN, SLOW, drain, 0.01)
    assert [size for size, _ in plan] == [1 << 10, 1 << 18, 1 << 19]
    assert all(times == probe.LEAST for _, times in plan[1:])


def test_half_of_what_a_round_trip_of_nothing_takes_is_alpha() -> None:
    alpha = 50e-6
    trips = [(size, 2 * alpha + SLOW * size, 9) for size in probe.SIZES]
    found, one_way = probe.line(trips)
    assert found.alpha == pytest.approx(alpha) and found.beta == pytest.approx(SLOW)
    assert [seconds for _, seconds, _ in one_way] == pytest.approx([alpha + SLOW * size for size in probe.SIZES])
    assert [(size, times) for size, _, times in one_way] == [(size, 9) for size in probe.SIZES]
