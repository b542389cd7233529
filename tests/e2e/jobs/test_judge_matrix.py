"""Jobs that nobody wrote, broken and judged: no verdict is wrong. ``make judge-matrix`` draws more of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "first", "count"), [("job", 0, 1), ("job", 1, 7), ("momentum", 0, 4)], ids=["1", "7 more", "own momentum"]
)
def test_no_verdict_on_a_drawn_job_is_wrong(job: str, first: int, count: int) -> None:
    which = ["--job", job, "--seed", "2", "--first", str(first), "--count", str(count)]
    command = [sys.executable, "-m", "tests.jobs", *which]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nright") + done.stdout.startswith("right") >= count - count // 8, done.stdout
