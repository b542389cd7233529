"""Cells of the matrix of frameworks that need torch alone; ``make test-frameworks`` runs all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.cells import CELLS

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", [cell.name for cell in CELLS if cell.family == "torch" and "--sync" in cell.arguments])
def test_a_verdict_on_fsdp2_is_right(tmp_path: Path, name: str) -> None:
    """The jobs save synchronously: one that calls ``async_save`` ends by SIGABRT now and then, undisturbed, too."""
    results = tmp_path / "results.json"
    command = [
        sys.executable,
        "-m",
        "tests.frameworks",
        "torch",
        f"--only=^{re.escape(name)}$",
        "--results",
        str(results),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(results.read_text()).values()
    assert row["result"] == "right", done.stdout + done.stderr
