"""A wrong result is raised with its culprit on every rank, whichever rank leaves first."""

from __future__ import annotations

import pytest
import torch

from orchestrator.collectives.rank import verify
from orchestrator.model.events import CollectiveWrong
from orchestrator.rank.exchange.cases import Case, Item
from orchestrator.rank.exchange.operations import Wrong

CASE = Case(number=0, item=Item(operation="all-reduce", bytes=1024), groups=((0, 1, 2),), first_step=1)


def verifier(rank: int, events: list[CollectiveWrong], monkeypatch: pytest.MonkeyPatch) -> verify.Verifier:
    """Of a world of three in which rank 2 has a wrong element, and whose connections end once the reports are exchanged."""

    def exchanged(lines: list[torch.Tensor], line: torch.Tensor) -> None:
        for number, other in enumerate(lines):
            other.copy_(torch.tensor([1.0, 250.0, 3.0, 4.0, 7.0] if number == 2 else [0.0, 0.0, 0.0, 0.0, 5.0]))
        lines[rank].copy_(line)

    def closed() -> None:
        raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr("torch.distributed.all_gather", exchanged)
    monkeypatch.setattr("torch.distributed.barrier", closed)
    return verify.Verifier(rank=rank, world=3, device=torch.device("cpu"), note=events.append)


@pytest.mark.parametrize("rank", range(3))
def test_a_peer_that_leaves_first_does_not_hide_the_wrong_result(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[CollectiveWrong] = []
    own = (Wrong(offset=250, expected=3, got=4), 7) if rank == 2 else (None, 5)
    with pytest.raises(verify.WrongResult, match=r"^rank 2, element 250: expected 3, got 4 ") as raised:
        verifier(rank, events, monkeypatch).agree(CASE, 1, own)
    assert raised.value.culprit == 2
    assert [(event.rank, event.offset) for event in events] == ([(2, 250)] if rank == 2 else [])
