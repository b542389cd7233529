"""The ring: steps and bytes as the cost model says."""

from __future__ import annotations

import pytest

from orchestrator.algorithms import ring
from orchestrator.rank.runtime import even_shares
from tests.contract import symbolic


@pytest.mark.parametrize("world", range(1, 33))
def test_takes_two_p_minus_one_steps_of_one_send_and_one_receive(world: int) -> None:
    for rank in range(world):
        schedule = ring.schedule("all-reduce", rank, world)
        assert len(schedule) == 2 * (world - 1)
        assert all(len(step.sends) == len(step.recvs) == 1 for step in schedule)


@pytest.mark.parametrize("world", range(1, 33))
@pytest.mark.parametrize("total", [242_762, 32 * 5])
def test_moves_two_p_minus_one_pths_of_the_buffer(world: int, total: int) -> None:
    sizes = [stop - start for start, stop in even_shares.bounds(total, world)]
    schedules = [ring.schedule("all-reduce", rank, world) for rank in range(world)]
    outcome = symbolic.verify("all-reduce", schedules, ring.chunks("all-reduce", world), even=False, causal=False)
    moved = sum(sizes[chunk] for message in outcome.messages for chunk in message.chunks)
    assert moved == 2 * (world - 1) * total


def test_the_reference_gradients_make_uneven_chunks_and_lose_no_byte() -> None:
    sizes = [stop - start for start, stop in even_shares.bounds(242_762, 4)]
    assert sizes == [60_691, 60_691, 60_690, 60_690]
    assert 4 * sum(sizes) == 971_048


def test_a_ring_of_four_over_eight_trials_has_192_chunk_transfers() -> None:
    assert 8 * sum(len(step.recvs) for rank in range(4) for step in ring.schedule("all-reduce", rank, 4)) == 192


def test_world_one_has_nothing_to_do() -> None:
    assert ring.schedule("all-reduce", 0, 1) == ()
