"""How the link probe spends its time, and how round trips become one-way times."""

from __future__ import annotations

import pytest

from orchestrator.rank.collective import link_fit, link_probe

TOKEN = 200e-6
SLOW, FAST = 8 / 95.7e6, 8 / 20e9


def spent(plan: list[tuple[int, int]], per_byte: float, drain: int = 0) -> float:
    return sum((times + 1) * (TOKEN + per_byte * (size + drain)) for size, times in plan)


def test_a_fast_link_is_measured_at_every_size() -> None:
    plan = link_probe.repetitions(TOKEN, FAST, 0, 0.5)
    assert [size for size, _ in plan] == list(link_probe.SIZES[1:])
    assert all(link_probe.LEAST <= times <= link_probe.MOST for _, times in plan)


@pytest.mark.parametrize("left", [0.25, 0.5, 2.0])
def test_a_slow_link_leaves_out_what_would_take_too_long(left: float) -> None:
    plan = link_probe.repetitions(TOKEN, SLOW, 0, left)
    assert spent(plan, SLOW) <= 1.3 * left and len(plan) >= 3 and plan[-1][0] >= 1 << 16


def test_what_a_bucket_could_hold_is_not_measured_and_three_sizes_always_are() -> None:
    drain = 81920
    plan = link_probe.repetitions(TOKEN, SLOW, drain, 0.01)
    assert [size for size, _ in plan] == [1 << 10, 1 << 18, 1 << 19]
    assert all(times == link_probe.LEAST for _, times in plan[1:])


@pytest.mark.parametrize("drain", [0, 48 * 1024, 266_384, 391_384, 2_500_000, 64 * 1024**2])
def test_there_are_three_sizes_beyond_every_bucket(drain: int) -> None:
    beyond = [size for size in link_probe.sizes(drain) if size >= link_probe.SMALL]
    assert len(beyond) >= 3 and min(beyond) >= drain and max(beyond) >= 2 * min(beyond)
    assert min(beyond) >= 3 * drain or drain > 5 * 1024**2


def test_half_of_what_a_round_trip_of_nothing_takes_is_alpha() -> None:
    alpha = 50e-6
    trips = [(size, 2 * alpha + SLOW * size, 9) for size in link_probe.SIZES]
    result, one_way = link_probe.line(trips)
    assert result.alpha == pytest.approx(alpha) and result.beta == pytest.approx(SLOW)
    assert [seconds for _, seconds, _ in one_way] == pytest.approx([alpha + SLOW * size for size in link_probe.SIZES])
    assert [(size, times) for size, _, times in one_way] == [(size, 9) for size in link_probe.SIZES]


def test_many_pairs_are_probed_side_by_side_where_they_share_nothing() -> None:
    assert [len(link_fit.turns(world)) for world in (2, 4, 5, 8)] == [1, 6, 5, 7]
    assert len(link_fit.turns(8, flat=False)) == 28
    assert all(len({rank for pair in turn for rank in pair}) == 8 for turn in link_fit.turns(8))


def test_a_pair_has_its_time_however_many_there_are() -> None:
    assert link_probe.turn_s(3.0, 6) == 0.5 and link_probe.turn_s(3.0, 28) == link_probe.PAIR_S
    assert link_probe.turn_s(0.1, 28) == 0.1


def test_a_pair_that_was_disturbed_is_unsure() -> None:
    quiet = [(size, 50e-6 + SLOW * size, 9) for size in link_probe.SIZES]
    result = link_fit.Fit(50e-6, SLOW, 1.0)
    assert link_probe.PairFit(line=result, samples=quiet, spread=0.1).sure
    assert not link_probe.PairFit(line=result, samples=quiet, spread=2.0).sure
    busy = [(size, seconds * (3 if place % 2 else 1), times) for place, (size, seconds, times) in enumerate(quiet)]
    assert not link_probe.PairFit(line=link_fit.Fit(50e-6, 3 * SLOW, 0.5), samples=busy, spread=0.1).sure
    assert link_probe.spread([1.0, 2.0, 2.0, 2.0, 9.0]) == 0.0 and link_probe.spread([1.0, 1.0, 2.0, 4.0, 4.0]) == 1.5


def test_unsure_pairs_are_left_out_unless_all_are() -> None:
    fits = {
        (0, 1): link_fit.Fit(1e-5, 1e-9, 1.0),
        (0, 2): link_fit.Fit(1e-5, 2e-9, 1.0),
        (1, 2): link_fit.Fit(9e-4, 2e-7, 0.1),
    }
    link = link_probe.combine(fits, ((1, 2),), {})
    assert link.worst == (0, 2, 2e-9) and link.agreed.beta == pytest.approx(1.5e-9) and link.unsure == ((1, 2),)
    assert link_probe.combine(fits, tuple(fits), {}).worst == (1, 2, 2e-7)


def test_behind_uplinks_the_beta_is_that_of_the_ports_and_the_worst_pair_is_of_all() -> None:
    fits = {
        (a, b): link_fit.Fit(1e-5, 1e-8 if (a < 2) == (b < 2) else 4e-8, 1.0) for a in range(4) for b in range(a + 1, 4)
    }
    assert link_probe.combine(fits, (), {}).agreed.beta == 4e-8
    tiers = link_probe.combine(fits, (), {}, (0, 0, 1, 1))
    assert (tiers.agreed.alpha, tiers.agreed.beta, tiers.worst[2]) == (1e-5, 1e-8, 4e-8)
    assert link_probe.combine(fits, ((0, 1), (2, 3)), {}, (0, 0, 1, 1)).agreed.beta == 4e-8, (
        "no sure pair is behind one uplink"
    )
