"""A bed in the interpreter that its inventory names: keeper, agents and ranks run in it."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

import pytest
import torch

from orchestrator.providers.process import process_provider
from orchestrator.store import bed_files

from .conftest import ccbed

pytestmark = pytest.mark.e2e
INVENTORY = """all:
  hosts: {{h: {{ansible_connection: local}}}}
  vars: {{ccbed_bed: own, ccbed_nodes: 2, ccbed_python: {python}}}
"""
SCRIPT = "import sys; print('in', sys._xoptions['own'], flush=True)"


def test_ranks_run_in_the_named_interpreter_and_a_worse_one_leaves_the_bed_as_it_is(tmp_path: Path) -> None:
    state, python, inventory = tmp_path / "state", tmp_path / "python", tmp_path / "own.yml"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -X own={tmp_path.name} "$@"\n')
    python.chmod(0o700)
    (tmp_path / "script").mkdir()
    (tmp_path / "script/train.py").write_text(SCRIPT)
    inventory.write_text(INVENTORY.format(python=python))
    try:
        code, output = ccbed(state, "up", str(inventory))
        assert code == 0, output
        code, output = ccbed(state, "run", str(tmp_path / "script/train.py"), "--runs-dir", str(tmp_path / "runs"))
        assert code == 0, output
        logs = [log.read_text() for log in tmp_path.glob("runs/latest/nodes/*/*/rank-*.log")]
        assert len(logs) == 2
        assert all(f"in {tmp_path.name}" in log for log in logs)
        (document,) = tmp_path.glob("runs/latest/fingerprint.json")
        facts = json.loads(document.read_text())
        assert (facts["torch"], facts["python"]) == (torch.__version__, platform.python_version())

        spec = bed_files.read(state, "own")
        assert spec is not None
        before = process_provider.bed_status(spec)
        assert before.keeper_python == str(python)
        inventory.write_text(INVENTORY.format(python=tmp_path / "absent"))
        code, output = ccbed(state, "up", str(inventory))
        assert code == 4
        assert f"ccbed_python {tmp_path / 'absent'}: No such file or directory" in output
        after = process_provider.bed_status(spec)
        assert after.keeper_pid == before.keeper_pid
        assert [node.pid for node in after.nodes] == [node.pid for node in before.nodes]
    finally:
        code, output = ccbed(state, "down", "own", "--force")
    assert code == 0, output
