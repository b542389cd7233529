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


#: Eight cells; ``make test-frameworks FRAMEWORK=torch`` runs the others as well.
ARGUMENTS = re.compile(r"--sync( --bf16| --broken (optimizer|scheduler|rng|data))?")
FAULTS = ("--fail-node 2", "--fail-node 0", "--fail-node 2 --at save-during")
NAMES = [c.name for c in CELLS if c.family == "torch" and ARGUMENTS.fullmatch(c.arguments) and c.fault in FAULTS]


@pytest.mark.parametrize("name", NAMES)
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
