"""Cells of the matrix of frameworks that need torch alone; ``make test-frameworks`` runs all."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.frameworks.cells import CELLS

ROOT = Path(__file__).parents[3]


#: Eight cells; ``make test-frameworks FRAMEWORK=torch`` runs the others as well.
ARGUMENTS = re.compile(r"--sync( --bf16| --broken (optimizer|scheduler|rng|data))?")
FAULTS = ("--fail-node 2", "--fail-node 0", "--fail-node 2 --at save-during")
NAMES = [c.name for c in CELLS if c.family == "torch" and ARGUMENTS.fullmatch(c.arguments) and c.fault in FAULTS]


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Cell -> its row, of all cells that this run of pytest holds: they share a bed and the jobs without a fault."""
    cells = (
        item for item in request.session.items if isinstance(item, pytest.Function) and item.module is request.module
    )
    chosen = [str(cell.callspec.params["name"]) for cell in cells]
    results = tmp_path_factory.mktemp("frameworks") / "results.json"
    only = "|".join(f"^{re.escape(name)}$" for name in chosen)
    command = [sys.executable, "-m", "tests.frameworks", "torch", f"--only={only}", "--results", str(results)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600 * len(chosen))
    assert done.returncode == 0, done.stdout + done.stderr
    return {name.removeprefix("torch: "): row for name, row in json.loads(results.read_text()).items()}


@pytest.mark.parametrize("name", NAMES)
def test_a_verdict_on_fsdp2_is_right(rows: dict[str, dict[str, str]], name: str) -> None:
    """The jobs save synchronously: one that calls ``async_save`` ends by SIGABRT now and then, undisturbed, too."""
    assert rows[name]["result"] == "right", rows[name]
