"""Schedules played on ports that share their rate: known times, the formulas of all algorithms, and schedules that do not fit."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from orchestrator.collectives.rank import algorithm_choice, expected_cost, link_fit, simulation
from orchestrator.model.schedule import LARGE, OPERATIONS, Recv, Schedule, Send, Step
from orchestrator.rank.exchange import cases

N = 4 * 27720 * 16
BETA = 8 / 145e6


def played(schedules: Sequence[Schedule], size: float = 1000.0, **fabric: object) -> simulation.Moment:
    """One chunk of ``size`` bytes; a byte takes 1 ms, a start-up a second, unless ``fabric`` says otherwise."""
    peers = range(len(schedules))
    programs = [
        simulation.Program(rank=rank, peers=peers, schedule=schedule, sizes=[size])
        for rank, schedule in enumerate(schedules)
    ]
    return simulation.play(programs, simulation.Fabric(**({"alpha": 1.0, "beta": 0.001} | fabric)))  # type: ignore[arg-type]


def send(*peers: int) -> Step:
    return Step(sends=tuple(Send(peer, (0,)) for peer in peers))


def receive(*peers: int, reduce: bool = False, in_turn: bool = False) -> Step:
    return Step(recvs=tuple(Recv(peer, (0,), reduce, in_turn) for peer in peers))


def test_a_message_takes_a_start_up_and_its_bytes() -> None:
    end = played([(send(1),), (receive(0),)])
    assert (end.seconds, end.startups) == (2.0, 1)


def test_messages_through_one_port_share_it() -> None:
    assert played([(send(2),), (send(2),), (receive(0, 1),)]).seconds == pytest.approx(3.0)
    assert played([(send(1, 2),), (receive(0),), (receive(0),)]).seconds == pytest.approx(3.0)


def test_a_port_sends_and_receives_at_the_same_time() -> None:
    both = (Step(sends=(Send(1, (0,)),), recvs=(Recv(1, (0,), reduce=True),)),)
    other = (Step(sends=(Send(0, (0,)),), recvs=(Recv(0, (0,), reduce=True),)),)
    assert played([both, other]).seconds == pytest.approx(2.0)


def test_what_one_flow_cannot_use_another_gets() -> None:
    """The uplink gives each of two flows a third of a port; the third flow into the same port gets the rest."""
    schedules: list[Schedule] = [(send(3),), (send(3),), (send(3),), (receive(0, 1, 2),)]
    slow = played(schedules, alpha=0.0, leaves=(0, 0, 1, 1), uplink=0.002)
    assert slow.seconds == pytest.approx(4.0), "two messages of 1000 bytes through an uplink of 500 bytes/s"


def test_a_receive_that_is_posted_late_costs_a_start_up() -> None:
    early = [(send(1), send(2)), (receive(0), send(2)), (receive(0), receive(1))]
    late = [(send(1), send(2)), (receive(0), send(2)), (receive(1, in_turn=True), receive(0, in_turn=True))]
    assert played(late, size=LARGE, beta=1e-9).startups > played(early, beta=1e-9).startups


@pytest.mark.parametrize(("size", "in_turn", "seconds"), [(LARGE, True, 2), (LARGE, False, 3), (LARGE - 1, True, 3)])
def test_large_messages_are_sent_in_turn(size: int, in_turn: bool, seconds: int) -> None:
    """Rank 1 passes on what it has after the first message of rank 0, or after both, which share a port."""
    first = dataclasses.replace(send(1, 2), in_turn=in_turn)
    schedules: list[Schedule] = [(first,), (receive(0), send(3)), (receive(0),), (receive(1),)]
    assert played(schedules, size=size, beta=1 / size, alpha=0.0).seconds == pytest.approx(seconds)


def test_what_follows_a_message_that_came_early_is_posted_at_once() -> None:
    late = (receive(2), Step(recvs=(Recv(1, (0,), reduce=True), Recv(2, (0,), reduce=True, in_turn=True))))
    end = played([late, (send(0), send(2)), (receive(1), send(0), send(0))], size=LARGE, beta=1 / LARGE, alpha=0.0)
    assert end.seconds == pytest.approx(4.0)


def test_combining_takes_time() -> None:
    schedules: list[Schedule] = [(send(1),), (receive(0, reduce=True),)]
    assert played(schedules, gamma=0.001).seconds == pytest.approx(3.0)


def test_schedules_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="wait for each other"):
        played([(receive(1), send(1)), (receive(0), send(0))])
    with pytest.raises(ValueError, match="does not send"):
        played([(), (receive(0),)])


@pytest.mark.parametrize("world", [2, 3, 4, 5, 6, 7, 8, 11])
def test_the_volume_is_that_of_the_formula(world: int) -> None:
    """The formula is the cross-check. Trees with segments may end up to 4 % earlier than their longest path."""
    for operation in OPERATIONS:
        for algorithm in algorithm_choice.able(operation, world):
            [case] = cases.cases([cases.Item(operation=operation, bytes=N)], world)
            formula = algorithm.cost(operation, world)
            cost = expected_cost.cost(case, algorithm, None, link_fit.Fit(0.0, BETA))
            assert cost.volume == pytest.approx(formula.volume, rel=0.04, abs=1e-4), (operation, algorithm.name)


def test_start_ups_are_those_of_the_formula_and_of_late_receives() -> None:
    """A receive that waits for its turn costs a handshake: at most one for each message on the path."""
    for operation in OPERATIONS:
        for algorithm in algorithm_choice.able(operation, 8):
            [case] = cases.cases([cases.Item(operation=operation, bytes=N)], 8)
            cost = expected_cost.cost(case, algorithm, None, link_fit.Fit(1.0, 1e-12))
            assert 1 <= cost.rounds <= 2 * algorithm.cost(operation, 8).rounds, (operation, algorithm.name)


@pytest.mark.parametrize(("name", "volume"), [("recursive-doubling", 4.0), ("halving-doubling", 3.5)])
def test_ranks_that_fold_are_not_overtaken(name: str, volume: float) -> None:
    """If receives were posted early, ranks that are ahead would share the port of one that folds: 5 n and 4.25 n."""
    algorithm = algorithm_choice.find(name)
    assert algorithm is not None
    for is_early in (False, True):
        programs = [
            simulation.Program(
                rank=rank,
                peers=range(5),
                schedule=_early(schedule) if is_early else schedule,
                sizes=[1e6 / algorithm.chunks("all-reduce", 5)] * algorithm.chunks("all-reduce", 5),
            )
            for rank in range(5)
            for schedule in [algorithm.schedule("all-reduce", rank, 5)]
        ]
        end = simulation.play(programs, simulation.Fabric(alpha=0.0, beta=1e-6)).seconds
        assert end > volume * 1.15 if is_early else end == pytest.approx(volume)


def _early(schedule: Schedule) -> Schedule:
    return tuple(
        dataclasses.replace(step, recvs=tuple(dataclasses.replace(recv, in_turn=False) for recv in step.recvs))
        for step in schedule
    )
