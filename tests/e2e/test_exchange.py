"""Every algorithm carried out for real: ranks of this machine over gloo, against torch's own collectives, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.rank.runtime import recorder

PROGRAM = Path(__file__).parent / "exchanging.py"


def play(world: int, *jobs: str) -> None:
    root = str(PROGRAM.parents[2])
    env = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(world), *jobs]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("world", [3, 8])
def test_every_algorithm_gives_what_torch_gives(world: int) -> None:
    play(world, "everything")


def test_every_algorithm_among_five_and_among_groups_of_three_and_two_at_once() -> None:
    play(5, "everything", "groups", "operators")


def test_every_algorithm_among_four_beside_the_caller_with_every_operator_and_recorded(tmp_path: Path) -> None:
    """Messages are recorded by those that receive them, tokens are not."""
    play(4, "everything", "batched", "groups", "beside", "operators", f"records:{tmp_path}")
    rows = {rank: read(tmp_path / f"chunks-r{rank}.bin") for rank in range(4)}
    # step, op, step of the schedule, peer, first chunk, bytes
    assert rows[0] == [
        (1, 3, 0, 1, 1, 8 * 252), (1, 3, 1, 2, 2, 8 * 504), (2, 3, 0, 1, 1, 8 * 504), (2, 3, 1, 2, 2, 8 * 1008),
    ]  # fmt: skip
    assert rows[1] == [(3, 0, 0, 0, 0, 88)]
    assert rows[2] == [(1, 3, 0, 3, 3, 8 * 252), (2, 3, 0, 3, 3, 8 * 504), (3, 0, 0, 0, 0, 88)]
    assert rows[3] == [(3, 0, 0, 2, 0, 88)]


def read(path: Path) -> list[tuple[int, ...]]:
    chunks = list(recorder.CHUNK.iter_unpack(path.read_bytes()))
    assert all(row[6] <= row[7] for row in chunks)
    return [row[:6] for row in chunks]
