"""How long the trains of the link probe are, what it agrees on, and what it writes."""

from __future__ import annotations

import pytest

from orchestrator.collectives.rank import link_fit, link_probe, measuring
from orchestrator.model.bed import LinkSpec
from orchestrator.model.events import LinkFit, LinkPair

SLOW, FAST = 8 / 95.7e6, 8 / 20e9


@pytest.mark.parametrize("beta", [8 / 1e6, SLOW, 8 / 957e6, FAST, 8 / 400e9])
@pytest.mark.parametrize("drain", [0, 48 * 1024, 266_384])
def test_a_train_is_as_long_as_the_link_needs(beta: float, drain: int) -> None:
    train = link_probe.plan(beta, drain)
    assert link_probe.LEAST_BYTES <= train.size <= link_probe.MOST_BYTES
    assert link_probe.LEAST <= train.count <= link_probe.MOST
    assert train.lead >= max(drain, train.size), "it empties the bucket before the first arrival that counts"
    if train.size > link_probe.LEAST_BYTES:
        assert train.size * beta <= link_probe.MESSAGE_S


def test_there_are_as_many_passes_as_the_time_allows_and_enough_for_an_interval() -> None:
    assert link_probe.passes(3.0, 0.1) == 29 or link_probe.passes(3.0, 0.1) == 30
    assert link_probe.passes(0.1, 0.5) == link_fit.LEAST_TRAINS
    assert link_probe.passes(1e9, 1e-9) == link_probe.MOST_PASSES


def test_a_direction_has_the_shortest_round_trip_and_the_median_arrivals() -> None:
    direction = link_probe.Direction(train=link_probe.Train(size=1000, count=2, lead=0))
    direction.round_trips += [4e-4, 1e-4, 9e-3]
    direction.arrivals += [[0.0, 0.010, 0.020], [0.0, 0.011, 0.020], [0.0, 0.010, 0.090]]
    assert direction.alpha == 5e-5
    assert direction.samples == ((4, 5e-5, 3), (1000, 0.010, 3), (2000, 0.020, 3))
    assert direction.slopes[:2] == pytest.approx([1e-5, 1e-5], rel=0.1)


def test_behind_uplinks_the_beta_is_that_of_the_ports() -> None:
    fits = {
        (a, b): link_fit.Fit(1e-5, 1e-8 if (a < 2) == (b < 2) else 4e-8) for a in range(4) for b in range(4) if a != b
    }
    assert link_probe.combine(fits) == link_fit.Fit(1e-5, 4e-8)
    assert link_probe.combine(fits, (0, 0, 1, 1)) == link_fit.Fit(1e-5, 1e-8)


def test_the_line_of_all_is_that_of_links_and_of_memory_only_on_one_node() -> None:
    assert link_probe.over_links((0, 0, 1)) == [(0, 2), (1, 2), (2, 0), (2, 1)]
    assert link_probe.over_links((0, 0)) == [(0, 1), (1, 0)]


def test_a_direction_without_a_beta_is_not_in_the_line_of_all() -> None:
    fits = {(0, 1): link_fit.Fit(1e-5, 1e-8), (1, 0): link_fit.Fit(1e-5, 0.0)}
    assert link_probe.combine(fits) == link_fit.Fit(1e-5, 1e-8)
    assert link_probe.combine({(1, 0): link_fit.Fit(1e-5, 0.0)}) is None


def trains(*betas: float) -> link_probe.Direction:
    direction = link_probe.Direction(train=link_probe.Train(size=1000, count=2, lead=0), round_trips=[1e-4])
    direction.arrivals += [[0.0, 1000 * beta, 2000 * beta] for beta in betas]
    return direction


def test_pairs_between_nodes_are_measured_again_if_a_direction_is_known_roughly() -> None:
    fabric = link_probe.Fabric(nodes=(0, 0, 1, 1), rate=8 / SLOW)
    directions = {
        1: trains(*[SLOW / 90, SLOW] * 3),
        2: trains(*[1.1 * SLOW] * 6),
        3: trains(*[1.1 * SLOW] * 5, 1.2 * SLOW),
    }
    assert link_probe.rough_peers(0, fabric, directions) == [3]
    more = {**directions, 3: trains(*[1.1 * SLOW] * 11, 1.2 * SLOW)}
    assert link_probe.rough_peers(0, fabric, more) == [], "with twelve trains the interval leaves one out on each side"
    few = {2: trains(*[1.1 * SLOW] * 5)}
    assert link_probe.rough_peers(0, fabric, few) == [2], "without an interval nothing is known"


def test_between_ranks_of_one_node_no_link_bounds_the_rate() -> None:
    fabric = link_probe.Fabric(nodes=(0, 0, 1), rate=8 / SLOW)
    assert [fabric.link_rate(0, peer) for peer in (1, 2)] == [0.0, fabric.rate]
    betas = link_probe.betas(0, fabric, {1: trains(*[SLOW / 90] * 6), 2: trains(*[SLOW / 90] * 6)})
    assert betas[1].value == pytest.approx(SLOW / 90) and not betas[1].reason
    assert betas[2].value is None and betas[2].reason == "faster than the link carries"


def test_the_record_has_every_train_and_the_reason_why_a_beta_is_not_known() -> None:
    direction = link_probe.Direction(train=link_probe.Train(size=1000, count=2, lead=0), round_trips=[1e-4])
    direction.arrivals += [[0.0, 0.010, 0.020]]
    betas = {1: link_fit.Beta(value=None, interval=(1e-6, 2e-6), reason="faster than the link carries")}
    notes: list[LinkPair | LinkFit] = []
    link = link_probe.Link(agreed=None, directions={peer: (direction, beta) for peer, beta in betas.items()})
    link_probe.report(link, 0, notes.append)
    (pair,) = notes
    assert isinstance(pair, LinkPair) and pair.beta_s_per_byte is None and pair.interval == (1e-6, 2e-6)
    assert pair.reason == "faster than the link carries" and pair.trains == pytest.approx((1e-5,))


def test_the_bucket_fills_up_before_each_train() -> None:
    link = LinkSpec(rate=100_000_000, burst=32768)
    assert measuring.drain(measuring.BY_LINK, link) == 49152
