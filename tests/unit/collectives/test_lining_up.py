"""The start line of a measured iteration: who has heard of whom when the clock starts."""

from __future__ import annotations

import pytest

from orchestrator.collectives.rank import measure


@pytest.mark.parametrize("world", range(2, 20))
def test_after_the_rounds_every_rank_has_heard_of_all_that_their_buckets_are_empty(world: int) -> None:
    heard = [{rank} for rank in range(world)]
    for distance, _ in measure.rounds(world, 1000):
        heard = [heard[rank] | heard[(rank - distance) % world] for rank in range(world)]
    assert all(of == set(range(world)) for of in heard)


def test_only_the_first_round_carries_what_empties_a_bucket() -> None:
    assert measure.rounds(8, 1000) == [(1, 1000), (2, 1), (4, 1)]


def test_links_without_buckets_need_no_rounds() -> None:
    assert measure.rounds(4, 0) == [] and measure.rounds(1, 1000) == []
