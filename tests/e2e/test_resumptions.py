"""Verdicts on scripts that were killed for real and resumed, rightly and wrongly; ``tests/bench/resumptions.py`` runs hundreds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.e2e


def test_a_right_resumption_passes_and_wrong_ones_fail_in_the_right_row(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "tests.bench.resumptions", "--right", "1", "--wrong", "2", "--out", str(tmp_path)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    cases = [json.loads(line) for line in (tmp_path / "cases.jsonl").read_text().splitlines()]
    assert [(case["kind"].split(":")[0], case["outcome"]) for case in cases] == [
        ("right", "pass"), ("wrong", "fail"), ("wrong", "fail"),
    ], cases  # fmt: skip
    assert all(case["named"] for case in cases[1:]), cases
