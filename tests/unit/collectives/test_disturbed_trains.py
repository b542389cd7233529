"""The link probe on a machine that stops senders and receivers now and then: no rate is wrong, no slow direction is hidden."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from orchestrator.collectives.rank import link_fit, link_probe
from orchestrator.collectives.views import directions as link_directions

from .simulated_wire import Wire

RATE = 100e6
WIRE = link_fit.least_beta(RATE)
FABRIC = link_probe.Fabric(nodes=range(4), rate=RATE)
Ends = tuple[int, int]
SEEDS = range(8)


def expected(ends: Ends, part: float, slow_end: int) -> float:
    """Node 1 has ``part`` of the rate, out (``slow_end`` 0) or in (1)."""
    return WIRE / (part if ends[slow_end] == 1 else 1.0)


def probed(seed: int, part: float, *, is_shaped: bool = True) -> Iterator[tuple[Ends, link_fit.Beta]]:
    """All directions, with as many trains as the probe makes: six, and more where a direction of a shaped link is known roughly."""
    draw = random.Random(seed)
    for ends in itertools.permutations(range(4), 2):
        wire = Wire(beta=expected(ends, part, seed % 2), runs_s=0.03, stops_s=0.004)
        direction = link_probe.Direction(train=wire.train, is_shaped=is_shaped, round_trips=[1e-4])
        direction.arrivals += [wire.arrivals(draw) for _ in range(link_probe.LEAST_PASSES)]
        while is_shaped and link_probe.rough_peers(ends[0], FABRIC, {ends[1]: direction}):
            assert len(direction.arrivals) < link_probe.LEAST_PASSES + link_probe.MOST_PASSES
            direction.arrivals.append(wire.arrivals(draw))
        yield ends, link_probe.betas(ends[0], FABRIC, {ends[1]: direction})[ends[1]]


def named(betas: dict[Ends, link_fit.Beta]) -> set[Ends]:
    every = [
        link_directions.Direction(sender=a, receiver=b, alpha_s=1e-5, beta=beta.value, interval=beta.interval)
        for (a, b), beta in betas.items()
    ]
    return {(direction.sender, direction.receiver) for direction in link_directions.slow(every)}


@pytest.mark.parametrize("part", [1.0, 0.97, 0.95, 0.5])
def test_every_rate_is_within_two_percent_and_exactly_the_slow_directions_are_named(part: float) -> None:
    for seed in SEEDS:
        betas = dict(probed(seed, part))
        for ends, beta in betas.items():
            truth = expected(ends, part, seed % 2)
            assert beta.value == pytest.approx(truth, rel=0.02), (seed, ends)
            assert beta.value is not None and beta.value >= max(0.995 * truth, WIRE), (
                "no rate is higher than the link has"
            )
        assert named(betas) == {ends for ends in betas if part < 1 and ends[seed % 2] == 1}, seed


def test_six_trains_whose_interruptions_count_do_not_do() -> None:
    """The control: the same disturbances move the median of a few directions by more than 2 %, or hide a slow one."""
    off = hidden = 0
    for seed in SEEDS:
        betas = dict(probed(seed, 0.97, is_shaped=False))
        off += sum(
            beta.value is None or abs(beta.value / expected(ends, 0.97, seed % 2) - 1) > 0.02
            for ends, beta in betas.items()
        )
        hidden += named(betas) != {ends for ends in betas if ends[seed % 2] == 1}
    assert off or hidden
