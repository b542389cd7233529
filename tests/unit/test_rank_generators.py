"""Random states are drawn per rank, kept whole, and given back."""

from __future__ import annotations

import io
import zipfile

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


def test_every_rank_finds_its_own_state_in_a_checkpoint_and_a_rank_beyond_its_world_finds_none() -> None:
    ranks = {
        rank: single_file.Personal(random_states.Generators(7, rank, CPU).states(), 0.1 * rank) for rank in range(3)
    }
    content = single_file._loaded(single_file.encode(5, 0, {"model": {}, "optimizer": {}}, ranks))
    for rank, kept in ranks.items():
        restored = single_file.personal(content, rank)
        assert restored is not None and restored.loss == kept.loss
        assert {name: state.tolist() for name, state in restored.states.items()} == {
            name: state.tolist() for name, state in kept.states.items()
        }
    assert single_file.personal(content, 3) is None


def test_a_checkpoint_has_as_many_tensors_for_many_ranks_as_for_one() -> None:
    """A load takes 0.1 ms for every tensor, on every rank: with two per rank, 64 ranks took 15 ms each."""
    sizes = []
    for world in (1, 64):
        ranks = {rank: single_file.Personal({"torch": torch.zeros(8, dtype=torch.uint8)}, 0.0) for rank in range(world)}
        content = single_file.encode(5, 0, {}, ranks)
        sizes.append(len(zipfile.ZipFile(io.BytesIO(content)).namelist()))
    assert sizes[0] == sizes[1]
