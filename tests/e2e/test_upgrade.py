"""ccbed is upgraded while a bed is up and a run is open: the new version goes on with both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.store import bundle

from ..patience import until
from .conftest import ROOT
from .test_slow_node import written

pytestmark = pytest.mark.e2e

INVENTORY = (
    "all: {hosts: {localhost: {ansible_connection: local}}, vars: {ccbed_bed: old, ccbed_nodes: 2, ccbed_spares: 1}}\n"
)


def installed(folder: Path) -> Path:
    """The commit before this one, or that of CCBED_UPGRADE_FROM, as an installation has it."""
    commit = os.environ.get("CCBED_UPGRADE_FROM", "HEAD~1")
    archive = subprocess.run(["git", "archive", commit, "orchestrator"], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"the history of this checkout has no {commit}")
    folder.mkdir()
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
    return folder


@pytest.mark.parametrize("is_started_anew", [False, True], ids=["resume", "up, resume"])
def test_a_run_that_is_open_and_its_bed_outlive_an_upgrade(tmp_path: Path, is_started_anew: bool) -> None:
    """The bed's own processes are those of the earlier version until `up` replaces them."""
    before, runs, inventory = installed(tmp_path / "before"), tmp_path / "runs", tmp_path / "old.yml"
    inventory.write_text(INVENTORY)
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    def command(version: Path, *args: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-m", "orchestrator.cli", *args], {**environment, "PYTHONPATH": str(version)}

    def ccbed(version: Path, *args: str) -> str:
        argv, env = command(version, *args)
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    try:
        ccbed(before, "up", str(inventory))
        args = ["run", "dp-ring", "--bed", "old", "--nodes", "2", "--step-min-ms", "200", "--runs-dir", str(runs)]
        argv, env = command(before, *args, "--no-reference")
        with subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
            until(lambda: b'"progress"' in written(runs) or process.poll() is not None)
            assert process.poll() is None
            process.kill()
        run = str((runs / "latest").resolve())
        if is_started_anew:
            ccbed(ROOT, "up", str(inventory))
        assert "finished" in ccbed(ROOT, "resume", run)
        assert "PASS" in ccbed(ROOT, "check", run)
        assert not (Path(run) / bundle.HISTORY).read_text().count('"recovery.refused"')
    finally:
        ccbed(ROOT, "down", "old", "--force")
        shutil.rmtree(before)
    assert list((tmp_path / "state/ccbed/beds").glob("*/keeper")) == []
