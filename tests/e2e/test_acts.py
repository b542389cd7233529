"""The record of acts has a line for the ranks of a run, and for its fault and the healing, as they happen on a real bed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.app import audited

from .conftest import Bed

pytestmark = pytest.mark.e2e


def test_a_run_and_its_fault_are_in_the_record_of_acts(bed: Bed, tmp_path: Path) -> None:
    args = ("--epochs", "1", "--fail-node", "2", "--no-reference", "--bed", "local", "--runs-dir", str(tmp_path))
    code, output = bed.ccbed("run", "dp-ring", *args)
    assert code in (0, 2), output
    run = (tmp_path / "latest").resolve().name
    rows = [json.loads(line) for line in (bed.state / audited.FILE).read_text().splitlines()]
    assert [(row["host"], row["act"], row["result"]) for row in rows if run in row["act"]] == [
        ("localhost", f"run {run}", "ok"),
        ("localhost", f"fault crash-node on n2: run {run}", "ok"),
        ("localhost", f"heal crash-node on n2: run {run}", "ok"),
    ]
