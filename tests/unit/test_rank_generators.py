"""Random states are drawn per rank, kept whole, and given back."""

from __future__ import annotations

import torch

from orchestrator.rank.checkpoint import single_file
from orchestrator.rank.runtime import random_states

CPU = torch.device("cpu")


def test_every_rank_draws_its_own_and_the_same_again() -> None:
    first, repeated, other = (random_states.Generators(7, rank, CPU) for rank in (0, 0, 1))
    drawn = [torch.rand(4, generator=entry.own).tolist() for entry in (first, repeated, other)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_what_was_kept_is_given_back() -> None:
    entry = random_states.Generators(7, 0, CPU)
    states, digests = {name: state.clone() for name, state in entry.states().items()}, entry.digests()
    expected = (torch.rand(3), torch.rand(3, generator=entry.own))
    assert entry.digests() != digests
    entry.restore(states)
    assert entry.digests() == digests
    assert torch.equal(torch.rand(3), expected[0])
    assert torch.equal(torch.rand(3, generator=entry.own), expected[1])


def test_states_of_any_number_and_size_travel_as_one() -> None:
    states = {"torch": torch.arange(5, dtype=torch.uint8), "generator": torch.ones(3, dtype=torch.uint8),
              "cuda": torch.full((16,), 9, dtype=torch.uint8)}  # fmt: skip
    packed = single_file._pack(single_file.Personal(states, 0.25))
    result = single_file._unpack(packed, {name: state.numel() for name, state in states.items()})
    assert result.loss == 0.25
    assert list(result.states) == list(states)
    assert all(torch.equal(result.states[name], states[name]) for name in states)
