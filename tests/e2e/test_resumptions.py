"""Verdicts on programs that were killed for real and resumed, rightly and wrongly; ``tests/bench/resumptions.py`` runs hundreds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.e2e


def run_campaign(directory: Path, *options: str) -> list[dict[str, Any]]:
    argv = [sys.executable, "-m", "tests.bench.resumptions", "--out", str(directory), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=1000, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in (directory / "cases.jsonl").read_text().splitlines()]


def test_right_resumptions_pass_and_wrong_ones_fail_in_the_right_row(tmp_path: Path) -> None:
    only = "step_lr,fsdp2_dcp,batch_norm,pipeline"
    cases = run_campaign(tmp_path, "--right", "4", "--wrong", "5", "--seed", "3", "--only", only)
    assert len(cases) == 9
    for case in cases:
        expected = {"fail"} if case["wrong"] else {"pass", "unknown"}
        assert case["outcome"] in expected, case
        assert not case["wrong"] or case["named"], case
