"""Jobs that nobody wrote, broken and judged: no verdict is wrong. ``make judge-matrix`` draws more of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(("first", "count"), [(0, 1), (1, 7)], ids=["1", "7 more"])
def test_no_verdict_on_a_drawn_job_is_wrong(first: int, count: int) -> None:
    command = [sys.executable, "-m", "tests.jobs", "--seed", "2", "--first", str(first), "--count", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nright") + done.stdout.startswith("right") >= count - count // 8, done.stdout
