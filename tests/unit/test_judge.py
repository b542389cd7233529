"""The judge of nights on small seeded fleets: what it names, when, and what it leaves alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from orchestrator.nightly.statistics import night_statistics
from tests.bench import nights
from tests.bench.nights import Flags, slide, step

FLEETS = 4


@pytest.mark.parametrize(
    ("nodes", "earlier", "within", "size"),
    [(3, 1, 1, 0.5), (3, 2, 1, 0.2), (4, 5, 2, 0.1), (8, 20, 2, 0.08), (8, 20, 4, 0.05)],
)
def test_a_slow_node_is_named_and_no_other(nodes: int, earlier: int, within: int, size: float) -> None:
    naming = nights.find(7, FLEETS, nodes, earlier, within, step(size, earlier))
    assert naming.named.all() and not naming.others.any()


def test_all_nodes_slower_are_one_finding() -> None:
    naming = nights.find(7, FLEETS, 3, 5, 1, step(0.15, 5, node=None), is_common=True)
    assert naming.failed.all() and not naming.others.any()


def test_a_node_that_is_slow_every_third_night_fails() -> None:
    assert nights.find(7, FLEETS, 3, 5, 4, step(0.2, 5, every=3)).failed.all()


def test_a_slow_slide_is_named() -> None:
    assert nights.find(8, FLEETS, 3, 20, 14, slide(0.003, 20)).named.all()


def test_sound_nodes_do_not_fail() -> None:
    clean = nights.judge_clean(3, 6, 3, 25)
    assert (clean.node_nights, clean.failed) == (450, 0) and clean.warned <= 3


def series(
    *nodes: list[float], again: dict[tuple[int, int], float] | None = None, levels: tuple[int, ...] = (), labels: Sequence[str] = (),
) -> night_statistics.Nights:  # fmt: skip
    """One metric: the slowness of nodes by night in percent, and second measurements by night and node."""
    values = np.array(nodes, dtype=float).T[..., None] / 100
    second, changed = np.full(values.shape, np.nan), np.zeros(values.shape, dtype=bool)
    for place, value in (again or {}).items():
        second[place] = value / 100
    changed[list(levels)] = True
    return night_statistics.Nights(
        values=values, again=second, passes=np.zeros((len(values), 1)), levels=changed, apart=np.zeros(len(nodes), dtype=bool),
        labels=labels or [f"n{node}" for node in range(len(nodes))],
        least=np.array([0.05]), spread=np.array([0.01]), peers=np.array([0.03]), figures=len(nodes),
    )  # fmt: skip


def last(
    *nodes: list[float], again: dict[tuple[int, int], float] | None = None, levels: tuple[int, ...] = ()
) -> night_statistics.Verdict:
    return list(night_statistics.replay(series(*nodes, again=again, levels=levels)))[-1]


def first_of(flags: Flags) -> bool:
    return bool(flags[0, 0])


QUIET = [0.0, 0.5, -0.5, 0.3, -0.3, 0.1]


def test_beyond_the_limit_twice_fails_once_is_flaky_and_without_a_second_one_a_suspect() -> None:
    for second, fails, flaky in ((20.0, True, False), (1.0, False, True), (None, False, True)):
        again = {} if second is None else {(6, 0): second}
        verdict = last([*QUIET, 20.0], again=again)
        flags = [first_of(flag) for flag in (verdict.fails, verdict.flaky, verdict.suspects)]
        assert flags == [fails, flaky, second is None]


def test_flaky_for_a_second_time_within_five_nights_fails() -> None:
    for apart, fails in ((4, True), (5, False)):
        values = [*QUIET, 20.0, *[0.0] * (apart - 1), 20.0]
        again = {(6, 0): 0.0, (6 + apart, 0): 0.0}
        assert first_of(last(values, again=again).fails) is fails


def test_a_failed_night_is_no_reference_and_a_defect_fails_for_ever() -> None:
    values = [*QUIET, *[20.0] * 60]
    verdict = last(values, again={(night, 0): 20.0 for night in range(6, 66)})
    assert first_of(verdict.fails) and verdict.nights[0, 0] == 6
    assert verdict.excess[0, 0] == pytest.approx(0.2, abs=0.005)


def test_only_an_accepted_level_ends_a_failure() -> None:
    values, again = [*QUIET, *[20.0] * 5], {(night, 0): 20.0 for night in range(6, 11)}
    assert first_of(last(values, again=again).fails)
    accepted = last(values, again=again, levels=(7,))
    assert not first_of(accepted.fails) and accepted.excess[0, 0] == pytest.approx(0.0)
    assert first_of(last([*values, 45.0], again={**again, (11, 0): 45.0}, levels=(7,)).fails)


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_a_change_of_all_nodes_that_was_accepted_is_no_failure(nodes: int) -> None:
    values, again = [*QUIET, *[20.0] * 8], {(night, node): 20.0 for night in range(6, 14) for node in range(nodes)}
    before = last(*[values] * nodes, again=again)
    after = last(*[values] * nodes, again=again, levels=(7,))
    assert before.fails.any() or before.fleet_fails.any()
    assert not (after.fails | after.warns).any() and not after.fleet_warns.any()
    assert np.nan_to_num(after.fleet).tolist() == [0.0]


def test_the_reference_is_of_the_first_nights() -> None:
    verdict = last([0.0] * 20 + [2.0] * 30)
    assert (verdict.nights[0, 0], verdict.reference[0, 0]) == (20, 0.0)


def test_two_nodes_that_are_both_worse_are_one_finding() -> None:
    verdict = last([*QUIET, 20.0], [*QUIET, 21.0], again={(6, 0): 20.0, (6, 1): 21.0})
    assert verdict.fleet_fails.all() and not verdict.fails.any()
    alone = last([*QUIET, 20.0], [*QUIET, 0.0], again={(6, 0): 20.0})
    assert not alone.fleet_fails.any() and first_of(alone.fails)


def test_the_first_night_is_judged_by_three_nodes_and_never_fails() -> None:
    odd = last([60.0], [0.0], [1.0])
    assert odd.is_peer.all() and odd.unresolved[:, 0].tolist() == [True, False, False] and not odd.fails.any()
    assert not odd.suspects.any(), "a second measurement decides nothing without an earlier night"
    two = last([60.0], [0.0])
    assert np.isnan(two.excess).all() and not two.is_peer.any()


def test_a_better_node_warns_once_and_fails_when_it_falls_to_the_level_of_the_others() -> None:
    values = [-30.0] * 6 + [0.0]
    verdicts = list(night_statistics.replay(series(values, [0.0] * 7, [0.5] * 7, again={(6, 0): 0.0})))
    assert [first_of(verdict.warns) for verdict in verdicts] == [True, *[False] * 6]
    assert [first_of(verdict.fails) for verdict in verdicts] == [*[False] * 6, True]


@pytest.mark.parametrize(("others", "better"), [(2, -30.0), (4, -30.0), (7, -70.0)])
def test_a_much_better_node_on_a_first_night_warns_however_many_others_there_are(others: int, better: float) -> None:
    assert last([better], *[[0.0]] * others).unresolved[:, 0].tolist() == [True, *[False] * others]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_ranks_of_another_place_in_their_nodes_are_no_equal_parts(nodes: int) -> None:
    labels = [f"n{node}:{rank}" for node in range(nodes) for rank in range(8)]
    usual = [[20.0 * (rank > 3)] for _ in range(nodes) for rank in range(8)]
    sound = list(night_statistics.replay(series(*usual, labels=labels)))[-1]
    assert sound.is_peer.all() and sound.enters.all() and not sound.warns.any()
    slow = list(night_statistics.replay(series(*usual[:-1], [50.0], labels=labels)))[-1]
    assert not slow.warns[:-1].any() and (slow.warns[-1].all() or nodes == 2)


def test_links_that_are_better_for_their_place_are_no_finding() -> None:
    labels = [f"n{a}->n{b}" for a in range(8) for b in range(8) if a != b]
    values = [[-30.0 * (int(label[1]) // 4 == int(label[-1]) // 4)] for label in labels]
    assert not list(night_statistics.replay(series(*values, labels=labels)))[-1].warns.any()


def test_a_missing_value_is_no_verdict_and_takes_no_part() -> None:
    verdict = last([*QUIET, math.nan], [*QUIET, 0.0], [*QUIET, 0.1])
    assert np.isnan(verdict.excess[0, 0]) and not (verdict.fails | verdict.warns | verdict.suspects).any()


def test_a_large_move_within_a_wide_limit_warns() -> None:
    """Few nights of a noisy figure: more than chance for a warning, and less than for a failure."""
    values = [0.0, 30.0, -30.0, 20.0]
    before = last([*values, 0.0])
    middle = float(before.reference[0, 0] + (before.weak + before.limit)[0, 0] / 2) * 100
    verdict = last([*values, middle], again={(4, 0): middle})
    assert first_of(verdict.unresolved) and first_of(verdict.warns) and not first_of(verdict.fails)


def test_a_large_move_never_passes_however_wide_the_limit_is_and_whatever_the_second_measurement_says() -> None:
    """Passes that differ widely make the limit wide: 25 % is more than four times the least change of 5 %."""
    for size, second, warns, suspect in (
        (25.0, None, True, True),
        (25.0, 0.0, True, False),
        (15.0, None, False, False),
    ):
        nights = series([*QUIET, size], again={} if second is None else {(6, 0): second})
        nights.passes[:] = 0.3**2
        verdict = list(night_statistics.replay(nights))[-1]
        assert verdict.limit[0, 0] > 0.5
        assert (first_of(verdict.warns), first_of(verdict.fails), first_of(verdict.suspects)) == (warns, False, suspect)
        assert first_of(verdict.enters) is not warns, "it is no part of the reference either"


def test_a_large_change_of_all_nodes_never_passes() -> None:
    nights = series(*[[*QUIET, 25.0]] * 3)
    nights.passes[:] = 0.3**2
    verdict = list(night_statistics.replay(nights))[-1]
    assert verdict.fleet_warns.all() and not verdict.fleet_fails.any() and not verdict.warns.any()


def test_two_nodes_that_are_both_worse_never_pass_whatever_their_limits_are() -> None:
    """One varies widely, the other not: both are worse than their own limits, and share what the better of them has."""
    varies, steady = [0.0, *[5.0, -5.0] * 9], [*QUIET * 3, 0.0]
    nights = series([*steady, 18.0], [*varies, 21.0], again={(19, 0): 18.0, (19, 1): 21.0})
    verdict = list(night_statistics.replay(nights))[-1]
    assert verdict.weak[0, 0] < 0.18 < verdict.weak[1, 0]
    assert verdict.fleet_warns.all()


@pytest.mark.parametrize("nodes", [4, 6])
def test_half_of_the_nodes_are_named_and_take_nothing_off_as_the_day(nodes: int) -> None:
    half = nodes // 2
    naming = last(*[[*QUIET, 9.0]] * half, *[[*QUIET, 0.0]] * half)
    assert naming.warns[:half].all() and not naming.warns[half:].any() and not naming.fleet_warns.any()
    better = last(*[[*QUIET, 0.0]] * half, *[[*QUIET, -9.0]] * half)
    assert not better.warns.any()


def test_half_of_a_rate_never_passes_in_any_class() -> None:
    history = series([*QUIET[:2], 92.0])  # -60 %
    history.least[:], history.spread[:] = 0.36, 0.15
    *_, verdict = night_statistics.replay(history)
    assert verdict.limit[0, 0] > 0.92 and first_of(verdict.warns)


def test_a_change_is_said_by_the_value() -> None:
    assert night_statistics.percent(math.log(2), "higher") == pytest.approx(-0.5)
    assert night_statistics.percent(math.log(2), "lower") == pytest.approx(1.0)
