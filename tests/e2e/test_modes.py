"""Under any umask what ccbed writes is its user's alone, and what the user's ranks write has the user's umask."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, subprocess, sys, ccbed_events
from pathlib import Path
rank, out = os.environ["RANK"], Path(sys.argv[1])
(out / f"file-{rank}").write_text("x")
(out / f"folder-{rank}").mkdir()
subprocess.run(["touch", str(out / f"touched-{rank}")], check=True)
ccbed_events.step(1)
"""


def open_to_others(root: Path) -> list[str]:
    """What a group or others may read, write or look into; links have no mode of their own."""
    modes = {path: mode for path in [root, *root.rglob("*")] if (mode := mode_of(path)) is not None}
    return sorted(f"{path} {mode & 0o777:o}" for path, mode in modes.items() if not stat.S_ISLNK(mode) and mode & 0o077)


def mode_of(path: Path) -> int | None:
    """None: it is no longer there, as a temporary file of an agent that writes down its reserve ranks."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return None


@pytest.mark.parametrize("umask", [0o002, 0o000])
def test_modes_of_what_a_bed_of_processes_writes(tmp_path: Path, umask: int) -> None:
    check_modes(tmp_path, umask, {"ccbed_spares": 1})


def test_modes_of_what_a_bed_of_containers_writes(tmp_path: Path, engine: Any, image: str) -> None:
    variables = {"ccbed_provider": "docker", "ccbed_image": image, "ccbed_mounts": [f"{tmp_path}/user:{tmp_path}/user"]}
    check_modes(tmp_path, 0o002, {**variables, "ccbed_start_timeout": "10m"})


def check_modes(tmp_path: Path, umask: int, variables: Mapping[str, object]) -> None:
    user = tmp_path / "user"
    user.mkdir()
    (user / "train.py").write_text(SCRIPT)
    bed = {"ccbed_bed": "modes", "ccbed_nodes": 2, **variables}
    inventory = {"all": {"hosts": {"here": {"ansible_connection": "local"}}, "vars": bed}}
    (user / "modes.json").write_text(json.dumps(inventory))

    def ccbed(*args: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "orchestrator.cli", *args], cwd=user, umask=umask, capture_output=True, text=True,
            env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "xdg"), "OMP_NUM_THREADS": "1"}, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    ccbed("up", "modes.json")
    try:
        ccbed("run", "train.py", "--nodes", "2", "--runs-dir", str(tmp_path / "out" / "runs"), "--", str(user))
        ccbed("exec", "n0", "--", "touch", str(user / "touched-exec"))
        assert open_to_others(tmp_path / "xdg") == []
        assert open_to_others(tmp_path / "out") == []
        ccbed("prune", "modes", "--older-than", "0s", "--runs-dir", str(tmp_path / "out" / "runs"))
        assert list((tmp_path / "xdg/ccbed/beds/modes/payloads").iterdir()) == []
    finally:
        ccbed("down", "modes", "--force")
    assert open_to_others(tmp_path / "xdg") == []
    of_ranks = [user / f"{kind}-{rank}" for kind in ("file", "folder", "touched") for rank in (0, 1)]
    modes = {path.name: path.stat().st_mode & 0o777 for path in (*of_ranks, user / "touched-exec")}
    assert modes == {name: (0o777 if "folder" in name else 0o666) & ~umask for name in modes}
