"""The line through probed times, and what `auto` makes of it."""

from __future__ import annotations

import itertools

import pytest

from orchestrator.rank.collective import algorithm_choice, cases, expected_cost, known_algorithms, link_fit

SIZES = (4, 1024, 16384, 65536, 262144, 1048576)
ALPHA, BETA = 50e-6, 8 / 95.7e6


def points(alpha: float = ALPHA, beta: float = BETA) -> list[tuple[int, float]]:
    return [(size, alpha + beta * size) for size in SIZES]


def test_alpha_and_beta_are_found_again() -> None:
    result = link_fit.line(points())
    assert result.alpha == pytest.approx(ALPHA) and result.beta == pytest.approx(BETA) and result.r2 == pytest.approx(1)


@pytest.mark.parametrize("place", range(len(SIZES)))
def test_one_size_measured_while_the_machine_was_busy_moves_nothing(place: int) -> None:
    given = points()
    given[place] = (given[place][0], given[place][1] * 5)
    result = link_fit.line(given)
    assert result.alpha == pytest.approx(ALPHA, rel=0.01) and result.beta == pytest.approx(BETA, rel=0.01)


def test_small_errors_of_all_sizes_are_weighed_by_their_share() -> None:
    given = [(n, t * factor) for (n, t), factor in zip(points(), itertools.cycle((1.02, 0.98)), strict=False)]
    result = link_fit.line(given)
    assert result.alpha == pytest.approx(ALPHA, rel=0.05) and result.beta == pytest.approx(BETA, rel=0.03)
    assert 0.99 < result.r2 < 1


def test_an_alpha_below_zero_is_none() -> None:
    result = link_fit.line([(n, max(t - 2 * ALPHA, 1e-9)) for n, t in points()][2:])
    assert result.alpha == 0.0 and result.beta == pytest.approx(BETA, rel=0.05)


def test_one_size_is_no_line() -> None:
    with pytest.raises(ValueError, match="two different sizes"):
        link_fit.line([(4, 0.1), (4, 0.2)])


@pytest.mark.parametrize("world", range(2, 12))
def test_every_pair_is_probed_once_and_nobody_twice_at_a_time(world: int) -> None:
    rounds = link_fit.rounds(world)
    assert sorted(pair for turn in rounds for pair in turn) == list(itertools.combinations(range(world), 2))
    assert all(len({rank for pair in turn for rank in pair}) == 2 * len(turn) for turn in rounds)
    assert sorted(pair for turn in link_fit.turns(world) for pair in turn) == sorted(
        pair for turn in rounds for pair in turn
    )


def test_the_agreed_line_is_the_median_of_the_pairs() -> None:
    assert link_fit.agreed(
        [link_fit.Fit(1, 10, 1), link_fit.Fit(2, 20, 0.5), link_fit.Fit(9, 90, 0.9)]
    ) == link_fit.Fit(2, 20, 0.9)


def test_auto_takes_what_the_model_expects_to_be_fastest() -> None:
    (case,) = cases.cases([cases.Item(operation="all-reduce", bytes=1 << 20, algorithm="auto")], 4)
    among = list(algorithm_choice.candidates(case))
    result = algorithm_choice.choose(case, among, link_fit.Fit(ALPHA, BETA, 1.0))
    link = link_fit.Fit(ALPHA, BETA, 1.0)
    costs = {
        algorithm.name: expected_cost.cost(case, algorithm, None, link).seconds(1 << 20, ALPHA, BETA)
        for algorithm in among
    }
    assert "ring" in costs and result.seconds == costs
    assert result.name == next(iter(result.seconds)) and costs[result.name] <= min(costs.values()) * (1 + 1e-5)
    assert "alpha 50.0 us" in result.why and "ms" in result.why


def test_auto_says_how_far_the_others_are_and_never_goes_by_the_alphabet() -> None:
    """Bidirectional ring comes first by name and within 3 %; halving-doubling has the fewest start-ups of the three."""
    (case,) = cases.cases([cases.Item(operation="all-reduce", bytes=1 << 20, algorithm="auto")], 4)
    names = ("ring", "halving-doubling", "bidirectional-ring")
    among = [algorithm for algorithm in algorithm_choice.candidates(case) if algorithm.name in names]
    alphas = [1e-6 * (1 + step / 50) for step in range(-5, 6)]
    result = [algorithm_choice.choose(case, among, link_fit.Fit(alpha, BETA, 1.0)) for alpha in alphas]
    assert {entry.name for entry in result} == {"halving-doubling"}, "noise of the probe decides nothing"
    assert "no more than 3% from bidirectional-ring, ring" in result[0].why


def test_auto_leaves_out_what_cannot_do_the_case() -> None:
    (case,) = cases.cases(
        [cases.Item(operation="all-to-all", bytes=4096, algorithm="auto", shares=(0.5, 0.25, 0.25))], 3
    )
    assert all(not algorithm.even("all-to-all") for algorithm in algorithm_choice.candidates(case))
    with pytest.raises(ValueError, match="no algorithm does all-to-all"):
        algorithm_choice.choose(case, [], None)


def test_every_algorithm_that_is_known_is_found_under_its_name() -> None:
    assert "ring" in known_algorithms.names() and "library" not in known_algorithms.names()
    for name in known_algorithms.names():
        result = known_algorithms.find(name)
        assert result is not None and result.name == name
    assert known_algorithms.find("library") is None
    with pytest.raises(ValueError, match="unknown algorithm rong; known: "):
        known_algorithms.find("rong")
