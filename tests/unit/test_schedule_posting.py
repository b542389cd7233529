"""Early receives: nothing is overwritten too soon, and the order per peer is kept."""

from __future__ import annotations

import pytest

from orchestrator.algorithms import ring
from orchestrator.model.schedule import Recv, Schedule, Send, Step
from orchestrator.rank import posting


@pytest.mark.parametrize("world", range(2, 17))
def test_every_receive_is_posted_once_and_not_after_its_step(world: int) -> None:
    for rank in range(world):
        schedule = ring.schedule("all-reduce", rank, world)
        when = posted(schedule)
        assert set(when) == {(index, 0) for index in range(len(schedule))}
        assert all(at <= index for (index, _), at in when.items())


@pytest.mark.parametrize("world", range(2, 17))
def test_a_replacing_receive_waits_for_the_last_use_of_its_chunk(world: int) -> None:
    schedule = ring.schedule("all-reduce", 1, world)
    for (index, number), at in posted(schedule).items():
        recv = schedule[index].recvs[number]
        if not recv.reduce:
            assert not any(uses(step, recv.chunks) for step in schedule[at:index])


def test_receives_of_one_peer_keep_their_order() -> None:
    schedule = (
        Step(sends=(Send(1, (0,)),), recvs=(Recv(1, (1,)),)),
        Step(sends=(Send(1, (1,)),), recvs=(Recv(1, (0,)),)),
        Step(recvs=(Recv(1, (2,), reduce=True),)),
    )
    order = [place for places in posting.plan(schedule) for place in places]
    assert order == [(0, 0), (1, 0), (2, 0)]
    assert posted(schedule)[1, 0] == 1


def test_added_receives_are_posted_at_once() -> None:
    schedule = ring.schedule("all-reduce", 0, 4)
    assert posting.plan(schedule)[0][:3] == ((0, 0), (1, 0), (2, 0))


def posted(schedule: Schedule) -> dict[posting.Place, int]:
    return {place: at for at, places in enumerate(posting.plan(schedule)) for place in places}


def uses(step: Step, chunk: tuple[int, ...]) -> bool:
    return any(one.chunks == chunk for one in step.sends) or any(one.chunks == chunk for one in step.recvs)
