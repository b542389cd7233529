"""The time per byte of a direction by its trains of messages, and the choice of `auto` by the line."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from orchestrator.collectives.rank import algorithm_choice, expected_cost, link_fit
from orchestrator.rank.exchange import cases

RATE = 100e6
WIRE = 8 / RATE * link_fit.FRAME / link_fit.PAYLOAD
ALPHA, BETA = 50e-6, 8 / 95.7e6
SIZE, COUNT = 16384, 22

Delay = Callable[[random.Random, int], float]


def quiet(draw: random.Random, number: int) -> float:
    return 0.0


def noise(draw: random.Random, number: int) -> float:
    return draw.uniform(0, 1e-4)


def late_receiver(draw: random.Random, number: int) -> float:
    """One arrival in five is noticed up to 5 ms late."""
    return draw.uniform(0, 5e-3) if draw.random() < 0.2 else noise(draw, number)


def train(delay: Delay, beta: float = WIRE, seed: int = 0, packet: int = 1) -> list[tuple[int, float]]:
    """Arrivals over a link that delivers packets of ``packet`` bytes; a receiver that is late finds later ones as well."""
    draw = random.Random(seed)
    times = [-(-number * SIZE // packet) * packet * beta + delay(draw, number) for number in range(COUNT + 1)]
    times = list(itertools.accumulate(times, max))
    return [(number * SIZE, seconds - times[0]) for number, seconds in enumerate(times)]


def slopes(delay: Delay, beta: float = WIRE, trains: int = 8, packet: int = 1) -> list[float]:
    return [link_fit.slope(train(delay, beta, seed, packet)) for seed in range(trains)]


@pytest.mark.parametrize("delay", [quiet, noise, late_receiver])
@pytest.mark.parametrize("packet", [1, 20480])
def test_beta_is_within_two_percent_whatever_delays_the_receiver(delay: Delay, packet: int) -> None:
    result = link_fit.beta(slopes(delay, packet=packet), RATE)
    assert result.value == pytest.approx(WIRE, rel=0.02) and not result.reason


def test_trains_that_stood_still_on_the_wire_do_not_move_beta_but_widen_its_interval() -> None:
    def stall(draw: random.Random, number: int) -> float:
        return 0.01 * number

    disturbed = link_fit.slope(train(stall))
    assert disturbed > 1.2 * WIRE, "the control: such a train shows another rate"
    result = link_fit.beta([*slopes(noise, trains=7), disturbed], RATE)
    assert result.value == pytest.approx(WIRE, rel=0.01)
    assert result.interval and result.interval[1] == pytest.approx(disturbed)


def stopped(*after: int, stop_s: float = 0.01) -> list[tuple[int, float]]:
    """A train whose sender stopped for so long after these messages."""
    return [(size, seconds + sum(stop_s for stop in after if size > stop * SIZE)) for size, seconds in train(noise)]


@pytest.mark.parametrize("stop_s", [0.05, 0.1, 1.0])
@pytest.mark.parametrize("after", [7, 11])
def test_an_interruption_longer_than_the_train_does_not_count(after: int, stop_s: float) -> None:
    train = stopped(after, stop_s=stop_s)
    assert link_fit.slope(train, is_shaped=True) == pytest.approx(WIRE, rel=0.01)


@pytest.mark.parametrize("stops", [(11,), (7, 15), (5, 11, 17)])
def test_interruptions_of_a_train_do_not_count_on_a_shaped_link(stops: tuple[int, ...]) -> None:
    assert link_fit.slope(stopped(*stops)) > 1.2 * WIRE, "the control: all arrivals show another rate"
    assert link_fit.slope(stopped(*stops), is_shaped=True) == pytest.approx(WIRE, rel=0.01)


@pytest.mark.parametrize("stops", [(), tuple(range(1, COUNT, 2))])
def test_of_a_train_that_has_no_interruption_or_little_else_all_arrivals_count(stops: tuple[int, ...]) -> None:
    arrivals = stopped(*stops)
    assert link_fit.slope(arrivals, is_shaped=True) == link_fit.slope(arrivals)


def test_a_receiver_that_was_stopped_notes_several_messages_at_once() -> None:
    late = [(size, max(seconds, 0.02) if size > 9 * SIZE else seconds) for size, seconds in train(noise)]
    assert link_fit.slope(late, is_shaped=True) == pytest.approx(WIRE, rel=0.01)


def test_a_link_that_is_five_percent_slower_has_another_interval() -> None:
    fast, slow = (link_fit.beta(slopes(noise, beta), RATE) for beta in (WIRE, 1.05 * WIRE))
    assert fast.interval and slow.interval and slow.interval[0] > fast.interval[1]
    assert slow.value == pytest.approx(1.05 * WIRE, rel=0.01)


def test_no_beta_is_faster_than_the_wire() -> None:
    result = link_fit.beta(slopes(noise, 0.5 * WIRE), RATE)
    assert result.value is None and result.reason == "faster than the link carries"
    assert result.interval and result.interval[1] < WIRE
    assert link_fit.beta([0.995 * WIRE] * 8, RATE).value == WIRE
    assert link_fit.beta(slopes(noise, 0.5 * WIRE)).value == pytest.approx(0.5 * WIRE, rel=0.01), "no rate is known"


def test_few_trains_give_a_beta_without_an_interval() -> None:
    result = link_fit.beta([1.1 * WIRE] * (link_fit.LEAST_TRAINS - 1), RATE)
    assert result.value == pytest.approx(1.1 * WIRE) and result.interval is None
    assert result.reason == "5 trains of messages give no interval; it needs 6"


@pytest.mark.parametrize(("count", "dropped"), [(6, 0), (9, 0), (12, 1), (20, 3)])
def test_the_interval_of_a_median_leaves_out_as_many_values_as_its_confidence_allows(count: int, dropped: int) -> None:
    assert link_fit.median_interval(range(count)) == (dropped, count - 1 - dropped)


def test_the_interval_contains_the_median_as_often_as_it_says() -> None:
    draw = random.Random(7)
    intervals = [link_fit.median_interval([draw.expovariate(1) for _ in range(12)]) for _ in range(2000)]
    held = sum(1 for interval in intervals if interval and interval[0] <= 0.6931 <= interval[1])
    assert 0.98 < held / 2000 < 1.0


@pytest.mark.parametrize("world", range(2, 12))
def test_every_pair_is_probed_once_and_no_rank_is_in_two_pairs_at_a_time(world: int) -> None:
    rounds = link_fit.rounds(world)
    assert sorted(pair for turn in rounds for pair in turn) == list(itertools.combinations(range(world), 2))
    assert all(len({rank for pair in turn for rank in pair}) == 2 * len(turn) for turn in rounds)
    assert sorted(pair for turn in link_fit.turns(range(world)) for pair in turn) == sorted(
        pair for turn in rounds for pair in turn
    )


def test_pairs_that_share_a_node_are_never_probed_together() -> None:
    nodes = [rank // 2 for rank in range(12)]
    turns = link_fit.turns(nodes)
    assert sorted(pair for turn in turns for pair in turn) == list(itertools.combinations(range(12), 2))
    for turn in turns:
        ends = [node for pair in turn for node in {nodes[rank] for rank in pair}]
        assert len(ends) == len(set(ends))
    assert any(len(turn) > 1 for turn in turns)


def test_the_agreed_line_is_the_median_of_the_directions() -> None:
    fits = [link_fit.Fit(1, 10), link_fit.Fit(2, 20), link_fit.Fit(9, 90)]
    assert link_fit.agreed(fits) == link_fit.Fit(2, 20)


def test_auto_takes_what_the_model_expects_to_be_fastest() -> None:
    (case,) = cases.cases([cases.Item(operation="all-reduce", bytes=1 << 20, algorithm="auto")], 4)
    among = list(algorithm_choice.candidates(case))
    result = algorithm_choice.choose(case, among, link_fit.Fit(ALPHA, BETA))
    link = link_fit.Fit(ALPHA, BETA)
    costs = {
        algorithm.name: expected_cost.cost(case, algorithm, None, link).seconds(1 << 20, ALPHA, BETA)
        for algorithm in among
    }
    assert "ring" in costs and result.seconds == costs
    assert result.name == next(iter(result.seconds)) and costs[result.name] <= min(costs.values()) * (1 + 1e-5)
    assert "latency 50.0 us" in result.why and "ms" in result.why


def test_auto_says_how_far_the_others_are_and_never_goes_by_the_alphabet() -> None:
    """Bidirectional ring comes first by name and within 3 %; halving-doubling has the fewest start-ups of the three."""
    (case,) = cases.cases([cases.Item(operation="all-reduce", bytes=1 << 20, algorithm="auto")], 4)
    names = ("ring", "halving-doubling", "bidirectional-ring")
    among = [algorithm for algorithm in algorithm_choice.candidates(case) if algorithm.name in names]
    alphas = [1e-6 * (1 + step / 50) for step in range(-5, 6)]
    result = [algorithm_choice.choose(case, among, link_fit.Fit(alpha, BETA)) for alpha in alphas]
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
    assert "ring" in algorithm_choice.names() and "library" not in algorithm_choice.names()
    for name in algorithm_choice.names():
        result = algorithm_choice.find(name)
        assert result is not None and result.name == name
    assert algorithm_choice.find("library") is None
    with pytest.raises(ValueError, match="unknown algorithm rong; known: "):
        algorithm_choice.find("rong")
