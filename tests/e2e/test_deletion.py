"""Products removed in a copy of the package: a run that loses a node recovers bit by bit, and is judged again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.model.plugin import PRODUCTS

from ..arch.test_deletion import without

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("products", [*((product,) for product in PRODUCTS), PRODUCTS], ids="-".join)
def test_a_run_recovers_without(products: tuple[str, ...], tmp_path: Path) -> None:
    directory = without(tmp_path, *products)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(directory)}

    def ccbed(*args: str) -> str:
        command = [sys.executable, "-c", "import sys; from orchestrator.cli import main; sys.exit(main.main())", *args]
        done = subprocess.run(
            command, cwd=directory, env=environment, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    ccbed("up", "inventories/local.yml")
    try:
        result = json.loads(ccbed("run", "dp-ring", "--fail-node", "2", "--json"))
        outcomes = {verdict["check"]: verdict["outcome"] for verdict in result["verdicts"]}
        assert (result["exit"], outcomes["bit-exact"]) == (0, "pass")
        ccbed("check")
    finally:
        ccbed("down", "local", "--force")
