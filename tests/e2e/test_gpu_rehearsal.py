"""The tests of `make test-gpu` run on the CPU, all but those whose subject is CUDA, by the command that a GPU machine gets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import __main__ as command

from .conftest import ROOT

pytestmark = pytest.mark.e2e
#: Tests that need CUDA itself.
NOT_REHEARSED = {
    "test_holds.py::test_a_hold_inside_a_capture_does_not_break_it",
    "test_nccl.py::test_driver_and_libraries_are_facts_of_the_bundle",
    "test_graphs.py::test_a_graph_of_the_whole_step_is_captured_and_its_replays_are_unknown",
    "test_graphs.py::test_steps_of_a_graphed_model_are_counted",
}


def test_all_parts_pass_on_the_cpu_and_the_report_lists_what_was_not_rehearsed(tmp_path: Path) -> None:
    env = {**os.environ, command.REHEARSAL: "1", "CCBED_TESTS_REQUIRE": ""}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", "run", "--out", str(tmp_path / "out"), "--venv", str(tmp_path / "venv")],
        cwd=ROOT, env=env, capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out/report.json").read_text())
    outcomes = {entry["test"].removeprefix("tests/gpu/"): entry["outcome"] for entry in report["tests"]}
    assert {test for test, outcome in outcomes.items() if outcome == "not rehearsed"} == NOT_REHEARSED
    assert set(outcomes.values()) == {"passed", "not rehearsed"}
    assert {test.split("::")[0] for test in outcomes} == {f"test_{part}.py" for part in command.parts()}
    assert {"nvidia-smi-idle.xml", "nvidia-smi-busy.xml"} <= {file.name for file in (tmp_path / "out").iterdir()}
