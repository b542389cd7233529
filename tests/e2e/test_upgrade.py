"""ccbed is upgraded while a bed is up and a run is open: the new version goes on with both."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest

from ..patience import until
from .conftest import ROOT
from .test_slow_node import written

pytestmark = pytest.mark.e2e

INVENTORY = (
    "all: {hosts: {localhost: {ansible_connection: local}}, vars: {ccbed_bed: old, ccbed_nodes: 2, ccbed_spares: 1}}\n"
)


def installed(folder: Path) -> Path:
    """ccbed as it was before the last change of what it runs on hosts, or at the commit CCBED_UPGRADE_FROM."""
    last = subprocess.run(
        ["git", "rev-list", "-1", "HEAD", "--", "orchestrator/node"], cwd=ROOT, capture_output=True, text=True
    )
    commit = os.environ.get("CCBED_UPGRADE_FROM", f"{last.stdout.strip()}^")
    archive = subprocess.run(["git", "archive", commit, "orchestrator"], cwd=ROOT, capture_output=True)
    if archive.returncode:
        pytest.skip(f"the history of this checkout has no {commit}")
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


def test_a_run_that_is_open_and_its_bed_outlive_an_upgrade(tmp_path: Path) -> None:
    before, runs, inventory = installed(tmp_path / "before"), tmp_path / "runs", tmp_path / "old.yml"
    inventory.write_text(INVENTORY)

    def start(version: Path, *args: str) -> subprocess.Popen[str]:
        env = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONPATH": str(version)}
        argv = [sys.executable, "-m", "orchestrator.cli", *args]
        return subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=PIPE, stderr=STDOUT, text=True)

    def ccbed(version: Path, *args: str, code: int = 0) -> str:
        with start(version, *args) as process:
            output, _ = process.communicate()
        assert process.returncode == code, output
        return output

    ccbed(before, "up", str(inventory))
    args = ["run", "dp-ring", "--no-reference", "--bed", "old", "--nodes", "2", "--step-min-ms", "200", "--runs-dir"]
    with start(before, *args, str(runs)) as process:
        until(lambda: b'"progress"' in written(runs) or process.poll() is not None)
        assert process.poll() is None
        process.kill()
    run = str((runs / "latest").resolve())
    assert "has an open run" in ccbed(ROOT, "up", str(inventory), code=3)
    assert "finished" in ccbed(ROOT, "resume", run)
    assert "PASS" in ccbed(ROOT, "check", run)
    assert "0 to create, 0 to change" not in ccbed(ROOT, "up", str(inventory)), "its host agent is replaced"
    ccbed(ROOT, "down", "old")
    assert list((tmp_path / "state/ccbed/beds").glob("old/*")) == []
