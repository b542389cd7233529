"""Holds: the right rank stops at the right point, and goes on when it is released or its limit is over."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.model import gang
from orchestrator.rank.runtime import hold, recorder
from orchestrator.rank.watcher.holds import waiting

HOLD = gang.Hold(id="f0", rank=2, step=30, phase="allreduce", limit_s=0.1)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def reach(tmp_path: Path, rank: int, fd: int, *points: tuple[int, str]) -> list[tuple[str, Any]]:
    path = tmp_path / "events.jsonl"
    notes = recorder.Notes(str(path), node="n2", incarnation="i1", rank=rank, epoch=0)
    holds = hold.Holds([HOLD], rank, fd, notes)
    for step, phase in points:
        holds.reach(step, phase)
    return [(line["f"], line["value"]) for line in map(json.loads, path.read_text().splitlines())]


def test_a_released_rank_goes_on(tmp_path: Path, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"f0\n")
    observed = reach(tmp_path, 2, pipe[0], (30, "allreduce"))
    assert [name for name, _ in observed] == ["rank.held", "rank.released"]
    assert observed[0][1] == {"rank": 2, "step": 30, "phase": "allreduce", "hold": "f0"}


def test_nobody_released_it_the_limit_does(tmp_path: Path, pipe: tuple[int, int]) -> None:
    observed = reach(tmp_path, 2, pipe[0], (30, "allreduce"))
    assert [name for name, _ in observed] == ["rank.held", "hold.expired"]
    assert observed[1][1]["held_s"] >= 0.09


def test_the_release_of_another_hold_does_not_count_nor_is_it_lost(tmp_path: Path, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"other\nf")
    assert reach(tmp_path, 2, pipe[0], (30, "allreduce"))[1][0] == "hold.expired"


def test_another_rank_reports_that_it_is_inside(tmp_path: Path, pipe: tuple[int, int]) -> None:
    observed = reach(tmp_path, 1, pipe[0], (30, "allreduce"))
    assert observed == [("rank.inside", {"rank": 1, "step": 30, "phase": "allreduce", "hold": "f0"})]


def test_a_point_is_held_once_and_other_points_are_not(tmp_path: Path, pipe: tuple[int, int]) -> None:
    os.write(pipe[1], b"f0\n")
    points = [(29, "allreduce"), (30, "forward"), (30, "allreduce"), (30, "allreduce")]
    assert len(reach(tmp_path, 2, pipe[0], *points)) == 2


def test_an_agent_that_has_gone_leaves_it_to_the_limit(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(writer)
    assert [name for name, _ in reach(tmp_path, 2, reader, (30, "allreduce"))] == ["rank.held", "hold.expired"]
    os.close(reader)


@pytest.mark.parametrize("is_capturing", [True, False])
def test_a_device_is_waited_for_unless_a_cuda_graph_is_captured(
    is_capturing: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA invalidates a graph whose capture is waited for: the hold is not exact, and the graph is whole."""
    waits: list[None] = []
    cuda = SimpleNamespace(
        is_initialized=lambda: True, is_current_stream_capturing=lambda: is_capturing, synchronize=lambda: waits.append(None)
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    assert waiting._synchronise() is not is_capturing
    assert len(waits) == int(not is_capturing)
