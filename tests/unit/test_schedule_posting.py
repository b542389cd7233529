"""Early receives: nothing is overwritten too soon, and the order per peer is kept."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.algorithms import direct, double_binary_tree, ring
from orchestrator.model.algorithm import Chosen
from orchestrator.model.schedule import LARGE, Recv, Schedule, Send, Step
from orchestrator.rank.exchange import receive_schedule
from tests.contract import algorithms


@pytest.mark.parametrize(("chosen", "operation"), algorithms.cases(algorithms.defaults()), ids=algorithms.named)
def test_nothing_is_posted_twice_late_out_of_order_or_into_what_is_in_use(chosen: Chosen, operation: str) -> None:
    for world in algorithms.worlds(chosen, operation, 9, least=2):
        for schedule in algorithms.schedules(chosen, operation, world, root=algorithms.roots(operation, world)[-1]):
            when = posted(schedule)
            assert set(when) == {(at, number) for at, step in enumerate(schedule) for number in range(len(step.recvs))}
            assert all(at <= index for (index, _), at in when.items())
            assert sorted(per_peer(schedule)) == sorted(per_peer(schedule, receive_schedule.plan(schedule)))
            for (index, number), at in when.items():
                assert not overwritten(schedule, index, number, at)


def overwritten(schedule: Schedule, index: int, number: int, at: int) -> bool:
    """Whether a receive that is not staged could change what a step before its own still uses, or a send of its own."""
    step = schedule[index]
    recv = step.recvs[number]
    if receive_schedule.staged(step, recv):
        return False
    wanted = set(recv.chunks)
    copied = {
        chunk for entry in schedule[at + 1 : index + 1] for copy in entry.copies for chunk in (copy.source, copy.target)
    }
    sent = {chunk for entry in schedule[at : index + 1] for send in entry.sends for chunk in send.chunks}
    got = {chunk for entry in schedule[at:index] for other in entry.recvs for chunk in other.chunks}
    return bool(wanted & (copied | sent | got))


def per_peer(schedule: Schedule, plan: Any = None) -> list[tuple[int, list[receive_schedule.ReceiveId]]]:
    """For each peer its receives, in the order of the schedule or of the plan."""
    order = plan or [[(at, number) for number in range(len(step.recvs))] for at, step in enumerate(schedule)]
    result: dict[int, list[receive_schedule.ReceiveId]] = {}
    for places in order:
        for index, number in places:
            result.setdefault(schedule[index].recvs[number].peer, []).append((index, number))
    return list(result.items())


def test_receives_of_one_peer_keep_their_order() -> None:
    schedule = (
        Step(sends=(Send(1, (0,)),), recvs=(Recv(1, (1,)),)),
        Step(sends=(Send(1, (1,)),), recvs=(Recv(1, (0,)),)),
        Step(recvs=(Recv(1, (2,), reduce=True),)),
    )
    order = [place for places in receive_schedule.plan(schedule) for place in places]
    assert order == [(0, 0), (1, 0), (2, 0)]
    assert posted(schedule)[1, 0] == 1


def test_added_receives_are_posted_at_once() -> None:
    schedule = ring.schedule("all-reduce", 0, 4)
    assert receive_schedule.plan(schedule)[0][:3] == ((0, 0), (1, 0), (2, 0))


def test_what_is_combined_takes_no_more_scratch_than_the_buffer_or_two_messages() -> None:
    """A root that takes the whole buffer from seven ranks in turn."""
    schedule = tuple(Step(recvs=(Recv(peer, (0,), reduce=True),)) for peer in range(1, 8))
    assert [index - at for (index, _), at in sorted(posted(schedule).items())] == [0, 1, 1, 1, 1, 1, 1]


def test_two_streams_take_turns() -> None:
    schedule = tuple(Step(recvs=(Recv(1 + index % 2, (index,)),)) for index in range(8))
    assert all(at == index for (index, _), at in posted(schedule).items())
    alone = tuple(Step(recvs=(Recv(1, (index,)),)) for index in range(8))
    assert all(at == 0 for at in posted(alone).values())


def test_large_messages_wait_for_their_turn_and_small_ones_do_not() -> None:
    step = Step(recvs=tuple(Recv(peer, (peer,), in_turn=True) for peer in (1, 2, 3)))
    schedule = (Step(sends=(Send(1, (0,)),)), step)
    sizes = [LARGE, LARGE, LARGE - 1, LARGE]
    assert receive_schedule.plan(schedule, sizes) == (((1, 1),), ((1, 0), (1, 2)))
    assert receive_schedule.plan(schedule)[0] == ((1, 0), (1, 1), (1, 2))


@pytest.mark.parametrize(
    ("in_turn", "size", "waits"), [(True, LARGE, True), (True, LARGE - 1, False), (False, LARGE, False)]
)
def test_large_messages_are_sent_in_turn_where_the_step_says_so(in_turn: bool, size: int, waits: bool) -> None:
    step = Step(sends=(Send(1, (0,)), Send(2, (1,))), in_turn=in_turn)
    assert receive_schedule.sends_in_turn(step, [1, size]) == waits


def posted(schedule: Schedule) -> dict[receive_schedule.ReceiveId, int]:
    return {place: at for at, places in enumerate(receive_schedule.plan(schedule)) for place in places}


@pytest.mark.parametrize("world", range(2, 17))
@pytest.mark.parametrize("operation", ["all-gather", "all-to-all"])
def test_in_each_turn_of_direct_every_rank_is_sent_to_once(operation: str, world: int) -> None:
    steps = [direct.schedule(operation, rank, world)[0] for rank in range(world)]
    assert all(step.in_turn for step in steps)
    for turn in range(world - 1):
        assert sorted(step.sends[turn].peer for step in steps) == list(range(world))
        assert all(steps[step.sends[turn].peer].recvs[turn].peer == rank for rank, step in enumerate(steps))


@pytest.mark.parametrize(("rank", "peer"), [(1, 2), (2, 1)])
def test_in_a_double_binary_tree_two_ranks_send_to_each_other_in_the_same_steps(rank: int, peer: int) -> None:
    """Of 4 ranks, 1 and 2 are parent and child of each other. The end of the schedule is the broadcast."""
    end = double_binary_tree.schedule("all-reduce", rank, 4, double_binary_tree.Params())[-20:]
    sends = [any(send.peer == peer for send in step.sends) for step in end]
    recvs = [any(recv.peer == peer for recv in step.recvs) for step in end]
    assert sum(sends) >= 8
    assert sum(recvs) >= 8
    assert sum(left != right for left, right in zip(sends, recvs, strict=True)) <= 1
