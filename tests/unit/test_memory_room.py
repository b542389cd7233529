"""Whether buffers fit: what a case needs on a rank, and who shares what is free."""

from __future__ import annotations

import pytest
import torch

from orchestrator.rank import cases, room

GIB = float(1 << 30)


def case(operation: str, size: int, groups: str = "") -> cases.Case:
    return cases.cases([cases.Item(operation=operation, bytes=size, groups=groups)], 4)[0]


def test_a_rank_needs_its_buffer_the_input_and_the_result() -> None:
    assert room.need(case("all-reduce", 4096), 0) == 3 * 4096
    assert room.need(case("broadcast", 4096), 0) == 3 * 4096 and room.need(case("broadcast", 4096), 1) == 2 * 4096
    assert room.need(case("all-to-all", 4096), 2) == 4 * 4096
    assert room.need(case("all-reduce", 4096, "0,1"), 3) == 0


def test_ranks_of_one_host_share_its_memory() -> None:
    apart = [(1.0, 3 * GIB, 4 * GIB), (2.0, 3 * GIB, 4 * GIB)]
    assert room.lack(apart, "on one host") == ""
    together = [(9.0, GIB, 2 * GIB), (1.0, 3 * GIB, 4 * GIB), (1.0, 3 * GIB, 4 * GIB)]
    assert room.lack(together, "on one host") == "2 ranks from rank 1 on need 6 GiB on one host, 4 GiB are free"
    assert room.lack([(0.0, 2 * GIB, GIB)], "on one GPU") == "rank 0 needs 2 GiB on one GPU, 1 GiB are free"


def test_sizes_beyond_all_memory_are_refused_and_what_fits_is_not() -> None:
    device = torch.device("cpu")
    room.require([case("all-reduce", 4096)], 0, 1, device)
    with pytest.raises(room.TooLarge, match=r"all-reduce ring \d+ B float32 sum: rank 0 needs 293 TiB on one host"):
        room.require([case("all-reduce", 4096), case("all-reduce", 100000 << 30)], 0, 1, device)
